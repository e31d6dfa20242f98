"""`rooflight explain serve`: the steps of a layer of a served model."""

from rooflight.api.values import parse_seq
from rooflight.cli.flags import add_choice
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.explain import add_layer, chosen_ops
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.serving.serving_flags import SERVING_LAYOUT, add_dtypes
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.serving.step.explain import PHASES, ServedLayer, served_layer
from rooflight.plan.serving.step.layout import parse_serving_layout, precision_of
from rooflight.ui.text.table import table
from rooflight.units import format_seconds, whole

HELP = "the algorithm of a layer of a served model under a layout, in the notation"

_MOST = 10**6


def configure(parser: Parser) -> None:
    add_layer(parser)
    parser.add_argument("--layout", required=True, help=SERVING_LAYOUT)
    add_choice(
        parser,
        "--phase",
        PHASES,
        default="generate",
        help="a step of generation (default), or the prefill of prompts",
    )
    parser.add_argument("--sequences", default="1", help="of --seq positions (default: 1)")
    add_dtypes(parser)
    parser.set_examples(
        "rooflight explain serve llama3-70b --layout tp=16,kv=batch --on v5e:4x4"
        " --dtypes int8 --sequences 32 --seq 8192 --part attention"
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    ops = chosen_ops(model_graph(model, absorbed=args.phase == "generate"), args)
    sequences = whole("--sequences", args.sequences, most=_MOST)
    seq = parse_seq(args.seq)
    precision = precision_of(model, args.dtypes)
    found = served_layer(
        model,
        parse_slice(args.on),
        parse_serving_layout(args.layout),
        precision,
        phase=args.phase,
        ops=ops,
        contexts=[seq] * sequences,
    )
    if args.json:
        print_json("explain", _document(args, found, sequences, seq))
        return 0
    show(_text(args, found, sequences, seq))
    suggest(
        f"rooflight fit serve {args.model} --on {args.on} --layout {args.layout}"
        f" --dtypes {precision} --sequences {sequences} --seq {seq}"
    )
    return 0


def _document(args: Namespace, found: ServedLayer, sequences: int, seq: int) -> dict[str, object]:
    return {
        "model": args.model,
        "serve": args.phase,
        "on": str(found.mesh.slice),
        "mesh": str(found.mesh),
        "layout": args.layout,
        "sequences": sequences,
        "seq": seq,
        "matmuls_s": found.matmuls_s,
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
        f"{args.model} under {args.layout}, {args.phase}: a layer takes"
        f" {format_seconds(found.matmuls_s)} of matmuls and"
        f" {format_seconds(found.collectives_s)} of collectives, all on the critical path\n"
        f"on {found.mesh.slice}, mesh {found.mesh}; {sequences:,} sequences of {seq:,} positions\n"
        "\n"
        f"{table(('', 'step', 'time', 'bound by'), rows, align='rlrl', keep=('step', 'time'))}"
    )
