"""The inverse question: shardings under a memory cap (the book's exercises 3.5 and 3.7)."""

import pytest

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.costs.best import best_layouts
from rooflight.costs.choose import choose
from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import parse_mesh

BF16 = DTYPES["bf16"]
FREE = parse_contraction("x[B,D] * W[D,F] -> y[B,F]")
BLOCK = {"B": 128, "D": 8192, "F": 32768}


def test_exercise_3_5_splits_the_work_64_ways_without_communication() -> None:
    mesh = parse_mesh("X=4,Y=4,Z=4", on="v5p:4x4x4")
    best = best_layouts(FREE, dims={"B": 4096, "D": 8192, "F": 32768}, mesh=mesh, dtype=BF16)[0]
    (product,) = best.price.steps
    assert product.flops == 2 * 4096 * 8192 * 32768 / 64
    assert best.price.network_s == 0


def test_exercise_3_7_splits_the_weights_four_ways_under_300_megabytes() -> None:
    """Both matrices of the block must fit 300 MB, so each gets half: F is split over all chips."""
    mesh = parse_mesh("X=2,Y=2", on="v5e:2x2")
    best = best_layouts(FREE, dims=BLOCK, mesh=mesh, dtype=BF16, memory_bytes=150_000_000)[0]
    assert str(best.contraction) == "x[B,D] * W[D,F_XY] -> y[B,F_XY]"
    second = parse_contraction("h[B,F_XY] * V[F,D] -> z[B,D]")
    down = best_layouts(second, dims=BLOCK, mesh=mesh, dtype=BF16, memory_bytes=150_000_000)[0]
    assert down.contraction.operands[1].axes == (("X", "Y"), ())
    assert down.stored_bytes <= 150_000_000
    assert [s.step.op for s in down.price.steps][1:] in (["reduce_scatter"], ["all_reduce"])


def test_the_best_is_the_fastest_strategy_of_its_own_layout() -> None:
    mesh = parse_mesh("X=2,Y=2", on="v5e:2x2")
    for layout in best_layouts(FREE, dims=BLOCK, mesh=mesh, dtype=BF16, count=8):
        found = strategies(layout.contraction, mesh.axes)
        choice = choose(found, dims=BLOCK, mesh=mesh, dtype=BF16)
        fastest = min(p.expected_s for p in (choice.best, *choice.losers))
        assert layout.price.expected_s == pytest.approx(fastest)


def test_a_smaller_cap_is_never_faster() -> None:
    mesh = parse_mesh("X=2,Y=2", on="v5e:2x2")
    caps = (137_000_000, 138_000_000, 300_000_000, 2_000_000_000)
    times = [
        best_layouts(FREE, dims=BLOCK, mesh=mesh, dtype=BF16, memory_bytes=cap)[0].price.expected_s
        for cap in caps
    ]
    assert times == sorted(times, reverse=True)


def test_a_cap_that_nothing_fits_names_the_smallest_that_would() -> None:
    mesh = parse_mesh("X=2,Y=2", on="v5e:2x2")
    with pytest.raises(ShardingError, match="the smallest stores 137 MB") as caught:
        best_layouts(FREE, dims=BLOCK, mesh=mesh, dtype=BF16, memory_bytes=100_000_000)
    enough = int(caught.value.hint.split()[-1].strip("`"))
    assert best_layouts(FREE, dims=BLOCK, mesh=mesh, dtype=BF16, memory_bytes=enough)


def test_a_tensor_with_subscripts_stays_as_written() -> None:
    mesh = parse_mesh("X=2,Y=2", on="v5e:2x2")
    fixed = parse_contraction("x[B_X,D] * W[D,F] -> y[B,F]")
    for layout in best_layouts(fixed, dims=BLOCK, mesh=mesh, dtype=BF16):
        assert str(layout.contraction.operands[0]) == "x[B_X,D]"
