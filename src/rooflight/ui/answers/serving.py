"""Serving as `Answer`s: a fleet with its latencies and cost; the frontier of latency and cost."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rooflight.hardware.calibration import Calibration
from rooflight.measure.load.tally import Measured
from rooflight.measure.load.tune import Tuned, merit
from rooflight.plan.serving.fleet.evidence import novel_of
from rooflight.plan.serving.fleet.frontier import Bound, Curve, Point
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.plan.serving.simulate.run import Simulation
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
    show_share,
)
from rooflight.ui.svg.frontier import FrontierLine, StepBreakdown, frontier_svg
from rooflight.units import format_seconds, format_si, many


def fleet_answer(model: str, plan: FleetPlan) -> Answer:
    """The cheapest fleet; or that there is none. `model` is as it was named."""
    fleet, demand = plan.best, plan.question.demand
    if fleet is None:
        return Answer((f"no fleet serves {model} so: {demand}",))
    return Answer(
        sentences=(
            f"{fleet}: {many(fleet.num_chips, 'chip')}, ${fleet.dollars_per_hour:,.2f} an hour",
            f"{model}, {fleet.way.setup.precision}; {demand}",
            *fleet.way.setup.told,
        ),
        facts=(
            Fact("dollars_per_hour", "an hour", fleet.dollars_per_hour, show_dollars),
            Fact("replicas", "replicas", fleet.replicas, None, f"and {fleet.spare} spare"),
            Fact(
                "dollars_per_million",
                "a million tokens",
                fleet.dollars_per_million,
                show_dollars,
                f"{show_dollars(fleet.dollars_per_million_in)} in,"
                f" {show_dollars(fleet.dollars_per_million_out)} out",
            ),
            Fact(
                "paid",
                "times the physics",
                fleet.paid,
                lambda v: f"{v:.2f}",
                "replicas paid for, over those that catalog rates would need",
            ),
        ),
        tables=(_latencies(fleet),),
        notes=(
            "",
            _cost(fleet),
            _needs(fleet),
            f"floor: {fleet.physics_replicas:.2f} replicas if every step were full and at its roof:"
            f" you pay {fleet.paid:.2f}x the physics",
            _simulated(fleet),
            trust(fleet.way.calibration),
            *_first_token(fleet),
            *_evidence(plan, fleet),
        ),
    )


def _latencies(fleet: Fleet) -> Table:
    columns = (
        Column("latency", ""),
        *(Column(f"{n}_s", n, show_seconds) for n in ("slo", "floor", "p50", "p95", "p99")),
    )
    rows = tuple((*known, q.p50, q.p95, q.p99) for *known, q in fleet.latencies)
    return Table("latencies", "Simulated latencies of requests", columns, rows, is_first=True)


def _cost(fleet: Fleet) -> str:
    cached = fleet.dollars_per_million_cached
    rest = "" if cached is None else f", ${cached:.3f} cached"
    chip, paid = fleet.way.setup.on.chip, fleet.dollars_per_hour / fleet.num_chips
    source = chip.source_of("dollars_per_hour")
    where = ""
    if source and math.isclose(paid, chip.dollars_per_hour or 0):
        several = f"the middle of {len(chip.prices)} clouds"
        whose = several if len(chip.prices) > 1 else " ".join(chip.prices)
        where = f" on demand ({whose}, {source.checked})"
    return (
        f"cost: ${fleet.dollars_per_million_in:.3f} a million tokens in{rest},"
        f" ${fleet.dollars_per_million_out:.3f} out; ${fleet.dollars_per_million:.3f} of all;"
        f" ${paid:.3g} a chip-hour{where}"
    )


def _needs(fleet: Fleet) -> str:
    way, rate = fleet.way, fleet.demand.rate
    bound = way.bound
    first = "prompts" if bound.prefill_s > bound.generate_s else "tokens"
    return (
        f"binds: {first}; prompts need {rate * bound.prefill_s:.2f} replicas, tokens"
        f" {rate * bound.generate_s:.2f}, in all at least {way.least_replicas};"
        f" at most {bound.rows:.0f} sequences each, by the {bound.rows_by}"
    )


def _simulated(fleet: Fleet) -> str:
    found, broken = fleet.simulation, ", spares broken" if fleet.spare else ""
    part = ""
    if found.replicas < fleet.replicas:
        part = f" (a part of the fleet at its share, {fleet.simulated_rate:.4g} requests/s)"
    return (
        f"simulated: {found.good_share:.1%} of {found.num_requests:,} requests within the SLO on"
        f" {many(found.replicas, 'replica')}{part}{broken}; {found.busy_share:.0%} busy,"
        f" {found.mean_rows:.0f} sequences per step"
    )


def _first_token(fleet: Fleet) -> Iterator[str]:
    """What times to the first token rest on, and how surely each SLO is kept."""
    known, demand = fleet.way.first_token, fleet.demand
    if fleet.way.calibration and not known:
        yield "TTFT: too few measured it on such chips; prompts are priced as they slow tokens"
    elif known:
        yield trust(known, "TTFT")
    if fleet.chances:
        kept = ", ".join(f"{name} {_chance(one)}" for name, one in fleet.chances.items())
        more = "; --confidence 90 plans for more" if demand.confidence < 90 else ""
        yield f"chance that {demand.percentile:g}% keep it, by held-out errors: {kept}{more}"


def _chance(chance: float) -> str:
    """Errors have longer tails than a normal curve, so nothing is certain."""
    return "over 99%" if chance > 0.99 else f"{chance:.0%}"


def _evidence(plan: FleetPlan, best: Fleet) -> Iterator[str]:
    """What of the layout nobody measured, or which such layout could be cheaper."""
    if novel := novel_of(best.way.setup.layout, best.way.setup.on.chip):
        what = ", ".join(novel)
        yield f"extrapolates: nobody measured {what}; of what was tried nothing else keeps the SLO"
    elif best.way.unseen:
        what = ", ".join(best.way.unseen)
        yield (
            f"extrapolates: fewer than two measured rows have {what}, so it had to be"
            f" x{best.way.doubt:.2f} cheaper than others to come first"
        )
    new = plan.found[best.way.setup.on.chip.name].untried
    if new:
        dollars = (new.fewest_replicas + best.spare) * new.dollars
        yield (
            f"worth measuring: {new.setup.on} {new.setup.layout} could cost ${dollars:,.2f} an hour"
            f" at least, but fewer than two measured rows have {', '.join(new.unseen)}"
        )


def trust(known: Calibration | None, what: str = "calibrated") -> str:
    """What the seconds of a step rest on, and how far they are off."""
    if known is None:
        return "uncalibrated: the roofline bound; measured engines take 1.5-3x as long"
    return (
        f"{what}: engine {known.engine} on {known.chip}, {known.rows} measured rows; held-out"
        f" median error {known.median_error:.0%}, 80% within x{math.exp(known.spread):.2f}"
    )


def searched(plan: FleetPlan) -> str:
    """How much was tried."""
    ways = sum(search.num_ways for search in plan.found.values())
    simulations = sum(search.num_simulations for search in plan.found.values())
    tried = f"{many(ways, 'way')} to serve on {many(len(plan.found), 'kind')} of chip"
    return f"{tried}, {simulations:,} simulations"


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
_KEPT = ("a token", "$/M", "layout", "slice", "batch", "binds")


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
    rows = tuple(_point(p, price) for p in best)
    caption = "What nothing beats in time and cost, fastest first"
    table = Table("frontier", caption, _COLUMNS, rows, marked=chosen % len(best), keep=_KEPT)
    return Answer(
        sentences=(
            f"{model}, {point.config.context:,} positions: {format_seconds(fast.step_s)} per token"
            f" at batch {fast.batch}, up to {rate} per chip at {format_seconds(cheap.step_s)} and"
            f" batch {cheap.batch}",
            f"{bound} time of a step; {_trust(bound, found, best)}",
            *point.config.setup.told,
        ),
        facts=_point_facts(point, curve, price),
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


def _point(point: Point, price: float | None) -> tuple[Value, ...]:
    config = point.config
    return (
        *(point.step_s, point.tokens_per_s, point.tokens_per_s_per_chip),
        *(point.dollars_per_million(price), point.batch),
        *(str(config.on), str(config.layout), str(config.precision), point.binds),
    )


def _point_facts(point: Point, curve: Curve, price: float | None) -> tuple[Fact, ...]:
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


def tuned_answer(found: Tuned, traffic: str, slo: str) -> Answer:
    """Settings of a server: predicted, measured, predicted again."""
    first, within = found.trials[0].name, f", within {slo}" if slo else ""
    merits = [merit(t.predicted.simulation) for t in found.trials]
    ties = merits.count(merits[0])
    planned = first if ties == 1 else f"{ties} settings tie, such as {first}"
    lines = [f"best by prediction: {planned}; {traffic}{within}"]
    if found.tried:
        best, after, more = found.best.name, found.next_best, format_seconds(found.step_s)
        unseen = "" if after in found.tried else ", which was not started"
        lines = [
            f"best of {many(len(found.tried), 'setting')} measured: {best}; {traffic}{within}",
            f"first by prediction: {planned}" if first != best else "the first by prediction, too",
            f"refitted: its steps take {found.pace:.3g} times as long as planned, and {more};"
            f" the first of all {len(found.trials)} is then {after.name}{unseen}",
        ]
    shown = ("predicted", *(("measured", "refitted") if found.tried else ()))
    columns = [Column("setting", "setting")]
    for said in shown:
        columns += [
            Column(f"{said}_ttft_s", f"{said} TTFT", show_seconds),
            Column(f"{said}_tpot_s", "TPOT", show_seconds),
            Column(f"{said}_good", "good", show_share),
        ]
    every = [(one.predicted.simulation, one.measured, one.refitted) for one in found.trials]
    cells = [[v for times in one[: len(shown)] for v in _means(times)] for one in every]
    rows = tuple((one.name, *said) for one, said in zip(found.trials, cells, strict=True))
    lines += [f"{one.name}: {one.failure}" for one in found.trials if one.failure]
    seen = [(one.name, one.measured) for one in found.trials if one.measured]
    lines += [f"{name}: {fault}" for name, measured in seen for fault in measured.faults]
    lines += [f"left out: {words}" for words in found.refused]
    marked = found.trials.index(found.best) if found.tried else 0
    return Answer(
        tuple(lines),
        notes=("times are means; good is the share of requests within the SLO",),
        tables=(Table("trials", "Settings", tuple(columns), rows, marked),),
    )


def _means(found: Simulation | Measured | None) -> tuple[Value, ...]:
    """Mean times to the first token and per token, and the share within the SLO."""
    if found is None:
        return (None, None, None)
    times = (found.ttft, found.tpot)
    return (*(one.mean if one else None for one in times), found.good_share)
