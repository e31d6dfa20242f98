"""Serve: latency against throughput against cost, as `rooflight frontier` finds it.

`serve_fleet` has what takes longer: the fleet for a traffic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.calibration import ANY
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.models.presets import model_names
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.fleet.frontier import BOUNDS, Bound, Curve, Point, curves, frontier
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.memory import ServingMemory
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    Value,
    show_count,
    show_dollars,
    show_seconds,
)
from rooflight.ui.browser.view import Field, ViewQuery
from rooflight.ui.svg.frontier import FrontierLine, StepBreakdown, frontier_svg, parts_svg
from rooflight.units import format_seconds, format_si

_LINES = 6  # a plot of more lines is not read
_MOST_SLICES, _MOST_CHIPS = 4, 1024
_LONGEST = 2**24
_LARGEST_BATCH = 65536
_CONTEXTS = tuple(2**n for n in range(8, 18))

FIELDS = (
    Field("model", "Model", "text", "llama3-8b", "a preset or a config.json", model_names()),
    Field(
        *("on", "Slices", "text", "v5e:2x4", "one, or several joined by commas"),
        ("v5e:2x4", "v5e:4x4", "v5e:4x4,v5e:2x4", "v6e:2x4", "v5p:2x2x2", "h100:8"),
    ),
    Field("dtypes", "Dtypes", "text", "bf16", "weights[/cache[/matmuls]]", ("bf16", "int8", "fp8")),
    Field(
        *("context", "Context", "length", "4096", "positions of a sequence"),
        stops=tuple(str(n) for n in _CONTEXTS),
        most=_LONGEST,
    ),
    Field(
        *("batch", "Batch", "count", "32", "where the step is taken apart"),
        stops=tuple(str(2**n) for n in range(13)),
        most=_LARGEST_BATCH,
    ),
    Field("layout", "Layout", "text", "", "such as tp=8,kv=batch; empty: all", is_optional=True),
    Field(
        *("bound", "Time of a step", "choice", "expected"),
        help="expected, or a roofline bound: lower, matmuls (as the book draws it)",
        choices=BOUNDS,
    ),
    Field(
        *("price", "Dollars a chip-hour", "number", "", "empty: the catalog's"),
        least=0.001,
        most=1e5,
        is_optional=True,
    ),
    Field(
        *("tpot", "SLO of time per token", "time", "", "30ms: the cheapest point that keeps it"),
        least=1e-6,
        most=1e4,
        is_optional=True,
    ),
)


@dataclass(frozen=True, slots=True)
class ServeInputs:
    """The question, understood."""

    model: ModelSpec
    slices: tuple[Slice, ...]
    context: int
    bound: Bound
    price: float | None


def ask(question: ViewQuery) -> ServeInputs:
    words = question.text("on").split(",")
    if len(words) > _MOST_SLICES:
        raise UsageError(
            f"{len(words)} slices are more than a plot shows", hint=f"name at most {_MOST_SLICES}"
        )
    slices = tuple(parse_slice(word.strip()) for word in words)
    if max(on.num_chips for on in slices) > _MOST_CHIPS:
        raise UsageError(
            f"a replica of more than {_MOST_CHIPS} chips takes too long to look at",
            hint="ask for a smaller slice: a fleet has many replicas",
        )
    text = question.text("bound")
    bound: Bound = next(name for name in BOUNDS if name == text)
    price = question.number("price") if question.text("price") else None
    return ServeInputs(question.model("model"), slices, question.length("context"), bound, price)


def answer(question: ViewQuery) -> Answer:
    """The frontier, and what the step of one batch is spent on."""
    asked = ask(question)
    layout = question.text("layout")
    found = curves(
        asked.model,
        asked.slices,
        precisions=[parse_precision(question.text("dtypes"))],
        contexts=[asked.context],
        layouts=[parse_serving_layout(layout)] if layout else (),
        bound=asked.bound,
        engine=ANY if asked.bound == "expected" else None,
    )
    best = frontier(found, context=asked.context, price=asked.price)
    kept = _kept(question, best)
    chosen = best[-1] if kept is None else best[kept]
    curve = next(c for c in found if c.config == chosen.config)
    parts = _parts_by_context(asked.model, chosen, question.count("batch"))
    return Answer(
        sentences=_sentences(question, asked, best, kept),
        facts=_facts(chosen, curve, asked.price),
        pictures=(
            Picture("frontier", _frontier_picture(asked, found, best, curve), _caption(curve)),
            *_context_picture(parts, question),
        ),
        tables=(
            Table(
                "frontier",
                "What nothing beats in time and cost, fastest first",
                _COLUMNS,
                tuple(_row(p, asked.price) for p in best),
                marked=len(best) - 1 if kept is None else kept,
            ),
            *_split_tables(curve, parts),
        ),
        command=_command(question),
    )


_COLUMNS = (
    Column("step_s", "a token", show_seconds),
    Column("tokens_per_s", "tokens/s", lambda v: format_si(v, "").strip()),
    Column("tokens_per_s_per_chip", "a chip", lambda v: format_si(v, "").strip()),
    Column("dollars_per_million", "$ a million", show_dollars),
    Column("batch", "batch", show_count),
    Column("on", "slice"),
    Column("layout", "layout"),
    Column("dtypes", "dtypes"),
    Column("binds", "binds"),
)


def _row(point: Point, price: float | None) -> tuple[Value, ...]:
    config = point.config
    return (
        point.step_s,
        point.tokens_per_s,
        point.tokens_per_s_per_chip,
        point.dollars_per_million(price),
        point.batch,
        str(config.on),
        str(config.layout),
        str(config.precision),
        point.binds,
    )


def _kept(question: ViewQuery, best: tuple[Point, ...]) -> int | None:
    """The cheapest point that meets the SLO: the last that is fast enough."""
    if not question.text("tpot"):
        return None
    slos = question.seconds("tpot")
    within = [i for i, point in enumerate(best) if point.step_s <= slos]
    if not within:
        raise UsageError(
            f"no batch takes less than {format_seconds(best[0].step_s)} per token here",
            hint=f"allow {format_seconds(best[0].step_s)} or more, or add chips",
        )
    return within[-1]


def _sentences(
    question: ViewQuery, asked: ServeInputs, best: tuple[Point, ...], kept: int | None
) -> tuple[str, ...]:
    fast, cheap = best[0], best[-1]
    rate = format_si(cheap.tokens_per_s_per_chip, "tokens/s")
    first = (
        f"{asked.model.title}, {asked.context:,} positions: {format_seconds(fast.step_s)} per token"
        f" at batch {fast.batch}, up to {rate} per chip at {format_seconds(cheap.step_s)} and batch"
        f" {cheap.batch:,}"
    )
    if kept is None:
        return (first,)
    point = best[kept]
    within_slo = (
        f"Within {question.text('tpot')} per token: batch {point.batch:,} on {point.config.on}"
        f" {point.config.layout}, {format_seconds(point.step_s)}."
    )
    return first, within_slo


def _facts(point: Point, curve: Curve, price: float | None) -> tuple[Fact, ...]:
    known = curve.calibration
    source = f"calibrated: {known.engine} on {known.chip}" if known else "the roofline bound"
    dollars = point.dollars_per_million(price)
    return (
        Fact("step_s", "a token", point.step_s, show_seconds, f"batch {point.batch:,}; {source}"),
        Fact(
            "tokens_per_s_per_chip",
            "throughput of a chip",
            point.tokens_per_s_per_chip,
            lambda v: format_si(v, "tokens/s"),
        ),
        Fact("dollars_per_million", "a million tokens", dollars, show_dollars, "output tokens"),
        Fact("binds", "binds", point.binds, None, "the part that takes longest"),
        Fact("first_token_s", "first token", curve.first_token_s, show_seconds, "of one prompt"),
    )


def _frontier_picture(
    asked: ServeInputs, found: tuple[Curve, ...], best: tuple[Point, ...], curve: Curve
) -> str:
    """Curves that reach the frontier, and the parts of one of them by batch."""
    reached = {str(p.config) for p in best}
    drawn = [c for c in found if str(c.config) in reached][:_LINES]
    lines = tuple(
        FrontierLine(str(c.config), tuple((p.step_s, p.tokens_per_s_per_chip) for p in c.points))
        for c in drawn
    )
    names = [n for n in curve.points[0].parts if any(p.parts[n] for p in curve.points)]
    parts = tuple((n, tuple((float(p.batch), p.parts[n]) for p in curve.points)) for n in names)
    title = f"{asked.model.title}: {asked.bound} time of a step"
    return frontier_svg(title, lines, StepBreakdown(str(curve.config), parts))


def _caption(curve: Curve) -> str:
    runs = "; ".join(
        f"{name} at batch {low}" if low == high else f"{name} from batch {low} to {high}"
        for name, low, high in curve.regions
    )
    return (
        "Above: throughput of a chip against the time of a token, a line for each way to serve that"
        f" is best somewhere. Below: the parts of a step. What binds under {curve.config}: {runs}."
    )


@dataclass(frozen=True, slots=True)
class _ContextSplit:
    """What a step of one batch is spent on, context by context."""

    label: str
    batch: int
    rows: tuple[tuple[int, dict[str, float]], ...]  # context, seconds by part

    @property
    def names(self) -> list[str]:
        return [n for n in self.rows[0][1] if any(parts[n] for _, parts in self.rows)]


def _parts_by_context(model: ModelSpec, point: Point, batch: int) -> _ContextSplit | None:
    """At every context that the chosen way still holds; None where it holds none."""
    config = point.config
    memory = ServingMemory(model, config.on, config.layout, config.precision)
    steps = serving_model(model, config.on, config.layout, config.precision)
    rows = tuple(
        (context, dict(steps.generate([context] * batch).parts))
        for context in _CONTEXTS
        if memory.most_sequences(context) >= batch
    )
    label = f"{config.on} {config.layout} {config.precision}, batch {batch:,}"
    return _ContextSplit(label, batch, rows) if rows else None


def _context_picture(split: _ContextSplit | None, question: ViewQuery) -> tuple[Picture, ...]:
    if split is None or len(split.rows) < 2:
        return ()
    lines = tuple(
        (n, tuple((float(context), parts[n]) for context, parts in split.rows)) for n in split.names
    )
    picture = parts_svg(
        "Weights, KV cache and FLOPs against the context",
        StepBreakdown(split.label, lines),
        across="positions of a sequence",
    )
    caption = (
        f"The roofline bound of each part of a step of {split.batch:,} sequences, up to the longest"
        " context whose caches fit."
    )
    return (Picture("context", picture, caption),)


def _split_tables(curve: Curve, split: _ContextSplit | None) -> Iterator[Table]:
    names = [n for n in curve.points[0].parts if any(p.parts[n] for p in curve.points)]
    rows = tuple((p.batch, {n: p.parts[n] for n in names}) for p in curve.points)
    caption = f"Parts of a step by batch, {curve.config}"
    yield _split_table("by_batch", caption, Column("batch", "batch", show_count), rows)
    if split:
        caption = f"Parts of a step by context, {split.label}"
        rows = tuple((n, {name: parts[name] for name in split.names}) for n, parts in split.rows)
        yield _split_table("by_context", caption, Column("context", "positions", show_count), rows)


def _split_table(
    key: str, caption: str, first: Column, rows: Sequence[tuple[int, Mapping[str, float]]]
) -> Table:
    columns = (first, *(Column(f"{n}_s", n, show_seconds) for n in rows[0][1]))
    cells = tuple((size, *parts.values()) for size, parts in rows)
    return Table(key, caption, columns, cells, is_folded=True)


def _command(question: ViewQuery) -> str:
    text = question.text
    given = {"layout": "--layout", "price": "--price"}
    rest = "".join(f" {flag} {text(name)}" for name, flag in given.items() if text(name))
    bound = "" if text("bound") == "expected" else f" --bound {text('bound')}"
    return (
        f"rooflight frontier {text('model')} --on {text('on')} --dtypes {text('dtypes')}"
        f" --context {text('context')}{rest}{bound}"
    )
