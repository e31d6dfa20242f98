"""`rooflight frontier`: latency against throughput against cost of a served model."""

from collections.abc import Mapping, Sequence

from rooflight.api.replica import engine_of, read_features
from rooflight.cli.flags import add_choice, add_plot, keywords
from rooflight.cli.output import picked, print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.serving.serving_flags import SERVING_LAYOUT, add_dtypes, add_engine, add_features
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.presets import load_model
from rooflight.plan.serving.fleet.frontier import BOUNDS, Curve, Point, curves, frontier
from rooflight.plan.serving.step.layout import parse_serving_layout, precision_of
from rooflight.ui.answers.serving import curve_of, frontier_answer, frontier_picture
from rooflight.ui.text.answer import answer_text
from rooflight.units import parse_count, parse_length

HELP = "latency against throughput against cost of a served model, and what binds where"

_LONGEST = 10**8
_LARGEST = 10**6


def configure(parser: Parser) -> None:
    parser.add_argument("model", help="a preset such as llama3-70b (see `rooflight model`)")
    parser.add_argument(
        "--on",
        required=True,
        metavar="SLICES",
        help="one or more, joined by commas: v5e:4x4,v5e:2x4",
    )
    parser.add_argument(
        "--context",
        required=True,
        metavar="TOKENS",
        help="positions per sequence: 8k (8,192), or 2048,8192",
    )
    parser.add_argument("--layout", help=f"this layout only: {SERVING_LAYOUT}")
    add_dtypes(parser)
    parser.add_argument(
        "--price", type=float, help="dollars per chip-hour, instead of the catalog's"
    )
    parser.add_argument("--most", default="4096", help="the largest batch to try (4096 by default)")
    add_choice(
        parser,
        "--bound",
        BOUNDS,
        default="expected",
        help="time of a step: expected (default); matmuls, each at its slower roof, without the"
        " network, as the book draws it; lower, everything overlapped",
    )
    add_engine(parser)
    add_features(parser)
    add_plot(parser)
    parser.set_examples(
        "rooflight frontier llama3-70b --on v5e:4x4,v5e:2x4 --dtypes int8 --context 8192",
        "rooflight frontier llama3-70b --on v5e:4x4 --layout tp=16,kv=batch"
        " --dtypes int8/int8/bf16 --context 2048,8192 --bound matmuls",
        "rooflight frontier deepseek-v3 --on h200:8 --dtypes fp8 --context 4096 --price 3",
    )


def run(args: Namespace) -> int:
    model = load_model(args.model)
    warn_of_gaps(model)
    lengths = [parse_length(c, what="--context") for c in args.context.split(",")]
    contexts = [_within(n, "--context", _LONGEST) for n in lengths]
    found = curves(
        model,
        [parse_slice(on) for on in args.on.split(",")],
        precisions=[
            precision_of(model, d) for d in (args.dtypes.split(",") if args.dtypes else [None])
        ],
        contexts=contexts,
        layouts=[parse_serving_layout(args.layout)] if args.layout else (),
        bound=args.bound,
        most=_within(parse_count(args.most, what="--most"), "--most", _LARGEST),
        engine=engine_of(args.engine) if args.bound == "expected" else None,
        features=read_features(model, **keywords(read_features, args)),
    )
    price = _price(args)
    best = {c: frontier(found, context=c, price=price) for c in contexts}
    if args.plot:
        reached = [point for points in best.values() for point in points]
        curve = curve_of(found, best[contexts[0]][-1])
        drawn = frontier_picture(args.model, args.bound, found, reached, curve)
        write_file(args.plot, drawn.svg, flag="--plot")
    if args.json:
        print_json("frontier", _document(args, found, best, price))
        return 0
    answers = [frontier_answer(args.model, args.bound, found, best[c], price=price) for c in best]
    show("\n\n".join(map(answer_text, answers)))
    fast = best[contexts[0]][0].config
    suggest(
        f"rooflight explain serve {args.model} --on {fast.on} --layout {fast.layout}"
        f" --dtypes {fast.precision} --sequences 32 --seq {contexts[0]}"
    )
    return 0


def _within(count: int, flag: str, most: int) -> int:
    if not 1 <= count <= most:
        raise UsageError(f"{flag} {count} is not in 1 to {most:,}", hint=f"write {flag} 2048")
    return count


def _price(args: Namespace) -> float | None:
    if args.price is not None and not 0 < args.price < 1e6:
        raise UsageError(f"--price must be a price, got {args.price:g}", hint="write --price 1.20")
    return args.price


def _document(
    args: Namespace,
    found: Sequence[Curve],
    best: Mapping[int, Sequence[Point]],
    price: float | None,
) -> dict[str, object]:
    return {
        "model": args.model,
        "bound": args.bound,
        "frontier": {
            str(context): [_point_document(p, price) for p in points]
            for context, points in best.items()
        },
        "curves": [
            {
                **_config_document(curve.points[0]),
                "first_token_s": curve.first_token_s,
                "regions": [
                    {"binds": name, "from_batch": low, "to_batch": high}
                    for name, low, high in curve.regions
                ],
                "points": [_point_document(p, price) for p in curve.points],
            }
            for curve in found
        ],
    }


def _config_document(point: Point) -> dict[str, object]:
    config = point.config
    return {
        "on": str(config.on),
        "layout": str(config.layout),
        "dtypes": str(config.precision),
        "context": config.context,
        **config.setup.document,
    }


def _point_document(point: Point, price: float | None) -> dict[str, object]:
    step = point.step
    return {
        **_config_document(point),
        **picked(point, "batch step_s tokens_per_s tokens_per_s_per_chip"),
        "dollars_per_million": point.dollars_per_million(price),
        "binds": point.binds,
        "lower_s": step.lower_s,
        "expected_s": step.expected_s,
        "calibrated_s": point.calibrated_s,
        "upper_s": step.upper_s,
        "parts_s": step.parts,
    }
