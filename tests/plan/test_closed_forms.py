"""The book's closed forms, each a consequence of the derivation, over ranges of sizes.

Chapter 5 derives them by hand for a feed-forward layer of two matrices in bf16, from its rule for
large groups. Here nothing but `derive_algorithm` is called; the formulas stand in the assertions.
Legend: B tokens, D model, F feed-forward, N chips, X and Y ways of FSDP and tensor parallelism,
Mx and My the torus axes each lies on, C FLOP/s, W bytes/s of a ring, alpha = C / W.
"""

import math
from collections.abc import Iterable

import pytest

from rooflight.dtypes import DTYPES
from rooflight.graph import dim_sizes, model_graph
from rooflight.graph.layout import parse_layout
from rooflight.plan import Algorithm, Line, derive_algorithm
from rooflight.specs import load_chip, load_model, parse_mesh

SEQ = 512
GRAPH = model_graph(load_model("gpt3-175b"))
D, F = GRAPH.sizes["D"], GRAPH.sizes["F"]
C = load_chip("v5p").flops["bf16"]
ALPHA = C / 1.8e11  # 2550 for v5p: its ring carries 90 GB/s each way


def derive(layout: str, *, mesh: str, tokens: int, on: str = "v5p:4x4x4") -> Algorithm:
    return derive_algorithm(
        GRAPH,
        [op for op in GRAPH.ops if op.part == "mlp"],
        parse_layout(layout),
        mesh=parse_mesh(mesh, on=on),
        dims=dim_sizes(GRAPH, batch=tokens // SEQ, seq=SEQ),
        dtype=DTYPES["bf16"],
    )


def math_s(lines: Iterable[Line]) -> float:
    """Time of the products when FLOPs bind them."""
    return sum(x.price.flops for x in lines) / C


def comms_s(lines: Iterable[Line], axis: str | None = None) -> float:
    """Time of the collectives by the rule for large groups; kept ones are free."""
    return sum(
        x.price.network.rule_s
        for x in lines
        if x.price.network and not x.kept and (axis is None or axis in x.step.axes)
    )


MESHES = [("X=4@x,Y=16@y+z", 4, 1), ("X=16@x+y,Y=4@z", 16, 2), ("X=64@x+y+z", 64, 3)]


@pytest.mark.parametrize("layout", ["dp=X", "fsdp=X"])
@pytest.mark.parametrize(("mesh", "ways", "axes"), MESHES)
@pytest.mark.parametrize("tokens", [2**15, 2**18, 2**21])
def test_data_parallelism_needs_2550_tokens_a_chip_over_the_axes(
    layout: str, mesh: str, ways: int, axes: int, tokens: int
) -> None:
    """T_math / T_comms = (B / X) / (alpha / axes) in the backward pass."""
    lines = derive(layout, mesh=mesh, tokens=tokens).backward
    gathered = comms_s(x for x in lines if x.waits == "ahead")  # FSDP gathers weights again
    reduced = comms_s(lines) - gathered
    both = reduced if layout == "dp=X" else reduced + gathered
    assert math_s(lines) / both == pytest.approx((tokens / ways) / (ALPHA / axes))


@pytest.mark.parametrize(("mesh", "ways", "axes"), MESHES[:2])
@pytest.mark.parametrize("tokens", [2**15, 2**18, 2**21])
def test_tensor_parallelism_is_good_for_f_over_2550_ways_an_axis(
    mesh: str, ways: int, axes: int, tokens: int
) -> None:
    """T_math / T_comms = axes * F / (alpha * Y), whatever the batch."""
    lines = derive("tp=X", mesh=mesh, tokens=tokens).forward
    assert math_s(lines) / comms_s(lines) == pytest.approx(axes * F / (ALPHA * ways))


MIXED = [
    ("X=4@x,Y=16@y+z", 4, 16, 1, 2),
    ("X=16@x+y,Y=4@z", 16, 4, 2, 1),
]


@pytest.mark.parametrize(("mesh", "x", "y", "mx", "my"), MIXED)
@pytest.mark.parametrize("tokens", [2**16, 2**18, 2**20])
def test_each_half_of_a_mixed_layout_shrinks_as_the_other_grows(
    mesh: str, x: int, y: int, mx: int, my: int, tokens: int
) -> None:
    """FSDP sends 4DF / (Y W Mx), tensor parallelism 4BD / (X W My), forward."""
    lines = derive("fsdp=X,tp=Y", mesh=mesh, tokens=tokens).forward
    ring = C / ALPHA
    assert comms_s(lines, "X") == pytest.approx(4 * D * F / (y * ring * mx))
    assert comms_s(lines, "Y") == pytest.approx(4 * tokens * D / (x * ring * my))


@pytest.mark.parametrize(("mesh", "x", "y", "mx", "my"), MIXED)
def test_the_mixed_optimum_and_its_bound_in_both_conventions(
    mesh: str, x: int, y: int, mx: int, my: int
) -> None:
    """X_opt = sqrt(B/F * Mx/My * N): there both halves take the same time.

    Then T_math / T_comms = sqrt((B/N) / (c a^2 / (Mx My F))) with c = 4 where the halves add up
    (the 2025 edition) and c = 1 where they overlap (the newer one).
    """
    chips = x * y
    tokens = round(x**2 * F * my / (mx * chips))
    assert math.isclose(math.sqrt(tokens / F * mx / my * chips), x)
    lines = derive("fsdp=X,tp=Y", mesh=mesh, tokens=tokens).forward
    fsdp, tensor = comms_s(lines, "X"), comms_s(lines, "Y")
    assert fsdp == pytest.approx(tensor)
    for convention, comms in ((4, fsdp + tensor), (1, max(fsdp, tensor))):
        bound = convention * ALPHA**2 / (mx * my * F)
        assert math_s(lines) / comms == pytest.approx(math.sqrt(tokens / chips / bound))


@pytest.mark.parametrize("shape", ["4x4x4", "4x4x8", "8x8x8"])
@pytest.mark.parametrize("tokens", [2**19, 2**22])
def test_data_over_dcn_needs_73440_tokens_a_slice_chip_whatever_the_slice(
    shape: str, tokens: int
) -> None:
    """T_math / T_dcn = (B / slices) / (C / W_dcn per chip): the size of a slice cancels."""
    chips = math.prod(map(int, shape.split("x")))
    on = f"2*v5p:{shape}"
    algorithm = derive("dp=P,fsdp=X", mesh=f"P=2@dcn,X={chips}", tokens=tokens, on=on)
    lines = algorithm.backward
    dcn = C / (2.5e10 / 4)
    assert dcn == pytest.approx(73_440)
    assert math_s(lines) / comms_s(lines, "P") == pytest.approx((tokens / 2) / dcn)
