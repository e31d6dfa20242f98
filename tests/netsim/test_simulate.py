"""The simulator by itself: payloads arrive, wrong schedules are refused, hops can be watched."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.netsim.check import check_copies, check_links, check_moves, check_sums
from rooflight.costs.netsim.engine import Flight, mirror, run
from rooflight.costs.netsim.gather import gather_schedule, gather_shares, one_share, own_units
from rooflight.costs.netsim.simulate import simulate, trace_json
from rooflight.costs.netsim.torus import torus_of
from rooflight.errors import ModelError, UnknownNameError, UsageError
from rooflight.hardware.mesh import Mesh, Ring, parse_mesh
from rooflight.hardware.slice import parse_slice

from .send import simulate_send

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
LINE_OF_FOUR = parse_mesh("X=4", on="v5e:4x1")


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    mesh=st.sampled_from(
        [
            parse_mesh("X=2,Y=3", on="v5e:2x3"),
            parse_mesh("X=2,A=2,Y=4", on="v5e:4x4"),
            parse_mesh("X=2,A=3,Y=2", on="v5p:2x3x2"),
            parse_mesh("X=4,A=4", on="v5e:16x1"),
        ]
    ),
    names=st.sampled_from(["X", "A", "Y", "XY", "AX"]),
    nbytes=st.floats(1, 1e9),
)
def test_every_payload_arrives_and_no_link_is_over_full(
    kind: str, mesh: Mesh, names: str, nbytes: float
) -> None:
    """`simulate` replays each run and raises if one chunk is missing, doubled or misplaced."""
    axes = [a for a in names if a in mesh.axes]
    result = simulate(kind, nbytes, mesh, axes)
    assert 0 <= result.utilisation <= 1
    assert result.seconds == max((h.end_s for h in result.hops), default=0)


def test_a_ring_gather_sends_the_same_bytes_over_every_link() -> None:
    result = simulate("all_gather", 16e6, parse_mesh("X=16", on="v5e:16x1"), "X")
    assert math.isclose(result.max_link_bytes, 16e6 * 15 / 16 / 2)
    per_link: dict[tuple[int, int], float] = {}
    for hop in result.hops:
        per_link[hop.source, hop.target] = per_link.get((hop.source, hop.target), 0) + hop.nbytes
    assert len(per_link) == 32
    assert all(math.isclose(n, result.max_link_bytes) for n in per_link.values())


def test_a_reduce_scatter_is_a_gather_seen_backwards() -> None:
    gather, scatter = (
        simulate(kind, 1e6, LINE_OF_FOUR, "X") for kind in ("all_gather", "reduce_scatter")
    )
    there = {(h.source, h.target, h.nbytes) for h in gather.hops}
    assert there == {(h.target, h.source, h.nbytes) for h in scatter.hops}
    assert scatter.seconds == gather.seconds


def test_one_chip_alone_sends_nothing() -> None:
    result = simulate("all_reduce", 1e6, parse_mesh("X=1,Y=4", on="v5e:4x1"), "X")
    assert result.hops == ()
    assert result.seconds == 0


def test_a_corner_to_corner_send_leaves_by_two_ports() -> None:
    result = simulate_send(1e6, parse_slice("v5e:4x4"), source=(0, 0), target=(3, 3))
    assert {h.target for h in result.hops if h.source == 0} == {1, 4}
    assert {h.source for h in result.hops if h.target == 15} == {14, 11}


def test_a_trace_is_plain_json_with_a_schema() -> None:
    trace = json.loads(json.dumps(trace_json(simulate("all_gather", 4e6, LINE_OF_FOUR, "X"))))
    assert trace["schema"] == 1
    assert set(trace) == {
        "schema",
        "kind",
        "nbytes",
        "seconds",
        "hops",
        "max_link_bytes",
        "utilisation",
    }
    assert set(trace["hops"][0]) == {"start_s", "end_s", "source", "target", "nbytes", "label"}
    assert trace["hops"][0]["label"] == "shard 0 piece 0"


def test_the_fastest_shares_load_every_axis_alike() -> None:
    rings = (
        Ring("x", 2, 1, False, 45e9, 1e-6),
        Ring("y", 8, 1, True, 45e9, 1e-6),
        Ring("z", 3, 1, True, 45e9, 1e-6),
    )
    loads = dict.fromkeys("xyz", 0.0)
    for share in gather_shares(rings):
        held = 1
        for ring in share.order:
            loads[ring.dim] += share.fraction * held * (ring.size - 1) / ring.bytes_per_s
            held *= ring.size
    assert math.isclose(max(loads.values()), min(loads.values()))


@pytest.mark.parametrize("name", ["all_scatter", "psum"])
def test_unknown_collectives_get_a_hint(name: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        simulate(name, 1, LINE_OF_FOUR, "X")
    assert error.value.hint


def test_axes_that_leave_the_torus_are_refused() -> None:
    with pytest.raises(UsageError, match="leave the torus"):
        simulate("all_gather", 1, parse_mesh("X=2,Y=256", on="2*v5e:16x16"), "X")


# Wrong schedules


def gather_of_four() -> tuple[list[Flight], dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """A correct gather over a line of four: its flights, what was there and what must be."""
    torus = torus_of(LINE_OF_FOUR.slice)
    rings = LINE_OF_FOUR.group("X").rings
    schedule = gather_schedule(torus, 1e6, one_share(rings), pieces=1, growing=False)
    everything = sum(map(own_units, range(4)))
    start = {(0, chip): own_units(chip) for chip in range(4)}
    return run(schedule), start, {(0, chip): everything for chip in range(4)}


@pytest.mark.parametrize("index", range(12))
def test_a_gather_with_a_message_lost_is_refused(index: int) -> None:
    flights, start, finish = gather_of_four()
    check_copies(flights, start, finish)
    with pytest.raises(ModelError):
        check_copies(flights[:index] + flights[index + 1 :], start, finish)


@pytest.mark.parametrize("index", range(12))
def test_a_reduction_with_a_message_lost_or_doubled_is_refused(index: int) -> None:
    flights, owned, whole = gather_of_four()
    sums = mirror(flights)
    check_sums(sums, whole, owned)
    with pytest.raises(ModelError):
        check_sums(sums[:index] + sums[index + 1 :], whole, owned)
    with pytest.raises(ModelError):
        check_sums([*sums, sums[index]], whole, owned)


def test_a_message_sent_before_its_payload_is_there_is_refused() -> None:
    flights, start, finish = gather_of_four()
    early = [f._replace(start=0, sent=1, end=2) for f in flights]
    with pytest.raises(ModelError, match="does not have"):
        check_copies(early, start, finish)


def test_two_messages_on_one_link_at_once_are_refused() -> None:
    flights, _, _ = gather_of_four()
    check_links(flights)
    with pytest.raises(ModelError, match="two messages"):
        check_links([*flights, flights[0]])


def test_a_payload_that_moves_twice_is_refused() -> None:
    flights, start, _ = gather_of_four()
    with pytest.raises(ModelError, match="not there"):
        check_moves([flights[0], flights[0]], start, start)
