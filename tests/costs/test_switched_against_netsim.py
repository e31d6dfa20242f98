"""Formulas behind switches against the simulator of ports, NICs and uplinks, which imports none.

A random group is an axis of a random mesh of two axes on up to 1,024 GPUs, its leaves perhaps
oversubscribed. When bandwidth binds, every collective must agree within 2 %.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from rooflight.costs.mesh_sweep import every_mesh
from rooflight.costs.netsim.rails import (
    Stage,
    exchange_parts,
    gather_stages,
    lines_of,
    scatter_stages,
)
from rooflight.costs.netsim.simulate import simulate, simulate_seconds
from rooflight.costs.network import KINDS, CollectiveKind, NetworkTime, collective_time
from rooflight.hardware.mesh import Group, Mesh, parse_mesh
from rooflight.hardware.slice import SwitchDim, parse_slice

TOLERANCE = 0.02
LARGE = 1e15  # bytes: no hop is felt
EVERYDAY, ALL = 20, 100
NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
GPUS = {"h100": (1, 2, 4, 8), "a100": (2, 8), "b200": (4, 8), "gb200": (4, 8, 36, 72)}

Pricing = Callable[[CollectiveKind, float, Group], NetworkTime]


@cache
def random_groups(count: int) -> tuple[Mesh, ...]:
    """Meshes whose axis X is the group; the first ones are alike for any count."""
    rng, found = random.Random(7), list[Mesh]()
    while len(found) < count:
        chip = rng.choice(list(GPUS))
        gpus, nodes = rng.choice(GPUS[chip]), rng.choice(NODES)
        factor = rng.choice((1, 1, 2, 3, 8))
        if not 2 <= gpus * nodes <= 1024:
            continue
        meshes = every_mesh(
            ("X", "Y"), parse_slice(f"{chip}:{gpus}x{nodes}").oversubscribed(factor)
        )
        mesh = meshes.mesh(rng.randrange(meshes.count))
        if mesh.size("X") > 1:
            found.append(mesh)
    return tuple(found)


@cache
def simulated_s(kind: CollectiveKind, index: int) -> float:
    return simulate_seconds(kind, LARGE, random_groups(ALL)[index], "X")


def disagreements(pricing: Pricing, kind: CollectiveKind, indices: range) -> list[str]:
    """Every group where formula and simulation are too far apart, as text."""
    found: list[str] = []
    for index in indices:
        mesh = random_groups(ALL)[index]
        off = simulated_s(kind, index) / pricing(kind, LARGE, mesh.group("X")).expected_s - 1
        if abs(off) > TOLERANCE:
            found.append(f"{kind} over X of {mesh} on {mesh.slice}: simulated {off:+.1%}")
    return found


def test_random_groups_are_of_every_sort() -> None:
    groups = [mesh.group("X") for mesh in random_groups(ALL)]
    assert {len(g.fans) for g in groups} == {1, 2, 3}
    assert max(mesh.slice.num_chips for mesh in random_groups(ALL)) >= 768
    binds = {collective_time("all_gather", LARGE, g).binds for g in groups}
    assert binds == {"node bandwidth", "leaf bandwidth", "spine bandwidth"}


@pytest.mark.parametrize("kind", KINDS)
def test_random_groups_agree_with_the_simulator(kind: CollectiveKind) -> None:
    assert not disagreements(collective_time, kind, range(EVERYDAY))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_random_groups_agree_with_the_simulator(kind: CollectiveKind) -> None:
    assert not disagreements(collective_time, kind, range(ALL))


@pytest.mark.parametrize("factor", [0.95, 1.05])
@pytest.mark.parametrize("kind", KINDS)
def test_a_formula_five_percent_wrong_is_found(kind: CollectiveKind, factor: float) -> None:
    def planted(kind: CollectiveKind, nbytes: float, group: Group) -> NetworkTime:
        true = collective_time(kind, nbytes, group)
        return replace(true, expected_s=factor * true.expected_s)

    assert len(disagreements(planted, kind, range(4))) == 4


def test_separate_pipes_for_leaf_and_spine_are_found() -> None:
    """What the formulas once said: a tier carries V (D - 1) / D, whatever lies beyond it."""

    def separate(kind: CollectiveKind, nbytes: float, group: Group) -> NetworkTime:
        true = collective_time(kind, nbytes, group)
        tiers = [nbytes * (1 - 1 / f.size) / f.bytes_per_s for f in group.fans]
        return replace(true, expected_s=max(tiers))

    assert disagreements(separate, "all_gather", range(EVERYDAY))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "permute"])
@pytest.mark.parametrize(
    ("on", "axes"),
    [("h100:8", "X=8"), ("h100:8x16", "X=128"), ("h100:8x64", "X=64,Y=8"), ("gb200:64", "X=64")],
)
def test_an_array_of_no_size_takes_the_hops_of_the_formula(
    kind: CollectiveKind, on: str, axes: str
) -> None:
    mesh = parse_mesh(axes, on=on)
    latency_s = collective_time(kind, 1.0, mesh.group("X")).latency_s
    assert simulate_seconds(kind, 1.0, mesh, "X") == pytest.approx(latency_s, rel=0.001)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1, 4])
def test_rounds_of_all_chips_take_what_messages_one_by_one_do(
    kind: CollectiveKind, factor: float
) -> None:
    mesh = parse_mesh("X=4@spine+leaf2,Y=16", on=parse_slice("h100:1x64").oversubscribed(factor))
    alone = simulate(kind, 1e10, mesh, "X").seconds
    # Messages of an exchange meet at the uplinks, where rounds have an order.
    within = 0.15 if kind == "all_to_all" else 0.04
    assert simulate_seconds(kind, 1e10, mesh, "X") == pytest.approx(alone, rel=within)


# The simulator itself: what its rounds deliver.


def tiers_of(mesh: Mesh) -> list[SwitchDim]:
    return [d for d in reversed(mesh.slice.dims) if isinstance(d, SwitchDim)]


def members(mesh: Mesh, chip: int) -> set[int]:
    """The group of a chip, along one tier after another."""
    found = {chip}
    for tier, along in zip(tiers_of(mesh), lines_of(mesh, "X"), strict=True):
        places = {c: c // tier.unit_chips % tier.size for c in found}
        found = {c + (p - places[c]) * tier.unit_chips for c in found for p in along[places[c]]}
    return found


def delivered(stages: list[Stage], chips: int) -> list[set[int]]:
    """The shards that each chip holds at the end, and that every message was as large as said."""
    held = [{chip} for chip in range(chips)]
    for stage in stages:
        before = came = [set(h) for h in held]
        for turn in stage:
            sent, came = came if turn.relays else before, [set[int]() for _ in held]
            for chip, target in enumerate(turn.targets):
                assert len(sent[chip]) == turn.blocks
                assert not held[target] & sent[chip], "comes a second time"
                came[target] = sent[chip]
                held[target] |= sent[chip]
    return held


SMALL = [m for m in random_groups(ALL) if m.slice.num_chips <= 128][:12]


@pytest.mark.parametrize("mesh", SMALL, ids=lambda m: f"{m.slice} {m}")
def test_a_gather_brings_each_shard_once(mesh: Mesh) -> None:
    stages = gather_stages(tiers_of(mesh), lines_of(mesh, "X"))
    held = delivered(stages, mesh.slice.num_chips)
    assert held == [members(mesh, chip) for chip in range(mesh.slice.num_chips)]


@pytest.mark.parametrize("mesh", SMALL[:4], ids=lambda m: f"{m.slice} {m}")
def test_a_scatter_sends_what_a_gather_does_the_other_way(mesh: Mesh) -> None:
    tiers, lines = tiers_of(mesh), lines_of(mesh, "X")
    there = [r for stage in gather_stages(tiers, lines) for r in stage]
    back = [r for stage in scatter_stages(tiers, lines) for r in stage]
    assert sorted((r.tier, r.blocks, c, t) for r in there for c, t in enumerate(r.targets)) == (
        sorted((r.tier, r.blocks, t, c) for r in back for c, t in enumerate(r.targets))
    )


@pytest.mark.parametrize("mesh", SMALL, ids=lambda m: f"{m.slice} {m}")
def test_an_exchange_reaches_every_member_of_a_group(mesh: Mesh) -> None:
    """Each part first meets the chips of the own node, then goes along rails to one other node."""
    for chip in range(0, mesh.slice.num_chips, 7):
        reached = set[int]()
        for near, far in exchange_parts(tiers_of(mesh), lines_of(mesh, "X"), 1):
            node = {chip, *(r.targets[chip] for r in near)}
            assert sum(r.blocks for r in far) in (0, len(node))
            reached |= {far[0].targets[c] for c in node} if far else node
        assert reached == members(mesh, chip)
