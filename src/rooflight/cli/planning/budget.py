"""`rooflight budget`: what a training run takes; or the model and tokens that a budget is for."""

import math
from collections.abc import Sequence

from rooflight.api.values import parse_seq, whole_sequences
from rooflight.cli.output import print_json, show, suggest
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.planning.budget_page import (
    goodput_text,
    run_document,
    run_text,
    short,
    spending_document,
    spending_text,
)
from rooflight.cli.planning.model import warn_of_gaps
from rooflight.cli.planning.why_not_page import candidate_document
from rooflight.dtypes import parse_dtype
from rooflight.errors import ParseError, UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.budget import (
    Budget,
    Terms,
    affordable_flops,
    allocations,
    run_flops,
)
from rooflight.plan.training.questions.run_cost import CONVENTION, run_cost
from rooflight.plan.training.search.constraint import degrees_text
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.units import format_seconds, parse_count

HELP = "FLOPs, days, dollars and kWh of a training run, or the best model for a budget"

_MOST_TOKENS = 10**18
_MOST_DOLLARS = 10**15
_MOST_HOURS = 10**12
_LEAST_PART = 1e-6  # of the peak; less is a slip of the pen, and days would no longer print
_FLOPS_RANGE = (10**12, 10**36)  # from a model of some thousand parameters to far beyond any
_WITH_MODEL, _WITHOUT_MODEL = ("tokens", "on"), ("flops", "dollars")
_TOKENS_PER_CHIP, _LEAST_BATCH = 1 << 10, 4 << 20  # of a step, where no batch is given


def configure(parser: Parser) -> None:
    parser.add_argument(
        "model", nargs="?", help="a preset or a config.json; left out with --flops or --dollars"
    )
    parser.add_argument("--tokens", metavar="COUNT", help="tokens to train on: 15T")
    parser.add_argument("--on", metavar="HARDWARE", help="chip or slice: v5e, v5p:16x20x28")
    parser.add_argument(
        "--mfu",
        metavar="PART",
        help="model FLOPs utilisation you reach: 40%%; without it, that of the best plan",
    )
    parser.add_argument("--seq", help="tokens per sequence, such as 8k: counts attention as well")
    parser.add_argument(
        "--batch",
        metavar="TOKENS",
        help="of the plan, without --mfu: 16Mi (default: about 1Ki a chip, at least 4Mi)",
    )
    parser.add_argument("--flops", metavar="COUNT", help="a budget in FLOPs, to spend best: 6.3e24")
    parser.add_argument("--dollars", metavar="COUNT", help="a budget in dollars, to spend best: 1M")
    parser.add_argument("--price", help="dollars per chip-hour, in place of the catalog's: 4.2")
    parser.add_argument("--mtbf-hours", metavar="HOURS", help="between failures of one chip: 50k")
    parser.add_argument("--dtype", help="element format: bf16 (default), int8, fp8")
    parser.set_examples(
        "rooflight budget llama3-70b --on v5p:16x20x28 --tokens 15T --mfu 40% --seq 8192",
        "rooflight budget llama3.1-405b --on h100:2048 --tokens 1T --seq 8k",
        "rooflight budget --flops 6.3e24",
        "rooflight budget --dollars 1M --on v5e:16x16 --mfu 40%",
    )


def run(args: Namespace) -> int:
    if args.model is None:
        return _spend(args)
    _refuse(args, _WITHOUT_MODEL, why="is a budget to find a model for, but a model is given")
    _require(args, _WITH_MODEL, what="the budget of a model")
    if args.mfu is None:
        return _forecast(args)
    _refuse(args, ("batch",), why="goes with a plan, and --mfu says how fast it is")
    return _price(args)


def _forecast(args: Namespace) -> int:
    """Forward, at the pace of the best plan."""
    _require(args, ("seq",), what="without --mfu the budget of a model")
    model, on, seq = load_model(args.model), parse_slice(args.on), parse_seq(args.seq)
    tokens = _count(args.tokens, "--tokens", 1, _MOST_TOKENS)
    dtype = parse_dtype(args.dtype or "bf16")
    batch = whole_sequences(args.batch, seq) if args.batch else _usual_batch(on, seq)
    question = train_question(model_graph(model), on, batch, seq, dtype)
    best = plan_training(question, count=1).candidates[0]
    terms, cost = _terms(args, best.mfu), run_cost(question, best, tokens)
    budgets = {
        CONVENTION: Budget(run_flops(question.graph, tokens=tokens, seq=seq)[CONVENTION], terms)
    }
    warn_of_gaps(model)
    if args.json:
        head: dict[str, object] = {"model": model.name, "tokens": tokens, "seq": seq}
        head["plan"] = {"batch": batch * seq, **candidate_document(best, question.overlap)}
        head["goodput"] = cost.goodput
        head["chip_hours_with_failures"] = cost.chip_hours_with_failures
        print_json("budget", head | run_document(budgets, terms))
        return 0
    show(run_text(f"{model.title} on {short(tokens)} tokens", budgets, terms))
    said = best.forecast
    show(
        f"pace: {degrees_text(best)}, {format_seconds(said.seconds)} for a step of"
        f" {short(batch * seq)} tokens, 80 % between {format_seconds(said.low_s)} and"
        f" {format_seconds(said.high_s)}, by {said.basis.text}"
    )
    show(goodput_text(cost))
    asked = f"rooflight plan train {args.model} --on {args.on} --batch {batch * seq} --seq {seq}"
    suggest(f"{asked} --tokens {args.tokens} --checkpoint-s 60   # failures and goodput")
    return 0


