# pyright: reportPrivateImportUsage=false
# jax annotates its own functions only in part.
"""Sampling, rounding to few bits, and what the paged kernel is handed, each against its rule."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention

from rooflight.dtypes import DTYPES
from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Mask
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.attention.kernels import attend
from rooflight.program.decode.cache import Layers, abstract_cache, check_rows_only
from rooflight.program.decode.sampling import Draws, sample
from rooflight.program.model.forward import Program
from rooflight.program.paged import attend as paged_kernel
from rooflight.program.paged.blocks import PagedBatch, own_blocks
from rooflight.program.quantized import FORMATS, quantize
from rooflight.program.shardings import abstract_mesh, device_mesh

DRAWS = 4096
LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def drawn(temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Any:
    """How often each of four tokens comes, over many seeds."""
    rows = [np.full(DRAWS, x) for x in (np.float32(temperature), top_k, np.float32(top_p))]
    rows += [np.arange(DRAWS), np.full(DRAWS, np.float32(min_p))]
    draws = Draws(*map(jnp.asarray, rows))
    logits = jnp.asarray(np.tile(LOGITS, (DRAWS, 1, 1)))
    with jax.set_mesh(device_mesh({"X": 1})):
        tokens = jax.jit(sample)(logits, draws, jnp.zeros((DRAWS, 1), jnp.int32))
    return np.bincount(np.asarray(tokens)[:, 0], minlength=4) / DRAWS


@pytest.mark.parametrize(
    ("options", "chances"),
    [
        ((1.0,), [0.5, 0.25, 0.15, 0.1]),
        ((0.5,), [0.7246, 0.1812, 0.0652, 0.0290]),  # squares, over their sum
        ((1.0, 2), [2 / 3, 1 / 3, 0, 0]),
        ((1.0, 0, 0.6), [2 / 3, 1 / 3, 0, 0]),  # the second reaches 0.6
        ((1.0, 0, 0.5), [1, 0, 0, 0]),
        ((1.0, 0, 0.0), [1, 0, 0, 0]),  # the largest is always there
        ((1.0, 3, 0.8), [0.5 / 0.75, 0.25 / 0.75, 0, 0]),  # of the top 3, two reach 0.8
        ((1.0, 0, 1.0, 0.45), [2 / 3, 1 / 3, 0, 0]),  # of at least 0.45 times the largest
        ((0.5, 0, 1.0, 0.45), [1, 0, 0, 0]),  # after the temperature, as in transformers
        ((1.0, 0, 1.0, 1.0), [1, 0, 0, 0]),
        ((0.0,), [1, 0, 0, 0]),
        ((1.0, 1), [1, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_their_chances(options: Any, chances: list[float]) -> None:
    found = drawn(*options)
    assert np.abs(found - chances).max() < 4 * 0.5 / DRAWS**0.5
    assert np.array_equal(found > 0, np.array(chances) > 0)


@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.25), (2.0, 0.25), (0.7, 0.1)])
def test_tokens_below_min_p_are_those_of_transformers(temperature: float, min_p: float) -> None:
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    scores = torch.tensor(LOGITS[None] / temperature)
    left = transformers.MinPLogitsWarper(min_p)(None, scores)
    wanted = torch.softmax(left, -1).numpy()[0]
    assert np.abs(drawn(temperature, min_p=min_p) - wanted).max() < 4 * 0.5 / DRAWS**0.5


def test_greedy_takes_the_largest_logit() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 2, 50)).astype(np.float32)
    whole = jnp.zeros(3, jnp.int32)
    greedy = Draws(jnp.zeros(3), whole, jnp.ones(3), whole)
    with jax.set_mesh(device_mesh({"X": 1})):
        tokens = sample(jnp.asarray(logits), greedy, jnp.zeros((3, 2), jnp.int32))
    assert np.array_equal(tokens, logits.argmax(-1))


@given(st.integers(0, 1000), st.sampled_from(["int8", "int4"]))
@settings(max_examples=20)
def test_rounding_moves_an_element_by_half_a_scale_at_most(seed: int, dtype: str) -> None:
    wide = np.random.default_rng(seed).standard_normal((5, 7)).astype(np.float32)
    few = quantize(jnp.asarray(wide), dtype)
    error = np.abs(np.asarray(few.astype(jnp.float32)) - wide)
    assert np.all(error <= np.asarray(few.scale) * 0.5001)
    assert np.allclose(few.scale[:, 0], np.abs(wide).max(1) / FORMATS[dtype][1])


def test_fp8_keeps_three_bits_of_every_element_that_is_not_tiny() -> None:
    wide = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    few = quantize(jnp.asarray(wide), "fp8")
    error = np.abs(np.asarray(few.astype(jnp.float32)) - wide)
    assert np.all(error <= np.maximum(np.abs(wide) / 16, np.asarray(few.scale) * 2**-9) * 1.001)


def test_a_format_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownNameError, match="int9"):
        quantize(jnp.ones((2, 2)), "int9")


@pytest.mark.parametrize("layout", ["fsdp=X,sp=Y", "dp=X,cp=Y", "dp=X,pp=Y"])
def test_a_layout_that_splits_positions_or_layers_is_refused(layout: str) -> None:
    with pytest.raises(UsageError, match="rows and heads") as raised:
        check_rows_only(Constraints(parse_layout(layout), {"X": 2, "Y": 2}, {}))
    assert "dp=X,tp=Y" in raised.value.hint
    check_rows_only(Constraints(parse_layout("dp=X,tp=Y"), {"X": 2, "Y": 2}, {}))


def abstract(**options: Any) -> Layers:
    """A cache of a small model whose rows are split over X and heads over Y; Z is left."""
    model = ModelSpec("tiny", "Tiny", 32, 64, (Repeat((Block(Attention(4, 2, 8), Mlp(64)),), 2),))
    graph, mesh = model_graph(model), parse_mesh("X=2,Y=2,Z=2", on="v5e:2x4")
    dims, layout = dim_sizes(graph, batch=8, seq=1), parse_layout("dp=X,tp=Y")
    constraints = constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    wanted: dict[str, Any] = {"num_blocks": 12, "block_size": 4} | options
    return abstract_cache(Program(model, constraints), abstract_mesh(constraints.axes), **wanted)


@pytest.mark.parametrize(
    ("wrong", "hint", "right"),
    [
        ({"num_blocks": 13}, "give 14 blocks", {"num_blocks": 14}),
        ({"num_blocks": 14, "spread": ("Z",)}, "give 16 blocks", {"num_blocks": 16}),
        ({"spread": ("Y",)}, "spread over Z", {"spread": ("Z",)}),
        ({"spread": ("W",)}, "spread over Z", {"spread": ("Z",)}),
        ({"dtype": "int4"}, "int8", {"dtype": "int8"}),
    ],
)
def test_a_cache_that_cannot_be_is_refused_with_one_that_can(
    wrong: dict[str, Any], hint: str, right: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as raised:
        abstract(**wrong)
    assert hint in raised.value.render()
    assert "kv" in abstract(**wrong | right)[0][0]


@pytest.mark.parametrize("spec", [Attention(6, 2, 8), Attention(6, 2, 8, window=7, softcap=5.0)])
def test_the_paged_kernel_is_handed_the_blocks_of_the_layer(
    spec: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own reference, in plain jax, stands for the kernel, which runs on TPUs only."""
    tiles = {"num_kv_pages_per_block", "num_queries_per_block"}

    def reference(*arrays: Any, **options: Any) -> Any:
        return ref_ragged_paged_attention(
            *arrays, **{n: x for n, x in options.items() if n not in tiles}
        )

    monkeypatch.setattr(paged_kernel, "ragged_paged_attention", reference)
    rng = np.random.default_rng(0)
    pages = jnp.asarray(rng.standard_normal((2, 16, 4, 4, 8)), jnp.float32)
    q = jnp.asarray(rng.standard_normal((4, 1, 2, 3, 8)), jnp.float32)
    ids, ends = rng.permutation(16)[:12].reshape(4, 3), jnp.asarray([12, 1, 7, 4])
    read = pages[1, ids].reshape(4, 12, 4, 8)
    rows = PagedBatch(ends - 1, jnp.ones(4, jnp.int32), jnp.asarray(ids))
    blocks = own_blocks({"kv": pages}, jnp.int32(1), rows, ())
    found = paged_kernel.attend_ragged(q, pages, blocks, spec=spec, scale=0.3)
    plain = partial(attend, mask=Mask(spec.window), softcap=spec.softcap, scale=0.3)
    wanted = plain(q, read[:, :, 0::2], read[:, :, 1::2], q_start=ends - 1, kv_length=ends)
    assert np.abs(found - wanted).max() < 1e-5
