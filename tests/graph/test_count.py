"""What is counted off a graph, against closed forms of the book and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.algebra.contract import strategies
from rooflight.dtypes import DTYPES
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import (
    count_params,
    dim_sizes,
    elements,
    forward_flops,
    kv_bytes,
    kv_bytes_per_token,
    param_bytes,
    training_flops,
)
from rooflight.models.graph.ops import HAS_FLOPS, Mask
from rooflight.models.graph.summary import attention_equals_rest, summarize
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Repeat

_BF16 = DTYPES["bf16"]


def _toy(*blocks: Block, times: int = 4, is_tied: bool = False) -> ModelSpec:
    return ModelSpec("toy", "Toy", 64, 128, (Repeat(blocks, times),), is_tied=is_tied)


def _block(window: int | None = None, *, shares_kv: bool = False, width: int = 256) -> Block:
    return Block(Attention(4, 2, 16, window=window, shares_kv=shares_kv), Mlp(width))


@given(st.integers(1, 40), st.integers(0, 40), st.one_of(st.none(), st.integers(1, 50)))
def test_masked_pairs_are_those_one_counts_by_hand(
    queries: int, before: int, window: int | None
) -> None:
    keys = queries + before
    seen = [min(before + i + 1, window or keys) for i in range(queries)]
    assert Mask(window).pairs(queries, keys, causal=True) == sum(seen)
    assert Mask(window).pairs(queries, keys, causal=False) == queries * min(keys, window or keys)


@pytest.mark.parametrize("name", model_names())
def test_every_contraction_is_one_the_algebra_takes(name: str) -> None:
    for op in model_graph(load_model(name)).ops:
        assert strategies(op.contraction)


@pytest.mark.parametrize("name", model_names())
def test_ops_name_params_that_exist_and_every_matrix_is_multiplied(name: str) -> None:
    graph = model_graph(load_model(name))
    named = {p for op in graph.ops for p in op.params}
    held = {p.name for p in graph.params}
    assert named <= held
    assert held - named <= {"embedding.W_positions", "attention.Sinks"}


@pytest.mark.parametrize("name", model_names())
def test_training_is_three_forward_passes_and_near_6nd_when_short(name: str) -> None:
    graph = model_graph(load_model(name))
    forward = forward_flops(graph, batch=2, seq=64, causal=True)
    assert training_flops(graph, batch=2, seq=64, causal=True) == 3 * forward
    lookup = 0 if load_model(name).is_tied else graph.sizes["V"] * graph.sizes["D"]
    multiplied = count_params(graph, active=True) - lookup
    assert forward == pytest.approx(2 * multiplied * 128, rel=0.02)  # pyright: ignore[reportUnknownMemberType]


@given(st.integers(1, 64), st.integers(1, 8))
def test_flops_are_additive_over_the_batch(seq: int, batch: int) -> None:
    graph = model_graph(load_model("mixtral-8x7b"))
    one = forward_flops(graph, batch=1, seq=seq, causal=True)
    assert forward_flops(graph, batch=batch, seq=seq, causal=True) == batch * one


def test_prefill_and_decode_of_the_same_tokens_cost_the_same() -> None:
    graph = model_graph(load_model("gemma3-4b"))
    whole = forward_flops(graph, batch=1, seq=12, causal=True)
    steps = [forward_flops(graph, batch=1, seq=n, queries=1, causal=True) for n in range(1, 13)]
    assert sum(steps) == whole


@pytest.mark.parametrize("d_model", [1024, 4096, 8192])
def test_attention_overtakes_the_rest_at_eight_times_the_model_dim(d_model: int) -> None:
    """Chapter 4: T = 8D for MHA, F = 4D and a gate, all pairs, embeddings aside."""
    attention = Attention(d_model // 64, d_model // 64, 64)
    block = Block(attention, Mlp(4 * d_model))
    layers = (Repeat((block,), 1000),)  # so deep that the head does not matter
    graph = model_graph(ModelSpec("deep", "Deep", d_model, 2, layers))
    assert attention_equals_rest(graph, causal=False) == pytest.approx(8 * d_model, rel=1e-3)  # pyright: ignore[reportUnknownMemberType]


def test_windows_may_keep_attention_below_the_rest_for_ever() -> None:
    assert attention_equals_rest(model_graph(load_model("mistral-7b")), causal=True) is None


def test_kv_cache_is_two_heads_of_every_layer_and_stops_at_windows() -> None:
    graph = model_graph(_toy(_block(), _block(window=8)))
    per_layer = 2 * 2 * 16 * 2  # k and v, K heads of H, bf16
    assert kv_bytes_per_token(graph, _BF16) == 8 * per_layer
    assert kv_bytes(graph, batch=3, seq=100, dtype=_BF16) == 3 * per_layer * 4 * (100 + 8)


def test_layers_that_share_keys_and_values_have_neither_weights_nor_cache_for_them() -> None:
    own, shared = model_graph(_toy(_block())), model_graph(_toy(_block(shares_kv=True)))
    assert count_params(own) - count_params(shared) == 4 * 2 * (64 * 2 * 16)
    assert kv_bytes_per_token(shared, _BF16) == 0


def test_a_latent_cache_is_the_latent_and_one_rotary_key() -> None:
    assert kv_bytes_per_token(model_graph(load_model("deepseek-v3")), _BF16) == 61 * (512 + 64) * 2


def test_a_dim_with_two_sizes_gets_two_names() -> None:
    graph = model_graph(_toy(_block(width=256), _block(width=512)))
    assert (graph.sizes["F"], graph.sizes["F2"]) == (256, 512)
    assert count_params(graph, parts=["mlp"]) == 4 * 3 * 64 * (256 + 512)


def test_experts_of_different_sparsity_receive_different_numbers_of_tokens() -> None:
    blocks = [Block(Attention(4, 4, 16), Moe(8, k, Mlp(32))) for k in (1, 2)]
    sizes = dim_sizes(model_graph(_toy(*blocks)), batch=2, seq=64)
    assert (sizes["C"], sizes["C2"]) == (16, 32)


def test_a_tied_head_adds_no_parameter_and_no_less_flops() -> None:
    tied, apart = model_graph(_toy(_block(), is_tied=True)), model_graph(_toy(_block()))
    assert count_params(apart) - count_params(tied) == 64 * 128
    flops = [forward_flops(g, batch=1, seq=16, causal=True) for g in (tied, apart)]
    assert flops[0] == flops[1]


def test_activations_of_a_layer_are_its_tensors() -> None:
    graph = model_graph(_toy(_block(), times=1))
    tokens = 2 * 8
    # Stream, norm, q, k, v, attended heads, attended; sum, norm, gate, up, hidden, fed; sum, norm.
    layer = 64 + 64 + 64 + 32 + 32 + 64 + 64 + 64 + 64 + 3 * 256 + 64 + 64 + 64
    sizes = dim_sizes(graph, batch=2, seq=8)
    written = [op.count * elements(op.contraction.result, sizes) for op in graph.ops]
    scores = [
        count
        for count, op in zip(written, graph.ops, strict=True)
        if {"T", "S"} <= set(op.contraction.result.dims)
    ]
    assert sum(scores) == 2 * tokens * 8 * 4
    assert sum(written) == tokens * (layer + 128) + sum(scores)


@pytest.mark.parametrize("name", model_names())
def test_the_rows_of_a_summary_add_up_to_its_totals(name: str) -> None:
    graph = model_graph(load_model(name))
    found = summarize(graph, seq=1000, dtype=_BF16)
    rows = found.components
    assert sum(r.params for r in rows) == found.params == count_params(graph)
    assert sum(r.active_params for r in rows) == found.active_params
    assert sum(r.nbytes for r in rows) == found.nbytes == param_bytes(graph, _BF16)
    assert sum(r.flops_per_token for r in rows) == pytest.approx(found.flops_per_token)  # pyright: ignore[reportUnknownMemberType]


def test_only_matmuls_and_attention_have_flops() -> None:
    kinds = {op.kind for op in model_graph(load_model("deepseek-v3")).ops}
    assert set(HAS_FLOPS) < kinds == {"matmul", "attention", "elementwise", "route", "lookup"}
