"""Collectives behind switches: payloads arrive, ports bind as the formula says, traces are read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.netsim.fabric import Fabric, fabric_of, switched_groups
from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh

NODE = parse_mesh("X=8", on="h100:8")
TWO_NODES = parse_mesh("X=8", on="h100:4x2")
MESHES = (
    NODE,
    TWO_NODES,
    parse_mesh("X=2,Y=4", on="h100:8"),
    parse_mesh("X=2,Y=4", on="h100:4x2"),
    parse_mesh("X=4,Y=2", on="h100:4x2"),
)


@settings(max_examples=10)
@given(
    kind=st.sampled_from(KINDS),
    mesh=st.sampled_from(MESHES),
    names=st.sampled_from(["X", "Y", "XY"]),
    nbytes=st.floats(1, 1e9),
)
def test_every_payload_arrives_behind_switches(
    kind: CollectiveKind, mesh: Mesh, names: str, nbytes: float
) -> None:
    """`simulate` replays each run and raises if one chunk is missing, doubled or misplaced."""
    axes = [a for a in names if a in mesh.axes] or ["X"]
    result = simulate(kind, nbytes, mesh, axes)
    assert 0 <= result.utilisation <= 1
    assert result.seconds == max(h.end_s for h in result.hops)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_large_array_takes_what_the_formula_says(kind: CollectiveKind, mesh: Mesh) -> None:
    axes = list(mesh.axes)
    formula = collective_time(kind, 256e6, mesh.group(axes)).expected_s
    assert simulate(kind, 256e6, mesh, axes).seconds == pytest.approx(
        formula, rel=0.035
    )  # filling the tiers


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_array_takes_the_hops_of_its_tiers(kind: CollectiveKind) -> None:
    """An exchange and a shift go straight to their tier; a gather climbs one after another."""
    fans = TWO_NODES.group("X").fans
    hops = [fan.hop_s for fan in fans]
    turns = {"all_reduce": 2 * sum(hops), "all_to_all": max(hops), "permute": max(hops)}
    expected = fans[0].launch_s + turns.get(kind, sum(hops))
    assert simulate(kind, 8, TWO_NODES, "X").seconds == pytest.approx(expected, rel=1e-3)


def test_a_gather_in_a_node_sends_the_same_bytes_from_every_chip() -> None:
    sent = [0.0] * 8
    for hop in simulate("all_gather", 8e6, NODE, "X").hops:
        if hop.source < 8:
            assert hop.target == 8, "a chip of a node sends to its switch"
            sent[hop.source] += hop.nbytes
    assert sent == pytest.approx([7e6] * 8)


def test_switches_are_numbered_after_the_chips_inner_ones_first() -> None:
    places = {
        p for h in simulate("all_gather", 8e6, TWO_NODES, "X").hops for p in (h.source, h.target)
    }
    assert places == set(range(11))  # eight chips, two nodes, one leaf


def test_groups_follow_the_axes_that_are_asked_for() -> None:
    mesh = parse_mesh("X=2,Y=4", on="h100:4x2")
    assert switched_groups(mesh, ["Y"])[5] == [4, 5, 6, 7]
    assert switched_groups(mesh, ["X"])[5] == [1, 5]


def test_a_place_of_a_message_is_the_switch_it_passes() -> None:
    fabric = fabric_of(TWO_NODES)
    assert isinstance(fabric, Fabric)
    assert fabric.place(fabric.lane(fabric.tier(0, 3), 0, 3)) == 8
    assert fabric.place(fabric.lane(fabric.tier(5, 7), 5, 7)) == 9
    assert fabric.place(fabric.lane(fabric.tier(0, 7), 0, 7)) == 10


def test_a_torus_has_no_switches() -> None:
    with pytest.raises(UsageError, match="no switches"):
        fabric_of(parse_mesh("X=4", on="v5e:4x1"))


def test_an_exchange_of_many_chips_is_refused() -> None:
    with pytest.raises(UsageError, match="up to 64 chips"):
        simulate("all_to_all", 1e6, parse_mesh("X=128", on="h100:8x16"), "X")
