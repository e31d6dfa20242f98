"""A collective as an `Answer`: its time, the bounds of that, what a simulator or a run made of it.

In: a `NetworkTime`, and where it runs. Out: what terminal, explorer and notebook show of it.
"""

from collections.abc import Sequence

from rooflight.costs.network import NetworkTime
from rooflight.hardware.mesh import Mesh
from rooflight.ui.answer import Answer, Column, Fact, Table, show_count, show_seconds
from rooflight.units import format_si

_BOUNDS = (
    *(Column("bound", "bound"), Column("seconds", "time", show_seconds)),
    Column("meaning", "meaning", is_wide=True),
)
_TIERS = (
    Column("tier", "tier"),
    Column("bandwidth_s", "bandwidth", show_seconds),
    Column("latency_s", "latency", show_seconds),
    Column("rule_s", "rule of thumb", show_seconds),
)


def collective_answer(
    time: NetworkTime,
    mesh: Mesh,
    axes: Sequence[str],
    *,
    simulated_s: float | None = None,
    measured_s: float | None = None,
) -> Answer:
    """One collective over axes of a mesh."""
    chips = mesh.group(axes).size
    group = f"{','.join(axes)} ({chips} chip{'s' if chips > 1 else ''})"
    beside = (
        ("simulated", simulated_s, "message by message on the links"),
        ("measured", measured_s, "the fastest of several runs here"),
    )
    return _answer(
        time,
        f" of {format_si(time.nbytes, 'B')} over {group}",
        [f"on {mesh.slice}, mesh {mesh}"],
        [(name, seconds, words) for name, seconds, words in beside if seconds is not None],
        [Fact("chips", "chips in a group", chips, show_count)],
    )


def network_answer(time: NetworkTime) -> Answer:
    """The same where nobody knows which chips."""
    return _answer(time, f" of {format_si(time.nbytes, 'B')}", [], [], [])


def _answer(
    time: NetworkTime,
    what: str,
    where: Sequence[str],
    beside: Sequence[tuple[str, float, str]],
    facts: Sequence[Fact],
) -> Answer:
    bounds = (
        ("expected", time.expected_s, "bandwidth and latency"),
        ("lower", time.lower_s, "everything overlaps"),
        ("upper", time.upper_s, "nothing overlaps: one axis or tier after another"),
        ("rule of thumb", time.rule_s, "the book's, for large groups"),
        *beside,
    )
    tiers = tuple((t.name, t.bandwidth_s, t.latency_s, t.rule_s) for t in time.tiers)
    kind, seconds = time.kind.replace("_", "-"), show_seconds(time.expected_s)
    return Answer(
        sentences=(f"{kind}{what}: {seconds}, bound by {time.binds}", *where),
        facts=(
            Fact("expected_s", "time", time.expected_s, show_seconds, "bandwidth and latency"),
            Fact("binds", "bound by", time.binds),
            *facts,
        ),
        tables=(
            Table("times", "The time, its bounds, and what it is beside", _BOUNDS, bounds, 0),
            *([Table("tiers", "By tier of the network", _TIERS, tiers)] if tiers else []),
        ),
    )
