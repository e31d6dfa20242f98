"""One derivation, many meshes: the sweep equals the scalar price, and is fast enough to search."""

import random

import pytest

from rooflight.algebra import parse_contraction, strategies
from rooflight.costs import collective_time, price
from rooflight.costs.mesh_sweep import every_mesh
from rooflight.costs.network import KINDS
from rooflight.costs.rates import collective_rate, shift_rate
from rooflight.costs.sweep import sweep
from rooflight.dtypes import DTYPES
from rooflight.specs import parse_slice

from ..reference_loop import standard_s

BF16 = DTYPES["bf16"]
DIMS = {"B": 2**12 * 35, "D": 2**9 * 35, "F": 2**9 * 35, "E": 2**9 * 35}
CASES = (
    "x[B_X,D_Y] * W[D_X,F_Y] -> y[B_X,F_Y]",
    "x[B_XZ,D] * W[D_X,F_Y] -> y[B_XZ,F_Y]",
    "x[B_X,D] * dy[B_X,F_Y] -> dW[D_X,F_Y]",
    "x[B_X,F_Y] * W[F_Y,D_X] -> y[B_X,D]",
    "x[E,B_XY,D] * W[E_Y,D,F_Z] -> y[E_Y,B_X,F_Z]",
)


@pytest.mark.parametrize("on", ["v5p:16x20x28", "v5e:16x16", "2*v5e:8x16", "h100:8x64"])
@pytest.mark.parametrize("text", CASES)
def test_every_element_of_a_sweep_is_the_scalar_price(text: str, on: str) -> None:
    meshes = every_mesh(("X", "Y", "Z"), parse_slice(on))
    rng = random.Random(0)
    compared = 0
    for strategy in strategies(parse_contraction(text)):
        times = sweep(strategy, meshes, dims=DIMS, dtype=BF16)
        finite = [i for i in range(meshes.count) if times.expected_s[i] != float("inf")]
        for index in rng.sample(finite, min(12, len(finite))):
            exact = price(strategy, dims=DIMS, mesh=meshes.mesh(index), dtype=BF16)
            assert times.network_s[index] == pytest.approx(exact.network_s, rel=1e-9)
            assert times.expected_s[index] == pytest.approx(exact.expected_s, rel=1e-9)
            compared += 1
    assert compared >= 10


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


def test_a_pod_is_searched_at_a_hundred_thousand_layouts_a_second() -> None:
    """One contraction on every placement of four axes on 8,960 chips."""
    meshes = every_mesh(("X", "Y", "Z", "W"), parse_slice("v5p:16x20x28"))
    assert meshes.count == 56_000
    strategy = strategies(parse_contraction(CASES[0]))[0]
    seconds = standard_s(lambda: sweep(strategy, meshes, dims=DIMS, dtype=BF16))
    assert meshes.count / seconds > 100_000


def test_meshes_whose_axes_do_not_divide_the_dims_are_infinite() -> None:
    meshes = every_mesh(("X", "Y"), parse_slice("v5p:16x20x28"))
    strategy = strategies(parse_contraction("x[B_X,D] * W[D,F_Y] -> y[B_X,F_Y]"))[0]
    times = sweep(strategy, meshes, dims={"B": 64, "D": 64, "F": 64}, dtype=BF16)
    for index in range(meshes.count):
        fits = all(64 % int(meshes.ways(a)[index]) == 0 for a in "XY")
        assert (times.expected_s[index] != float("inf")) == fits