def _usual_batch(on: Slice, seq: int) -> int:
    """Sequences of about 1,024 tokens for every chip, 4 Mi at least, a power of two."""
    tokens = max(_LEAST_BATCH, _TOKENS_PER_CHIP * on.num_chips)
    return max(1, 2 ** round(math.log2(tokens / seq)))


def _price(args: Namespace) -> int:
    """Forward: a model and tokens are given."""
    model, terms = load_model(args.model), _terms(args, _part(args.mfu))
    tokens = _count(args.tokens, "--tokens", 1, _MOST_TOKENS)
    seq = None if args.seq is None else parse_seq(args.seq)
    flops = run_flops(model_graph(model), tokens=tokens, seq=seq)
    budgets = {name: Budget(c, terms) for name, c in flops.items()}
    warn_of_gaps(model)
    if args.json:
        head: dict[str, object] = {"model": model.name, "tokens": tokens, "seq": seq}
        print_json("budget", head | run_document(budgets, terms))
        return 0
    show(run_text(f"{model.title} on {short(tokens)} tokens", budgets, terms))
    if seq is None:
        asked = f"--on {args.on} --tokens {args.tokens} --mfu {args.mfu}"
        suggest(f"rooflight budget {args.model} {asked} --seq 8192")
    return 0


def _spend(args: Namespace) -> int:
    """Inverse: a budget is given."""
    if (args.flops is None) == (args.dollars is None):
        raise UsageError(
            "a budget is asked of a model, of --flops, or of --dollars, one of them",
            hint="for instance `rooflight budget --flops 6.3e24`",
        )
    _refuse(args, ("tokens", "seq", "batch"), why="goes with a model, which is not given")
    if args.dollars is not None or _has_terms(args):
        _require(args, ("on", "mfu"), what="the time or the price of a budget")
    terms = _terms(args, _part(args.mfu)) if args.on is not None else None
    flops = _flops(args, terms)
    budget = None if terms is None else Budget(flops, terms)
    if args.json:
        print_json("budget", spending_document(flops, allocations(flops), budget))
        return 0
    show(spending_text(flops, allocations(flops), budget))
    return 0


def _has_terms(args: Namespace) -> bool:
    asked = (args.on, args.mfu, args.price, args.mtbf_hours, args.dtype)
    return any(value is not None for value in asked)


def _flops(args: Namespace, terms: Terms | None) -> float:
    if terms is None or args.dollars is None:
        return float(_count(args.flops, "--flops", *_FLOPS_RANGE))
    return affordable_flops(_count(args.dollars, "--dollars", 1, _MOST_DOLLARS), terms)


def _terms(args: Namespace, mfu: float) -> Terms:
    hours = args.mtbf_hours
    return Terms(
        parse_slice(args.on),
        mfu=mfu,
        dtype=parse_dtype(args.dtype or "bf16").name,
        price=None if args.price is None else _dollars(args.price),
        mtbf_hours=None if hours is None else _count(hours, "--mtbf-hours", 1, _MOST_HOURS),
    )


def _require(args: Namespace, names: Sequence[str], *, what: str) -> None:
    missing = [f"--{name}" for name in names if getattr(args, name) is None]
    if missing:
        raise UsageError(
            f"{what} needs {' and '.join(missing)}",
            hint="for instance `rooflight budget llama3-70b --on v5p:4x4x4 --tokens 15T --mfu 40%`",
        )


def _refuse(args: Namespace, names: Sequence[str], *, why: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} {why}", hint=f"leave --{name} out")


def _count(text: str, flag: str, least: int, most: int) -> int:
    value = parse_count(text, what=flag)
    if not least <= value <= most:
        raise UsageError(
            f"{flag} {text} is out of range", hint=f"write a number from {least:g} to {most:g}"
        )
    return value


def _part(text: str) -> float:
    """A part of a whole, 40% or 0.4; `Terms` checks that it is not more."""
    number, hint = text.strip().removesuffix("%"), "write 40% or 0.4"
    part = _number(number, f"--mfu {text!r}", hint) / (100 if "%" in text else 1)
    if part < _LEAST_PART:
        raise UsageError(f"--mfu {text} is not a part of the peak", hint=hint)
    return part


def _dollars(text: str) -> float:
    value = _number(text, f"--price {text!r}", "write dollars per chip-hour, such as 4.2")
    if not 1e-6 <= value <= 1e6:
        raise UsageError(f"--price must be a price, got {text}", hint="dollars per chip-hour: 4.2")
    return value


def _number(text: str, what: str, hint: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ParseError(f"{what} is not a number", hint=hint)
    return value
