"""Several models on one pool of chips as an `Answer`: who has what, and what they share."""

from collections.abc import Iterator

from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.plan.serving.fleet.pool import PoolPlan
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Table,
    Value,
    show_count,
    show_dollars,
    show_seconds,
    show_share,
)
from rooflight.units import many


def pool_answer(pool: PoolPlan) -> Answer:
    """The whole in a line, then a row for each workload."""
    if not pool.fleets:
        none = [plan.question for plan in pool.plans if plan.best is None]
        if not none:
            return Answer(("no chip serves all of these models; give more chips by --on",))
        return Answer(tuple(f"no fleet serves {one.model.name} so: {one.demand}" for one in none))
    head = f"{many(pool.num_chips, 'chip')}, ${pool.dollars_per_hour:,.2f} an hour"
    return Answer(
        sentences=(f"{head} for {many(len(pool.fleets), 'model')} on one pool", *_shared(pool)),
        facts=(Fact("dollars_per_hour", "an hour", pool.dollars_per_hour, show_dollars),),
        tables=(_fleets(pool), _workloads(pool)),
        notes=(
            "no replica serves two models; workloads of one model share its replicas, and the"
            " smaller priority goes first",
        ),
    )


def _shared(pool: PoolPlan) -> Iterator[str]:
    for fleet in pool.spares:
        yield f"shared: {fleet.spare} spare x {fleet.way.setup.on}, for whichever loses a replica"
    apart = pool.apart_dollars
    if apart is not None and apart > pool.dollars_per_hour:
        less = 1 - pool.dollars_per_hour / apart
        yield f"apart, each with its own spares: ${apart:,.2f} an hour; the pool saves {less:.0%}"


def _fleets(pool: PoolPlan) -> Table:
    columns = (
        *(Column("model", "model"), Column("replicas", "replicas"), Column("dtypes", "dtypes")),
        Column("chips", "chips", show_count),
        Column("dollars_per_hour", "$/h", show_dollars),
        Column("busy_share", "busy", show_share),
    )
    rows = tuple(_fleet(fleet) for fleet in pool.fleets)
    return Table("fleets", "Replicas of each model, without spares", columns, rows, is_first=True)


def _fleet(fleet: Fleet) -> tuple[Value, ...]:
    setup = fleet.way.setup
    return (
        *(setup.model.name, f"{fleet.replicas} x {setup.on} {setup.layout}", str(setup.precision)),
        fleet.replicas * setup.on.num_chips,
        fleet.replicas * fleet.way.dollars,
        fleet.simulation.busy_share,
    )


def _workloads(pool: PoolPlan) -> Table:
    columns = (
        Column("model", "model"),
        Column("priority", "priority", show_count),
        Column("rate", "requests/s", lambda rate: f"{rate:g}"),
        Column("slo", "SLO"),
        Column("ttft_p95_s", "TTFT p95", show_seconds),
        Column("tpot_p95_s", "TPOT p95", show_seconds),
        Column("good_share", "within it", show_share),
    )
    rows = tuple(row for fleet in pool.fleets for row in _rows(fleet))
    return Table("workloads", "What each workload gets", columns, rows, is_first=True)


def _rows(fleet: Fleet) -> Iterator[tuple[Value, ...]]:
    found, demand = fleet.simulation, fleet.demand
    slos = {one.priority: one.slo for one in demand.classes}
    rates = {p: sum(one.rate for one in demand.classes if one.priority == p) for p in slos}
    parts = [(p.priority, slos[p.priority], rates[p.priority], p) for p in found.by_priority]
    first = min(slos, default=0)
    for priority, slo, rate, part in parts or [(first, demand.slo, demand.rate, found)]:
        times = (q and q.p95 for q in (part.ttft, part.tpot))
        yield fleet.way.setup.model.name, priority, rate, _slo(slo), *times, part.good_share


def _slo(slo: Slo) -> str:
    return str(slo) or "none"
