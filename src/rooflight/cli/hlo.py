"""`rooflight hlo`: what a compiled program does, read from a dump of XLA."""

from pathlib import Path

from rooflight.cli.flags import add_choice, add_plot, add_verbose
from rooflight.cli.hlo_page import answer, document, grids, tables
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.time_page import ROWS, live_plot, step_page, time_document, time_line, time_table
from rooflight.compile.hlo.dump import EXAMPLE, STAGES, Dump, choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.explain import explain
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.ui.html.step import step_html
from rooflight.ui.svg.live import live_svg
from rooflight.units import parse_sizes

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
    add_choice(
        parser,
        "--stage",
        STAGES,
        what="stage",
        default=None,
        help="which dump of a module: the latest, if left out",
    )
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
    mesh = _mesh(args, dump) if args.on else None
    axes = parse_sizes(args.mesh, what="mesh axis") if args.mesh and mesh is None else None
    step = read_dump(dump, axes=mesh.axes if mesh else axes)
    if args.op:
        lines = explain(step, args.op)
        if args.json:
            print_json("hlo", {"module": step.module.name, "op": args.op, "words": lines})
        else:
            show("\n".join(lines))
        return 0
    time = compiled_time(step, mesh) if mesh else None
    _write(args, step, dump, mesh, time)
    if args.json:
        timed = {"time": time_document(time)} if time else {}
        print_json("hlo", document(step, dump) | timed)
        return 0
    said = [answer(step, dump), *([time_line(None, time)] if time else [])]
    timed = [time_table(None, time)] if time else []
    show("\n\n".join(["\n".join(said), *timed, *tables(step, everything=args.verbose)]))
    _suggest(args, [d.name for d in dumps if d is not dump])
    return 0


def _mesh(args: Namespace, dump: Dump) -> Mesh:
    """As the user named it, or as a compile of ours wrote it down."""
    sizes = dump.axes.sizes.items() if dump.axes else ()
    text = args.mesh or ",".join(f"{name}={size}" for name, size in sizes)
    if not text:
        raise UsageError(
            f"which mesh lies on {args.on}? The dump does not say",
            hint="name it in the order of the jax mesh: --mesh X=4,Y=4",
        )
    return parse_mesh(text, on=args.on)


def _write(
    args: Namespace, step: CompiledStep, dump: Dump, mesh: Mesh | None, time: CompiledTime | None
) -> None:
    """The files that were asked for."""
    usable = mesh.slice.chip.detail.get("hbm_usable_bytes") if mesh else None
    limit = int(usable) if usable else None
    if args.plot:
        if step.live is None:
            raise UsageError(
                f"{dump.name} has no live ranges, so there is no picture of its memory",
                hint="give the folder of --xla_dump_to with its *-live-range.txt",
            )
        write_file(
            args.plot, live_svg(live_plot(step.module.name, step.live, limit)), flag="--plot"
        )
    if args.html:
        page = step_page(
            step,
            kicker=f"Compiled program, {dump.stage}",
            answer=answer(step, dump).splitlines(),
            shown=grids(step, most=ROWS),
            texts=[],
            planned=None,
            time=time,
            limit_bytes=limit,
        )
        write_file(args.html, step_html(page), flag="--html")


def _suggest(args: Namespace, others: list[str]) -> None:
    if others:
        suggest(f"rooflight hlo {args.path} --module {others[0]}")
    elif not args.path:
        suggest("XLA_FLAGS=--xla_dump_to=FOLDER python your_program.py; rooflight hlo FOLDER")
