"""`rooflight fit serve`: what a chip holds of a served model, and how much of it fits."""

from dataclasses import asdict

from rooflight.api.values import parse_seq
from rooflight.cli.flags import add_choice, add_on
from rooflight.cli.output import picked, print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.serving.serving_flags import SERVING_LAYOUT, add_dtypes
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.engine_sizes import AskedSizes
from rooflight.plan.serving.step.layout import parse_serving_layout, precision_of
from rooflight.plan.serving.step.memory import ChipUsage, ServingMemory
from rooflight.ui.text.table import table
from rooflight.units import format_si, whole

HELP = "whether a served model fits into a chip's memory: weights, caches, activations"

_MOST = 10**9  # sequences


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-70b, or the path of a config.json")
    parser.add_argument("--layout", required=True, help=SERVING_LAYOUT)
    add_on(parser)
    parser.add_argument("--seq", required=True, metavar="TOKENS", help="positions per sequence: 8k")
    parser.add_argument("--sequences", help="so many are held at once (not with --solve batch)")
    add_dtypes(parser)
    add_choice(
        parser,
        "--solve",
        ("batch", "seq"),
        what="unknown",
        help="find the most sequences, or the longest, that fit",
    )
    parser.set_examples(
        "rooflight fit serve llama3-70b --layout tp=16,kv=batch --on v5e:4x4 --dtypes int8"
        " --sequences 32 --seq 8192"
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    on, layout = parse_slice(args.on), parse_serving_layout(args.layout)
    tokens = AskedSizes().on(on.chip, None).max_step_tokens
    memory = ServingMemory(model, on, layout, precision_of(model, args.dtypes), tokens)
    seq = parse_seq(args.seq)
    batch = max(memory.most_sequences(seq), 1) if args.solve == "batch" else _sequences(args)
    context = max(memory.longest_context(batch), 1) if args.solve == "seq" else seq
    held = memory.held(batch, context)
    if args.json:
        print_json("fit", _document(args, memory, held, batch, context))
    else:
        show(_text(args, memory, held, batch, context))
        suggest(
            f"rooflight frontier {args.model} --on {args.on} --layout {memory.layout}"
            f" --dtypes {memory.precision} --context {context}"
        )
    return 0 if held.fits else 1


def _sequences(args: Namespace) -> int:
    if args.sequences is None:
        raise UsageError(
            "the number of sequences is missing",
            hint="give --sequences 32, or --solve batch to find the most that fit",
        )
    return whole("--sequences", args.sequences, most=_MOST)


def _document(
    args: Namespace, memory: ServingMemory, held: ChipUsage, batch: int, context: int
) -> dict[str, object]:
    return {
        "model": args.model,
        "on": str(memory.on),
        "layout": str(memory.layout),
        "dtypes": str(memory.precision),
        "sequences": batch,
        "context": context,
        "solve": args.solve,
        **picked(held, "fits total_bytes headroom_bytes"),
        **asdict(held),
        "most_sequences": memory.most_sequences(context),
        "longest_context": memory.longest_context(batch),
    }


def _text(args: Namespace, memory: ServingMemory, held: ChipUsage, batch: int, context: int) -> str:
    verdict = "FITS" if held.fits else "DOES NOT FIT"
    left = format_si(abs(held.headroom_bytes), "B")
    over = f"{left} free" if held.fits else f"{left} too much"
    rows = [
        ["weights", format_si(held.weights_bytes, "B"), str(memory.precision).partition("/")[0]],
        ["keys and values", format_si(held.kv_bytes, "B"), memory.precision.kv.name],
        [
            "activations",
            format_si(held.activations_bytes, "B"),
            f"{memory.step_tokens:,} tokens per step",
        ],
        ["all", format_si(held.total_bytes, "B"), f"of {format_si(held.usable_bytes, 'B')}"],
    ]
    return (
        f"{verdict}: {batch:,} sequences of {context:,} positions, {over} on the fullest chip\n"
        f"{args.model} under {memory.layout} on {memory.on}, dtypes {memory.precision}\n\n"
        f"{table(('component', 'bytes', ''), rows, align='lrl')}\n\n"
        f"most sequences of {context:,} positions: {memory.most_sequences(context):,}\n"
        f"longest context of {batch:,} sequences: {memory.longest_context(batch):,} positions"
    )
