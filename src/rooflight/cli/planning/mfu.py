"""`rooflight mfu`: one measured rate, its utilisation under each convention, and who uses which."""

from dataclasses import asdict

from rooflight.api.values import parse_seq
from rooflight.cli.flags import add_choice, add_dtype, add_on
from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.utilisation import REMATS, Utilisation, utilisation
from rooflight.models.presets import load_model
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si, parse_count

HELP = "utilisation of a training run under each convention, and who uses which"


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset, such as llama3-70b, or the path of a config.json")
    add_on(parser)
    parser.add_argument(
        "--tokens-per-s",
        required=True,
        metavar="COUNT",
        help="trained tokens per second, all chips",
    )
    parser.add_argument("--seq", required=True, help="tokens per sequence: 8k")
    add_dtype(parser)
    add_choice(
        parser,
        "--remat",
        REMATS,
        default="none",
        help="what is computed twice: none (default), attention, or full",
    )
    parser.set_examples(
        "rooflight mfu llama3-70b --on v5p:4x4x4 --tokens-per-s 24k --seq 8192 --remat full",
        "rooflight mfu deepseek-v3 --on h100:8x256 --tokens-per-s 3M --seq 4096",
    )


def run(args: Namespace) -> int:
    model, target = load_model(args.model), parse_slice(args.on)
    dtype, seq = parse_dtype(args.dtype), parse_seq(args.seq)
    tokens_per_s = _rate(args.tokens_per_s)
    found = utilisation(
        model_graph(model),
        tokens_per_s=tokens_per_s,
        seq=seq,
        peak_flops=target.num_chips * target.chip.peak_flops(dtype.name),
        remat=args.remat,
    )
    warn_of_gaps(model)
    if args.json:
        head = {"model": model.name, "on": str(target), "dtype": dtype.name}
        asked = {"tokens_per_s": tokens_per_s, "seq": seq, "remat": args.remat}
        print_json("mfu", head | asked | {"conventions": [asdict(u) for u in found]})
        return 0
    show(_text(model.title, found, target, f"{tokens_per_s:,} tokens/s, {seq:,} per sequence"))
    return 0


def _rate(text: str) -> int:
    rate = parse_count(text, what="--tokens-per-s")
    if not 1 <= rate <= 10**18:
        raise UsageError(f"--tokens-per-s must be a rate, got {text}", hint="write 24k")
    return rate


def _text(title: str, found: tuple[Utilisation, ...], target: Slice, rate: str) -> str:
    lowest, highest = min(u.fraction for u in found), max(u.fraction for u in found)
    rows = [
        (u.convention, f"{u.fraction:.1%}", format_si(u.flops_per_token, ""), u.used_by)
        for u in found
    ]
    return (
        f"{title}: {lowest:.1%} to {highest:.1%} of the peak, by convention\n"
        f"on {target}, {format_count(target.num_chips)} chips; {rate}\n\n"
        f"{table(('convention', 'utilisation', 'FLOPs/token', 'who'), rows, align='lrrl')}"
    )
