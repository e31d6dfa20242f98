"""Behind switches a chip has one NIC, whatever way its bytes take; latency grows with a group."""

import math
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.mesh_sweep import every_mesh
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.errors import PlacementError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import parse_slice

MB = 2**20
# Microseconds that NCCL took for arrays of no size on 2, 4 and 8 GPUs: operator tables of
# aiconfigurator, commit 095f58a.
MEASURED = {
    ("h100", "all_gather"): (6.07, 8.23, 11.65),
    ("h100", "reduce_scatter"): (6.04, 7.87, 11.01),
    ("h100", "all_reduce"): (7.06, 10.68, 17.46),
    ("h100", "all_to_all"): (7.75, 8.19, 8.71),
    ("b200", "all_gather"): (9.76, 12.42, 18.28),
    ("b200", "reduce_scatter"): (9.64, 12.36, 17.61),
    ("b200", "all_reduce"): (10.9, 16.19, 27.24),
    ("b200", "all_to_all"): (10.61, 11.63, 12.49),
    ("gb200", "all_gather"): (10.27, 12.82),
    ("gb200", "all_reduce"): (11.52, 16.81),
}
MEASURED_KINDS: dict[str, CollectiveKind] = {k: k for k in KINDS}


def nodes_of(mesh: Mesh) -> tuple[int, int]:
    """Nodes that a group of X reaches, and its members in each, by counting its chips."""
    places = list(product(*(range(d.size) for d in mesh.slice.dims)))
    names = [d.name for d in mesh.slice.dims]
    other = [s for parts in (mesh.segments[a] for a in mesh.axes if a != "X") for s in parts]
    mine = [
        place
        for place in places
        if all(place[names.index(s.dim)] // s.stride % s.size == 0 for s in other)
    ]
    nodes = {place[:-1] for place in mine}
    return len(nodes), len(mine) // len(nodes)


@pytest.mark.parametrize("factor", [1, 2, 5])
@pytest.mark.parametrize("on", ["h100:8x64", "h100:4x48", "gb200:72x16", "a100:8x40"])
def test_no_placement_of_a_group_beats_the_bytes_through_its_nics(on: str, factor: float) -> None:
    slice_ = parse_slice(on).oversubscribed(factor)
    fabric = slice_.chip.switched
    assert fabric is not None
    meshes = every_mesh(("X", "Y"), slice_)
    for mesh in map(meshes.mesh, range(meshes.count)):
        nodes, members = nodes_of(mesh)
        if nodes == 1:
            continue
        group, lacks = mesh.group("X"), 1e9 * (1 - 1 / nodes)
        nics = members * fabric.nic_bytes_per_s
        least: dict[CollectiveKind, float] = {
            "all_gather": lacks / nics,
            "reduce_scatter": lacks / nics,
            "all_reduce": 2 * lacks / nics,
            "all_to_all": lacks / nodes / nics,
            "permute": 1e9 / fabric.nic_bytes_per_s,
        }
        for kind, seconds in least.items():
            assert collective_time(kind, 1e9, group).lower_s >= seconds * (1 - 1e-9), (mesh, kind)
        if all(fan.reduces for fan in group.fans):
            added = collective_time("all_reduce", 1e9, group, in_network_reduction=True)
            assert added.lower_s >= 1e9 / nics * (1 - 1e-9)


def test_eight_gpus_gather_alike_under_one_leaf_and_under_four() -> None:
    seconds = {
        where: collective_time(
            "all_gather", 256 * MB, parse_mesh(f"Y=8@{where},X=64", on="h100:8x64").group("Y")
        ).expected_s
        for where in ("leaf8", "spine2+leaf4")
    }
    assert seconds["leaf8"] == pytest.approx(seconds["spine2+leaf4"])
    assert seconds["leaf8"] == pytest.approx(256 * MB * 7 / 8 / 5e10, rel=0.01)


def test_an_oversubscribed_spine_binds_what_crosses_it() -> None:
    on = parse_slice("h100:8x64")
    fair, scarce = (
        collective_time("all_gather", 1e9, parse_mesh("X=2@spine,Y=256", on=s).group("X"))
        for s in (on, on.oversubscribed(4))
    )
    assert scarce.bandwidth_s == pytest.approx(4 * fair.bandwidth_s)
    with pytest.raises(PlacementError, match="cannot be oversubscribed"):
        on.oversubscribed(0.5)
    with pytest.raises(PlacementError, match="cannot be oversubscribed"):
        parse_slice("v5e:4x4").oversubscribed(2)


@pytest.mark.parametrize(("chip", "op"), MEASURED)
def test_latency_in_a_node_is_what_nccl_takes(chip: str, op: str) -> None:
    kind = MEASURED_KINDS[op]
    for gpus, measured in zip((2, 4, 8), MEASURED[chip, op], strict=False):
        mesh = parse_mesh(f"X={gpus}", on=f"{chip}:{gpus}")
        latency_s = collective_time(kind, 0.0, mesh.group("X")).latency_s
        within = 0.25 if kind == "all_to_all" else 0.05
        assert latency_s * 1e6 == pytest.approx(measured, rel=within)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "permute"])
def test_latency_grows_with_every_doubling_of_nodes(kind: CollectiveKind) -> None:
    latencies = [
        collective_time(kind, 0.0, parse_mesh(f"X={8 * n}", on=f"h100:8x{n}").group("X")).latency_s
        for n in (1, 2, 4, 32, 64, 2048)
    ]
    growth = [b - a for a, b in pairwise(latencies)]
    level = growth[0]
    assert level > 0
    assert growth == pytest.approx([level, level, 3 * level, level, 5 * level])


def test_an_all_reduce_of_16_mb_feels_a_thousand_times_more_gpus() -> None:
    small, large = (
        collective_time("all_reduce", 16e6, parse_mesh(f"X={8 * n}", on=f"h100:8x{n}").group("X"))
        for n in (2, 2048)
    )
    assert large.expected_s > 2.5 * small.expected_s
    assert large.binds == "hop latency"


def test_a_launch_is_paid_once_for_both_halves_of_an_all_reduce() -> None:
    group = parse_mesh("X=16", on="h100:8x2").group("X")
    half, whole = (collective_time(k, 1e6, group) for k in ("all_gather", "all_reduce"))
    assert whole.expected_s == pytest.approx(2 * half.expected_s - group.fans[0].launch_s)


def test_switches_that_add_take_one_hop_a_tier() -> None:
    group = parse_mesh("X=1024", on="h100:8x128").group("X")
    added = collective_time("all_reduce", 0.0, group, in_network_reduction=True)
    hops_s = sum(f.hop_s for f in group.fans)
    assert added.latency_s == pytest.approx(group.fans[0].launch_s + hops_s)


@given(st.integers(2, 72))
def test_beyond_the_gpus_of_a_host_a_rack_forms_a_tree(gpus: int) -> None:
    """A rack of GB200 has 18 hosts of 4 GPUs."""
    fan = parse_mesh(f"X={gpus}", on=f"gb200:{gpus}").group("X").fans[0]
    hops = gpus - 1 if gpus <= 4 else 3 + math.log2(gpus / 4)
    assert fan.hops == pytest.approx(hops)
