"""`rooflight explain --serve`: the steps of a layer of a served model."""

from collections.abc import Sequence

from rooflight.api.values import parse_seq
from rooflight.cli.flags import add_choice
from rooflight.cli.output import print_json, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.serving_flags import add_dtypes
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.ops import Op
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.explain import PHASES, ServedLayer, served_layer
from rooflight.plan.serving.step.layout import parse_serving_layout
from rooflight.plan.serving.step.precision import parse_precision
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, whole

_MOST = 10**6


def add_serving(parser: Parser) -> None:
    add_choice(
        parser,
        "--serve",
        PHASES,
        what="phase",
        default=None,
        help="a step of a served model instead of training",
    )
    parser.add_argument("--sequences", help="with --serve: sequences of --seq positions")
    add_dtypes(parser)


def run_serving(args: Namespace, model: ModelSpec, ops: Sequence[Op]) -> int:
    if args.batch is not None or args.mesh is not None:
        raise UsageError(
            "--serve counts sequences, and its layout has ways instead of a mesh",
            hint="write --sequences 32 --layout tp=16,kv=batch, without --batch and --mesh",
        )
    sequences = whole("--sequences", args.sequences or "1", most=_MOST)
    seq = parse_seq(args.seq)
    found = served_layer(
        model,
        parse_slice(args.on),
        parse_serving_layout(args.layout),
        parse_precision(args.dtypes),
        phase=args.serve,
        ops=ops,
        contexts=[seq] * sequences,
    )
    if args.json:
        print_json("explain", _document(args, found, sequences, seq))
        return 0
    print(_text(args, found, sequences, seq))
    suggest(
        f"rooflight fit {args.model} --serve --on {args.on} --layout {args.layout}"
        f" --dtypes {args.dtypes} --sequences {sequences} --seq {seq}"
    )
    return 0


def _document(args: Namespace, found: ServedLayer, sequences: int, seq: int) -> dict[str, object]:
    return {
        "model": args.model,
        "serve": args.serve,
        "on": str(found.mesh.slice),
        "mesh": str(found.mesh),
        "layout": args.layout,
        "sequences": sequences,
        "seq": seq,
        "products_s": found.products_s,
        "collectives_s": found.collectives_s,
        "lines": [
            {
                "op": x.op,
                "step": str(x.step),
                "collective": x.step.op if x.step.is_collective else None,
                "expected_s": x.seconds,
                "binds": x.binds,
            }
            for x in found.lines
        ],
    }


def _text(args: Namespace, found: ServedLayer, sequences: int, seq: int) -> str:
    rows = [
        [str(i), str(x.step), format_seconds(x.seconds), x.binds]
        for i, x in enumerate(found.lines, 1)
    ]
    return (
        f"{args.model} under {args.layout}, {args.serve}: a layer takes"
        f" {format_seconds(found.products_s)} of products and"
        f" {format_seconds(found.collectives_s)} of collectives, all on the critical path\n"
        f"on {found.mesh.slice}, mesh {found.mesh}; {sequences:,} sequences of {seq:,} positions\n"
        "\n"
        f"{table(('', 'step', 'time', 'bound by'), rows, align='rlrl')}"
    )
