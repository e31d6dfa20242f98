"""`rooflight hlo`: what a compiled program does, read from a dump of XLA."""

from pathlib import Path

from rooflight.cli.flags import add_choice, add_verbose
from rooflight.cli.hlo_page import answer, document, tables
from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.units import parse_sizes
from rooflight.verify.hlo import choose_dump, explain, find_dumps, read_dump
from rooflight.verify.hlo.dump import EXAMPLE, STAGES

HELP = "collectives, loops, matmuls and memory of a compiled program, from a dump of XLA"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        help="an HLO text, or the folder of --xla_dump_to; a small example if left out",
    )
    parser.add_argument(
        "--mesh", metavar="AXES", help="names and sizes of the jax mesh, in its order: X=4,Y=4"
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
    add_verbose(parser, help="every row of every table")
    parser.set_examples(
        "rooflight hlo --mesh X=16,Y=4",
        "rooflight hlo --mesh X=16,Y=4 --op all-gather.1",
    )


def run(args: Namespace) -> int:
    path = Path(args.path) if args.path else EXAMPLE
    axes = parse_sizes(args.mesh, what="mesh axis") if args.mesh else None
    dumps = find_dumps(path, stage=args.stage)
    dump = choose_dump(dumps, module=args.module, where=path)
    step = read_dump(dump, axes=axes)
    if args.op:
        lines = explain(step, args.op)
        if args.json:
            print_json("hlo", {"module": step.module.name, "op": args.op, "words": lines})
        else:
            print("\n".join(lines))
        return 0
    if args.json:
        print_json("hlo", document(step, dump))
        return 0
    print("\n\n".join([answer(step, dump), *tables(step, everything=args.verbose)]))
    others = [d.name for d in dumps if d is not dump]
    if others:
        suggest(f"rooflight hlo {args.path} --module {others[0]}")
    elif not args.path:
        suggest("XLA_FLAGS=--xla_dump_to=FOLDER python your_program.py; rooflight hlo FOLDER")
    return 0
