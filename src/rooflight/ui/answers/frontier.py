"""The serving frontier as an `Answer`: latency against throughput against cost, and what binds.

In: the curves of `plan.serving.fleet.frontier` and the points that nothing beats. Out: what
terminal and explorer show of them.
"""

from collections.abc import Iterable, Mapping, Sequence

from rooflight.plan.serving.fleet.frontier import Bound, Curve, Point
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
from rooflight.ui.answers.serving import trust
from rooflight.ui.svg.frontier import FrontierLine, StepBreakdown, frontier_svg
from rooflight.units import format_seconds, format_si

_LINES = 8  # a plot of more lines is not read


def _rate(value: float) -> str:
    return format_si(value, "").strip()


_COLUMNS = (
    Column("step_s", "a token", show_seconds),
    Column("tokens_per_s", "tokens/s", _rate),
    Column("tokens_per_s_per_chip", "a chip", _rate),
    Column("dollars_per_million", "$/M", lambda v: f"{v:.2f}", unknown="unknown"),
    Column("batch", "batch", show_count),
    *(Column("on", "slice"), Column("layout", "layout"), Column("dtypes", "dtypes")),
    Column("binds", "binds"),
)
_KEEP = ("a token", "$/M", "layout", "slice", "batch", "binds")


def frontier_answer(
    model: str,
    bound: Bound,
    found: Sequence[Curve],
    best: Sequence[Point],
    *,
    price: float | None = None,
    chosen: int = -1,
) -> Answer:
    """The points that nothing beats, fastest first, and the curve of the chosen one."""
    fast, cheap, point = best[0], best[-1], best[chosen]
    curve = curve_of(found, point)
    rate = format_si(cheap.tokens_per_s_per_chip, "tokens/s")
    rows = tuple(_row(p, price) for p in best)
    caption = "What nothing beats in time and cost, fastest first"
    table = Table("frontier", caption, _COLUMNS, rows, marked=chosen % len(best), keep=_KEEP)
    return Answer(
        sentences=(
            f"{model}, {point.config.context:,} positions: {format_seconds(fast.step_s)} per token"
            f" at batch {fast.batch}, up to {rate} per chip at {format_seconds(cheap.step_s)} and"
            f" batch {cheap.batch}",
            f"{bound} time of a step; {_trust(bound, found, best)}",
        ),
        facts=_facts(point, curve, price),
        pictures=(frontier_picture(model, bound, found, best, curve),),
        tables=(table, _by_batch(curve)),
        notes=(
            "",
            f"binds under {curve.config}: {_regions(curve)}",
            f"its prompts: {format_seconds(curve.first_token_s)} to the first token",
        ),
    )


def curve_of(found: Iterable[Curve], point: Point) -> Curve:
    """All batches of the way that a point is of."""
    return next(c for c in found if c.config == point.config)


def _trust(bound: Bound, found: Sequence[Curve], best: Sequence[Point]) -> str:
    """What the times of the frontier rest on, once for all chips that rest on the same."""
    if bound != "expected":
        return "catalog rates"
    configs = [point.config for point in best]
    return "; ".join(dict.fromkeys(trust(c.calibration) for c in found if c.config in configs))


def _row(point: Point, price: float | None) -> tuple[Value, ...]:
    config = point.config
    return (
        *(point.step_s, point.tokens_per_s, point.tokens_per_s_per_chip),
        *(point.dollars_per_million(price), point.batch),
        *(str(config.on), str(config.layout), str(config.precision), point.binds),
    )


def _facts(point: Point, curve: Curve, price: float | None) -> tuple[Fact, ...]:
    known = curve.calibration
    source = f"calibrated: {known.engine} on {known.chip}" if known else "the roofline bound"
    dollars, rate = point.dollars_per_million(price), point.tokens_per_s_per_chip
    return (
        Fact("step_s", "a token", point.step_s, show_seconds, f"batch {point.batch:,}; {source}"),
        Fact("tokens_per_s_per_chip", "throughput of a chip", rate, _show_rate),
        Fact("dollars_per_million", "a million tokens", dollars, show_dollars, "output tokens"),
        Fact("binds", "binds", point.binds, None, "the part that takes longest"),
        Fact("first_token_s", "first token", curve.first_token_s, show_seconds, "of one prompt"),
    )


def _show_rate(value: float) -> str:
    return format_si(value, "tokens/s")


def _regions(curve: Curve) -> str:
    """What binds along a curve."""
    return "; ".join(
        f"{name} at batch {low}" if low == high else f"{name} from batch {low} to {high}"
        for name, low, high in curve.regions
    )


def frontier_picture(
    model: str, bound: Bound, found: Sequence[Curve], best: Iterable[Point], curve: Curve
) -> Picture:
    """Curves that reach the frontier, and the parts of one of them by batch."""
    reached = {str(p.config) for p in best}
    lines = tuple(
        FrontierLine(str(c.config), tuple((p.step_s, p.tokens_per_s_per_chip) for p in c.points))
        for c in [c for c in found if str(c.config) in reached][:_LINES]
    )
    names = _parts(curve)
    parts = tuple((n, tuple((float(p.batch), p.parts[n]) for p in curve.points)) for n in names)
    title = f"{model}: {bound} time of a step"
    drawn = frontier_svg(title, lines, StepBreakdown(str(curve.config), parts))
    caption = (
        "Above: throughput of a chip against the time of a token, a line for each way to serve that"
        " is best somewhere. Below: the parts of a step. What binds under"
    )
    return Picture("frontier", drawn, f"{caption} {curve.config}: {_regions(curve)}.")


def _parts(curve: Curve) -> list[str]:
    """Those of a step that take any time."""
    return [n for n in curve.points[0].parts if any(p.parts[n] for p in curve.points)]


def _by_batch(curve: Curve) -> Table:
    names = _parts(curve)
    rows = [(p.batch, {n: p.parts[n] for n in names}) for p in curve.points]
    caption = f"Parts of a step by batch, {curve.config}"
    return split_table("by_batch", caption, Column("batch", "batch", show_count), rows)


def split_table(
    key: str, caption: str, first: Column, rows: Sequence[tuple[int, Mapping[str, float]]]
) -> Table:
    """Seconds by part, a row for each size."""
    columns = (first, *(Column(f"{n}_s", n, show_seconds) for n in rows[0][1]))
    cells = tuple((size, *parts.values()) for size, parts in rows)
    return Table(key, caption, columns, cells, is_folded=True)
