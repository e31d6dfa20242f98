"""`rooflight hlo`: what a compiled program does, read from a dump of XLA."""

from pathlib import Path

from rooflight.cli.flags import add_choice, add_plot, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.compile.hlo.dump import EXAMPLE, STAGES, choose_dump, find_dumps
from rooflight.compile.hlo.explain import explain
from rooflight.compile.hlo.step import step_document
from rooflight.compile.time.step import read_timed, time_document
from rooflight.errors import UsageError
from rooflight.ui.answers.compiled import FEW_ROWS, live_picture, step_answer
from rooflight.ui.html.compiled import step_page
from rooflight.ui.text.answer import answer_text

HELP = "collectives, loops, matmuls, memory and time of a compiled program, from a dump of XLA"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        help="an HLO text, or the folder of --xla_dump_to; a small example if left out",
    )
    parser.add_argument(
        "--mesh", metavar="AXES", help="names and sizes of the jax mesh, in its order: X=4,Y=4"
    )
    parser.add_argument(
        "--on", metavar="SLICE", help="the slice it was compiled for: the time of its schedule too"
    )
    parser.add_argument("--op", metavar="NAME", help="explain one operation in words")
    parser.add_argument("--module", metavar="NAME", help="which module of a folder (the largest)")
    add_choice(parser, "--stage", STAGES, help="which dump of a module: the latest, if left out")
    add_plot(parser)
    parser.add_argument("--html", metavar="FILE", help="also write all of it as one HTML page")
    add_verbose(parser, help="every row of every table")
    parser.set_examples(
        "rooflight hlo --mesh X=16,Y=4", "rooflight hlo --mesh X=16,Y=4 --op all-gather.1"
    )


def run(args: Namespace) -> int:
    path = Path(args.path) if args.path else EXAMPLE
    dumps = find_dumps(path, stage=args.stage)
    dump = choose_dump(dumps, module=args.module, where=path)
    on = "" if args.op else args.on or ""
    step, time, limit_bytes = read_timed(dump, mesh=args.mesh or "", on=on)
    if args.op:
        lines = explain(step, args.op)
        if args.json:
            print_json("hlo", {"module": step.module.name, "op": args.op, "words": lines})
        else:
            show("\n".join(lines))
        return 0
    if args.plot:
        if step.live is None:
            raise UsageError(
                f"{dump.name} has no live ranges, so there is no picture of its memory",
                hint="give the folder of --xla_dump_to with its *-live-range.txt",
            )
        write_file(args.plot, live_picture(step, limit_bytes).svg, flag="--plot")
    if args.html:
        page = step_page(step, dump.stage, time, limit_bytes)
        write_file(args.html, page, flag="--html")
    if args.json:
        timed = {"time": time_document(time)} if time else {}
        print_json("hlo", step_document(step, dump.stage) | timed)
        return 0
    most = None if args.verbose else FEW_ROWS
    show(answer_text(step_answer(step, dump.stage, time, most=most)))
    _suggest(args, [d.name for d in dumps if d is not dump])
    return 0


def _suggest(args: Namespace, others: list[str]) -> None:
    if others:
        suggest(f"rooflight hlo {args.path} --module {others[0]}")
    elif not args.path:
        suggest("XLA_FLAGS=--xla_dump_to=FOLDER python your_program.py; rooflight hlo FOLDER")
