"""The book's closed forms, each a consequence of the derivation, over ranges of sizes.

Chapters 5 and 7 derive them by hand for a feed-forward layer of two matrices in bf16, from the
rule for large groups. Here nothing but `derive_algorithm` is called; the formulas stand in the
assertions.
Legend: B tokens, D model, F feed-forward, N chips, X and Y ways of FSDP and tensor parallelism,
Mx and My the torus axes each lies on, C FLOP/s, W bytes/s of a ring, alpha = C / W.
"""

import math
from collections.abc import Iterable, Mapping

import pytest

from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.algorithm import Algorithm, PricedStep, derive_algorithm

SEQ = 512
GRAPH = model_graph(load_model("gpt3-175b"))
D, F = GRAPH.sizes["D"], GRAPH.sizes["F"]
C = load_chip("v5p").flops["bf16"]
ALPHA = C / 1.8e11  # 2550 for v5p: its ring carries 90 GB/s each way


def derive(
    layout: str,
    *,
    mesh: str,
    tokens: int,
    on: str = "v5p:4x4x4",
    widths: Mapping[str, int] | None = None,
) -> Algorithm:
    return derive_algorithm(
        GRAPH,
        [op for op in GRAPH.ops if op.part == "mlp"],
        parse_layout(layout),
        mesh=parse_mesh(mesh, on=on),
        dims=dim_sizes(GRAPH, batch=tokens // SEQ, seq=SEQ) | dict(widths or {}),
        dtype=DTYPES["bf16"],
    )


def math_s(lines: Iterable[PricedStep]) -> float:
    """Time of the matmuls when FLOPs bind them."""
    return sum(x.price.flops for x in lines) / C


def comms_s(lines: Iterable[PricedStep], axis: str | None = None) -> float:
    """Time of the collectives by the rule for large groups; saved ones are free."""
    return sum(
        x.price.network.rule_s
        for x in lines
        if x.price.network and not x.saved and (axis is None or axis in x.step.axes)
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


# Whole cubes are rings, the others lines at half the rate: the same for both sides of a race.
SHAPES = ["2x4x4", "3x4x5", "3x4x6", "3x4x7", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"]


def stationary(shape: str, ratio: int, tokens: int) -> tuple[float, float]:
    """Seconds of the collectives with W_in[D_X,F_Y], X on one torus axis, and with W_in[D,F_XY]."""
    x, *rest = map(int, shape.split("x"))
    chips, on = x * math.prod(rest), f"v5p:{shape}"
    widths = {"D": 96 * chips, "F": ratio * 96 * chips}
    mesh = f"X={x}@x,Y={chips // x}@y+z"
    both = derive("ws=X,tp=Y", mesh=mesh, tokens=tokens, on=on, widths=widths).forward
    one = derive("tp=X", mesh=f"X={chips}@x+y+z", tokens=tokens, on=on, widths=widths).forward
    return comms_s(both), comms_s(one)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("tokens", [SEQ, 64 * SEQ])
def test_2d_weight_stationary_beats_tensor_parallelism_above_72_chips(
    shape: str, ratio: int, tokens: int
) -> None:
    """T_2d / T_1d = 3 / (2 X) + 3 r X / N for F = r D, at best sqrt(18 r / N).

    Chapter 7: T_2d = 2BD / (X W) + 4BF / (YZ W) and T_1d = 4BD / (3 W). The best X is
    sqrt(N / (2 r)), so 2D can only win above N = 18 r: 72 chips for F = 4 D, with X = 3.
    """
    both, one = stationary(shape, ratio, tokens)
    x, *rest = map(int, shape.split("x"))
    chips = x * math.prod(rest)
    assert both / one == pytest.approx(3 / (2 * x) + 3 * ratio * x / chips)
    bound = math.sqrt(18 * ratio / chips)
    assert both / one >= bound * (1 - 1e-9)
    if 2 * ratio * x**2 == chips:
        assert both / one == pytest.approx(bound)
    if not math.isclose(both, one):
        wins_above = 6 * ratio * x**2 / (2 * x - 3)  # smallest at X = 3
        assert (both < one) == (chips > wins_above >= 18 * ratio)


def test_72_chips_are_the_break_even_itself() -> None:
    """N = 72, X = 3: both take the same time; a row of chips fewer or more decides it."""
    both, one = stationary("3x4x6", 4, SEQ)
    assert both == pytest.approx(one)
    both, one = stationary("3x4x5", 4, SEQ)
    assert both > one * 1.05
    both, one = stationary("3x4x7", 4, SEQ)
    assert both < one * 0.95


@pytest.mark.parametrize(("mesh", "x", "y", "mx", "my"), MIXED)
@pytest.mark.parametrize("tokens", [D // 4, D // 2, D, 4 * D, 64 * D])
def test_weights_stay_where_they_are_while_there_are_fewer_tokens_than_d(
    mesh: str, x: int, y: int, mx: int, my: int, tokens: int
) -> None:
    """Gathering weights sends 4DF / (Y W Mx) over X, summing activations 4BF / (Y W Mx)."""
    widths = {"D": D, "F": F, "B": tokens // 96, "T": 96}
    gathered = derive("fsdp=X,tp=Y", mesh=mesh, tokens=tokens, widths=widths).forward
    stays = derive("ws=X,tp=Y", mesh=mesh, tokens=tokens, widths=widths).forward
    assert comms_s(stays, "X") == pytest.approx(4 * tokens * F / (y * C / ALPHA * mx))
    assert comms_s(stays, "X") / comms_s(gathered, "X") == pytest.approx(tokens / D)
    assert comms_s(stays, "Y") == pytest.approx(comms_s(gathered, "Y"))
    assert math_s(stays) == pytest.approx(math_s(gathered))


def context_ratio(model: str, on: str, mesh: str) -> float:
    """Forward seconds of attention's collectives over Y: gathered keys to exchanged heads."""
    graph = model_graph(load_model(model))
    placed = parse_mesh(mesh, on=on)

    def seconds(layout: str) -> float:
        derived = derive_algorithm(
            graph,
            [op for op in graph.ops if op.part == "attention" and op.block == 0],
            parse_layout(layout),
            mesh=placed,
            dims=dim_sizes(graph, batch=placed.axes["X"], seq=8192),
            dtype=DTYPES["bf16"],
        )
        return comms_s(derived.forward, "Y")

    return seconds("fsdp=X,cp=Y") / seconds("fsdp=X,ulysses=Y")


def heads_of(model: str) -> tuple[int, int]:
    """N heads, K kv heads."""
    sizes = model_graph(load_model(model)).sizes
    return sizes["K"] * sizes["G"], sizes["K"]


CONTEXT_MODELS = ["gpt3-175b", "gemma2-27b", "llama3-8b", "llama3-70b"]


@pytest.mark.parametrize("model", CONTEXT_MODELS)
@pytest.mark.parametrize(
    ("on", "mesh"),
    [
        ("v5p:4x4x4", "X=16@y+z,Y=4@x"),
        ("v5p:4x8x8", "X=64@y+z,Y=4@x"),
        ("v5p:8x4x4", "X=16@y+z,Y=8@x"),
    ],
)
def test_on_a_ring_exchanging_heads_wins_with_more_kv_heads_than_a_third(
    model: str, on: str, mesh: str
) -> None:
    """T_cp / T_ulysses = 4 K / (N + K): gathered are k and v, exchanged q, k, v and the result.

    On a ring an all-to-all takes a quarter of a gather's time.
    """
    heads, kv_heads = heads_of(model)
    assert context_ratio(model, on, mesh) == pytest.approx(4 * kv_heads / (heads + kv_heads))


@pytest.mark.parametrize("model", CONTEXT_MODELS)
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_behind_a_switch_exchanging_heads_gains_with_every_way(model: str, ways: int) -> None:
    """T_cp / T_ulysses = Y K / (N + K): an all-to-all sends 1/Y of what a gather does."""
    heads, kv_heads = heads_of(model)
    ratio = context_ratio(model, f"h100:{ways}x2", f"X=2,Y={ways}@node")
    assert ratio == pytest.approx(ways * kv_heads / (heads + kv_heads))
