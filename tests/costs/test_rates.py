"""Rates of many meshes at once are the scalar times of each."""

import random
from itertools import permutations

import numpy as np
import pytest

from rooflight.costs.mesh_sweep import MeshSweep, every_mesh
from rooflight.costs.network import KINDS, collective_time
from rooflight.costs.rates import tier_rates
from rooflight.hardware.slice import parse_slice


@pytest.mark.parametrize("on", ["h100:8x64", "h100:1x64", "gb200:72x16", "a100:8x40", "2*v5e:4x8"])
def test_the_rate_of_a_collective_is_its_scalar_time(on: str) -> None:
    target = parse_slice(on)
    for slice_ in (target, target.oversubscribed(3)) if target.chip.switched else (target,):
        meshes = every_mesh(("X", "Y", "Z"), slice_)
        for axes in ("X", "Y", "XZ", "XYZ"):
            ops = ["shift" if kind == "permute" else kind for kind in KINDS]
            rates = [tier_rates(op, axes, meshes) for op in ops]
            for index in random.Random(1).sample(range(meshes.count), 20):
                group = meshes.mesh(index).group(axes)
                for kind, rate in zip(KINDS, rates, strict=True):
                    time = collective_time(kind, 1e9, group)
                    seconds = rate.seconds(np.full(1, 1e9))[index]
                    assert seconds == pytest.approx(time.bandwidth_s + time.latency_s, rel=1e-9)


@pytest.mark.parametrize("on", ["v5p:4x4x8", "2*v5e:4x8"])
def test_meshes_of_any_nesting_have_the_rates_of_their_records(on: str) -> None:
    table = every_mesh(("X", "Y", "Z"), parse_slice(on))
    nested = MeshSweep.joined([table.nested(order) for order in permutations("XYZ")])
    assert nested.count == 6 * table.count
    for axes in ("X", "YX", "XYZ"):
        rates = tier_rates("all_gather", axes, nested)
        for index in random.Random(2).sample(range(nested.count), 60):
            mesh = nested.mesh(index)
            assert tuple(mesh.axes) == list(permutations("XYZ"))[index // table.count]
            time = collective_time("all_gather", 1e9, mesh.group(axes))
            seconds = rates.seconds(np.full(1, 1e9))[index]
            assert seconds == pytest.approx(time.bandwidth_s + time.latency_s, rel=1e-9)


@pytest.mark.parametrize(
    ("on", "like"), [("v5p:4x4x4", "xyz"), ("v5p:4x4x8", "xy"), ("v6e:8x8", "xy")]
)
def test_dims_of_a_torus_that_are_alike_may_swap(on: str, like: str) -> None:
    meshes = every_mesh(("X", "Y", "Z"), parse_slice(on))
    first, times = meshes.swaps()
    assert times[first].sum() == meshes.count > first.sum()
    groups: dict[object, list[int]] = {}
    for index in range(meshes.count):
        held = {
            d.name: tuple(int(p[d.name][index]) for p in meshes.sizes.values())
            for d in meshes.slice.dims
        }
        key = tuple(sorted(held[d] for d in like)), tuple(held[d] for d in held if d not in like)
        groups.setdefault(key, []).append(index)
    assert all(first[g[0]] and not first[g[1:]].any() for g in groups.values())
    assert all((times[g] == len(g)).all() for g in groups.values())
    for op, axes in (
        ("all_gather", "X"),
        ("all_to_all", "XY"),
        ("reduce_scatter", "YZ"),
        ("shift", "Z"),
    ):
        found = tier_rates(op, axes, meshes).seconds(np.full(1, 1e9))
        assert all(found[g] == pytest.approx(found[g[0]], rel=1e-12) for g in groups.values())


def test_dims_of_other_lengths_do_not_swap() -> None:
    first, times = every_mesh(("X", "Y"), parse_slice("v5p:4x8x16")).swaps()
    assert first.all() and (times == 1).all()
