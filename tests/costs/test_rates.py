"""Rates of many meshes at once are the scalar times of each."""

import random

import pytest

from rooflight.costs.mesh_sweep import every_mesh
from rooflight.costs.network import KINDS, collective_time
from rooflight.costs.rates import collective_rate, shift_rate
from rooflight.hardware.slice import parse_slice


@pytest.mark.parametrize("on", ["h100:8x64", "h100:1x64", "gb200:72x16", "a100:8x40", "2*v5e:4x8"])
def test_the_rate_of_a_collective_is_its_scalar_time(on: str) -> None:
    target = parse_slice(on)
    for slice_ in (target, target.oversubscribed(3)) if target.chip.switched else (target,):
        meshes = every_mesh(("X", "Y", "Z"), slice_)
        for axes in ("X", "Y", "XZ", "XYZ"):
            shift = shift_rate(axes, meshes)
            rates = [collective_rate(k, axes, meshes) if k != "permute" else shift for k in KINDS]
            for index in random.Random(1).sample(range(meshes.count), 20):
                group = meshes.mesh(index).group(axes)
                for kind, rate in zip(KINDS, rates, strict=True):
                    time = collective_time(kind, 1e9, group)
                    seconds = 1e9 * rate.seconds_per_byte[index] + rate.latency_s[index]
                    assert seconds == pytest.approx(time.bandwidth_s + time.latency_s, rel=1e-9)
