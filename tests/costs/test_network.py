"""Network times against the book's own numbers, and the properties every formula must have."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.network import KINDS, CollectiveKind, collective_time, permute_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Fan, Group, Ring, parse_mesh
from rooflight.hardware.slice import parse_slice

LINK, HOP = 4.5e10, 1e-6
BOTH_WAYS = 2 * LINK
GB = 1e9


def ring(size: int, *, dim: str = "x", stride: int = 1, wraps: bool = True) -> Ring:
    return Ring(dim, size, stride, wraps, LINK, HOP)


def _all_close(found: dict[str, float], wanted: dict[str, float]) -> bool:
    return found.keys() == wanted.keys() and all(
        math.isclose(found[k], wanted[k], rel_tol=1e-6) for k in wanted
    )


def torus(*sizes: int, wraps: bool = True) -> Group:
    names = "xyz"
    return Group(tuple(ring(n, dim=names[i], wraps=wraps) for i, n in enumerate(sizes)), ())


# The book's numbers


def test_large_rings_follow_the_rules_of_thumb() -> None:
    rule = {kind: collective_time(kind, GB, torus(64)).rule_s for kind in KINDS}
    assert math.isclose(rule["all_gather"], GB / BOTH_WAYS, rel_tol=1e-6) and math.isclose(
        rule["reduce_scatter"], GB / BOTH_WAYS, rel_tol=1e-6
    )
    assert math.isclose(rule["all_reduce"], 2 * GB / BOTH_WAYS, rel_tol=1e-6)
    assert math.isclose(rule["all_to_all"], GB / BOTH_WAYS / 4, rel_tol=1e-6)


def test_a_ring_of_seven_needs_three_hops() -> None:
    assert math.isclose(collective_time("all_gather", 0, torus(7)).latency_s, 3 * HOP, rel_tol=1e-6)


def test_all_to_all_in_three_dimensions_is_bound_by_the_longest_axis() -> None:
    mesh = parse_mesh("X=4,Y=4,Z=8", on="v5p:4x4x8")
    assert math.isclose(
        collective_time("all_to_all", GB, mesh.group("XYZ")).rule_s, 8.6805556e-5, rel_tol=1e-6
    )


def test_a_tiny_array_over_three_axes_costs_the_hops_of_all_three() -> None:
    assert math.isclose(
        collective_time("all_gather", 1000, torus(4, 4, 4)).lower_s, 6e-6, rel_tol=1e-6
    )


def test_pop_quiz_two_of_chapter_three() -> None:
    group = parse_mesh("X=4,Y=4", on="v5e:4x4").group("Y")
    large, small = 2048 * 8192 * 2, 256 * 256 * 2
    assert math.isclose(
        collective_time("all_gather", large, torus(4)).rule_s, 3.7282702e-4, rel_tol=1e-6
    )
    assert math.isclose(
        collective_time("all_gather", large, group).bandwidth_s, 5.5924053e-4, rel_tol=1e-6
    )
    assert math.isclose(collective_time("all_gather", small, group).lower_s, 3e-6, rel_tol=1e-6)


def test_exercise_3_2_gathers_on_one_and_two_axes_of_a_cube() -> None:
    array = 1024 * 4096 * 2
    assert math.isclose(
        collective_time("all_gather", array / 4, torus(4)).rule_s, 2.3301689e-5, rel_tol=1e-6
    )
    both = collective_time("all_gather", array, torus(4, 4))
    assert math.isclose(both.rule_s, 4.6603378e-5, rel_tol=1e-6)
    assert math.isclose(both.latency_s, 4e-6, rel_tol=1e-6)
    reduced = collective_time("all_reduce", array / 16, torus(4))
    assert math.isclose(reduced.rule_s, 1.1650844e-5, rel_tol=1e-6)


def test_exercise_3_3_a_256_byte_gather_costs_two_hops() -> None:
    gather = collective_time("all_gather", 256, torus(4))
    assert math.isclose(gather.lower_s, 2e-6, rel_tol=1e-6)
    assert gather.binds == "hop latency"


def test_exercise_2_5_corner_to_corner_uses_two_ports_and_six_hops() -> None:
    sent = permute_time(2**24, parse_slice("v5e:4x4"), source=(0, 0), target=(3, 3))
    assert math.isclose(sent.bandwidth_s, 1.8641351e-4, rel_tol=1e-6)
    assert math.isclose(sent.latency_s, 6e-6, rel_tol=1e-6)
    assert math.isclose(sent.expected_s, 1.9241351e-4, rel_tol=1e-6)


def test_a_one_way_ring_is_a_line() -> None:
    line = collective_time("all_gather", GB, torus(8, wraps=False))
    assert math.isclose(line.bandwidth_s, 0.019444444, rel_tol=1e-6)


def test_collectives_inside_one_h100_node() -> None:
    group = parse_mesh("X=8", on="h100:8").group("X")
    seconds = {k: collective_time(k, GB, group).bandwidth_s for k in KINDS}
    assert math.isclose(seconds["all_gather"], 0.0019444444, rel_tol=1e-6)
    assert math.isclose(seconds["all_reduce"], 0.0038888889, rel_tol=1e-6)
    assert math.isclose(seconds["all_to_all"], 2.4305556e-4, rel_tol=1e-6)
    in_switch = collective_time("all_reduce", GB, group, in_network_reduction=True)
    assert math.isclose(in_switch.bandwidth_s, 0.0022222222, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("nbytes", "exact", "rule"),
    [(4096 * 65536 * 2, 0.0010439157, 0.0011930465), (2**25, 6.5244729e-5, 7.4565404e-5)],
)
def test_gathers_in_one_node_exact_and_by_rule(nbytes: int, exact: float, rule: float) -> None:
    gather = collective_time("all_gather", nbytes, parse_mesh("X=8", on="h100:8").group("X"))
    assert math.isclose(gather.bandwidth_s, exact, rel_tol=1e-6)
    assert math.isclose(gather.rule_s, rule, rel_tol=1e-6)


def test_each_tier_of_a_superpod_has_its_effective_bandwidth() -> None:
    group = parse_mesh("X=1024", on="h100:8x128").group("X")
    gather = collective_time("all_gather", GB, group)
    rates = {t.name: GB / t.bandwidth_s for t in gather.tiers}
    # All that a node lacks comes by its NICs, from beyond the spine too: 127 of 128 parts.
    assert _all_close(rates, {"node": 5.1428571e11, "leaf": 4.0314961e11, "spine": 1.7066667e13})
    assert gather.binds == "leaf bandwidth"


def test_two_nodes_gather_faster_over_the_leaf_than_inside() -> None:
    gather = collective_time("all_gather", GB, parse_mesh("X=16", on="h100:8x2").group("X"))
    rates = {t.name: GB / t.bandwidth_s for t in gather.tiers}
    assert _all_close(rates, {"node": 5.1428571e11, "leaf": 8e11})


def test_all_to_all_over_two_nodes_is_four_and_a_half_times_slower() -> None:
    one = collective_time("all_to_all", GB, parse_mesh("X=8", on="h100:8").group("X"))
    two = collective_time("all_to_all", GB, parse_mesh("X=16", on="h100:8x2").group("X"))
    assert math.isclose(two.rule_s / one.rule_s, 4.5, rel_tol=1e-6)


def test_a_gather_beside_a_sharded_axis_in_a_scalable_unit() -> None:
    array = 8192 * 32768 * 2
    narrow = parse_mesh("X=64,Y=4", on="h100:8x32").group("X")
    assert math.isclose(
        collective_time("all_gather", array / 4, narrow).bandwidth_s, 0.0013002342, rel_tol=1e-6
    )
    wide = parse_mesh("X=16,Y=16", on="h100:8x32").group("X")
    assert math.isclose(
        collective_time("all_gather", array / 16, wide).rule_s, 6.7108864e-4, rel_tol=1e-6
    )


@pytest.mark.parametrize(
    ("axes", "tiers"),
    [
        ("X=64,Y=4", {"node": 5.5555556e-4, "leaf": 0.0025}),
        ("X=8@leaf,Y=32@leaf+node", {"leaf": 6.25e-4}),
    ],
)
def test_a_reduction_is_cheaper_when_an_inner_axis_shards_the_array(
    axes: str, tiers: dict[str, float]
) -> None:
    mesh = parse_mesh(axes, on="h100:8x32")
    nbytes = GB / mesh.size("Y")
    reduced = collective_time("all_reduce", nbytes, mesh.group("X"), in_network_reduction=True)
    assert _all_close({t.name: t.rule_s for t in reduced.tiers}, tiers)


def test_a_reduction_across_scalable_units_uses_all_their_links() -> None:
    mesh = parse_mesh("X=4,Y=256", on="h100:8x128")
    nbytes = 8192 * 32768 * 2 / 256
    reduced = collective_time("all_reduce", nbytes, mesh.group("X"), in_network_reduction=True)
    assert math.isclose(reduced.rule_s, 4.194304e-5, rel_tol=1e-6)


# Several slices


def test_a_gather_over_two_slices_adds_the_exchange_of_shards_between_them() -> None:
    mesh = parse_mesh("D=2,X=16,Y=16", on="2*v5e:16x16")
    both, inner = (collective_time("all_gather", GB, mesh.group(a)) for a in ("DXY", "XY"))
    outer = both.tiers[1]
    hosts = mesh.slice.num_hosts / 2
    assert outer.name == "dcn"
    assert math.isclose(outer.bandwidth_s, GB / 2 / (hosts * 2.5e10), rel_tol=1e-6)
    assert math.isclose(
        both.expected_s, inner.expected_s + outer.bandwidth_s + outer.latency_s, rel_tol=1e-6
    )
    assert max(inner.lower_s, outer.bandwidth_s) <= both.lower_s <= both.expected_s


def test_a_slice_exchanges_only_its_own_part_of_an_all_to_all() -> None:
    mesh = parse_mesh("D=2,X=16,Y=16", on="2*v5e:16x16")
    both = collective_time("all_to_all", GB, mesh.group("DXY"))
    inner = collective_time("all_to_all", GB / 2, mesh.group("XY"))
    assert math.isclose(both.tiers[0].bandwidth_s, inner.bandwidth_s, rel_tol=1e-6)


# What no number of the book says


def test_a_long_slow_axis_binds_alone() -> None:
    slow, fast = ring(16, dim="x", stride=8), ring(2, dim="y")
    gather = collective_time("all_gather", GB, Group((slow, fast), ()))
    assert gather.binds == "x bandwidth"
    assert math.isclose(gather.bandwidth_s, GB * 15 / 32 / slow.bytes_per_s, rel_tol=1e-6)


def test_a_shift_along_a_line_comes_back_the_long_way() -> None:
    line = collective_time("permute", 1e6, torus(5, wraps=False))
    assert math.isclose(line.expected_s, 1e6 / LINK + 4 * HOP, rel_tol=1e-6)
    assert math.isclose(
        collective_time("permute", 1e6, torus(5)).expected_s, 1e6 / LINK + HOP, rel_tol=1e-6
    )


def test_a_group_of_one_chip_costs_nothing() -> None:
    alone = collective_time("all_reduce", GB, Group((), ()))
    assert alone.expected_s == 0
    assert alone.binds == "nothing"


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce"])
def test_a_torus_does_not_reduce_in_its_links(kind: CollectiveKind) -> None:
    with pytest.raises(UsageError, match="does not reduce"):
        collective_time(kind, GB, torus(4), in_network_reduction=True)


@pytest.mark.parametrize("chip", [(0,), (0, 4), (0, -1)])
def test_a_chip_outside_the_slice_is_refused(chip: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="has no chip"):
        permute_time(1, parse_slice("v5e:4x4"), source=(0, 0), target=chip)


# Properties

rings = st.builds(
    Ring,
    dim=st.sampled_from("xyz"),
    size=st.integers(2, 32),
    stride=st.sampled_from([1, 2, 4]),
    wraps=st.booleans(),
    link_bytes_per_s=st.sampled_from([4.5e10, 9e10]),
    hop_s=st.sampled_from([1e-6, 2e-6]),
)
fans = st.builds(
    Fan,
    dim=st.sampled_from(["node", "leaf", "spine"]),
    size=st.integers(2, 64),
    members=st.integers(1, 8),
    unit_chips=st.just(8),
    egress_bytes_per_s=st.sampled_from([4e11, 1.28e13]),
    hop_s=st.sampled_from([1e-6, 5e-6]),
    reduces=st.booleans(),
)
groups = st.builds(
    Group,
    rings=st.lists(rings, max_size=3, unique_by=lambda r: r.dim).map(tuple),
    fans=st.lists(fans, max_size=2, unique_by=lambda f: f.dim).map(tuple),
)
kinds = st.sampled_from(KINDS)
sizes_in_bytes = st.floats(1, 1e12)


@given(kinds, sizes_in_bytes, groups)
def test_bounds_are_in_order(kind: CollectiveKind, nbytes: float, group: Group) -> None:
    priced = collective_time(kind, nbytes, group)
    slack = 1 + 1e-12
    assert priced.lower_s <= priced.expected_s * slack
    assert priced.expected_s <= priced.upper_s * slack


@given(kinds, sizes_in_bytes, st.floats(1, 10), groups)
def test_more_bytes_are_never_faster(
    kind: CollectiveKind, nbytes: float, times: float, group: Group
) -> None:
    less, more = (collective_time(kind, n, group) for n in (nbytes, nbytes * times))
    for name in ("lower_s", "expected_s", "upper_s", "rule_s"):
        assert getattr(less, name) <= getattr(more, name) * (1 + 1e-12)


@given(sizes_in_bytes, groups)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(nbytes: float, group: Group) -> None:
    scatter, gather, reduced = (
        collective_time(k, nbytes, group) for k in ("reduce_scatter", "all_gather", "all_reduce")
    )
    assert math.isclose(reduced.expected_s, scatter.expected_s + gather.expected_s, rel_tol=1e-6)
    assert math.isclose(reduced.upper_s, scatter.upper_s + gather.upper_s, rel_tol=1e-6)


@given(sizes_in_bytes, groups)
def test_the_rule_of_thumb_is_never_below_the_bandwidth_term(nbytes: float, group: Group) -> None:
    for kind in ("all_gather", "reduce_scatter"):
        priced = collective_time(kind, nbytes, group)
        assert priced.rule_s >= priced.bandwidth_s * (1 - 1e-12)


@given(kinds, sizes_in_bytes, st.lists(rings, min_size=1, max_size=3, unique_by=lambda r: r.dim))
def test_wrapping_round_is_never_slower(
    kind: CollectiveKind, nbytes: float, axes: list[Ring]
) -> None:
    def with_wraps(wraps: bool) -> Group:
        return Group(
            tuple(Ring(r.dim, r.size, r.stride, wraps, r.link_bytes_per_s, r.hop_s) for r in axes),
            (),
        )

    closed, line = (collective_time(kind, nbytes, with_wraps(w)) for w in (True, False))
    assert closed.expected_s <= line.expected_s * (1 + 1e-12)


@given(kinds, sizes_in_bytes, st.lists(rings, min_size=1, max_size=3, unique_by=lambda r: r.dim))
def test_faster_links_are_never_slower(
    kind: CollectiveKind, nbytes: float, axes: list[Ring]
) -> None:
    first, *rest = axes
    faster = Ring(
        first.dim, first.size, first.stride, first.wraps, 2 * first.link_bytes_per_s, first.hop_s
    )
    before = collective_time(kind, nbytes, Group(tuple(axes), ()))
    after = collective_time(kind, nbytes, Group((faster, *rest), ()))
    assert after.expected_s <= before.expected_s * (1 + 1e-12)
