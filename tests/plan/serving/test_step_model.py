"""Step times against counts of the graph, which know nothing of layouts or terms."""

import random
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import ModelError, PlacementError, UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import forward_flops, kv_bytes, param_count
from rooflight.models.presets import load_model
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import ServingLayout, parse_precision, parse_serving_layout
from rooflight.plan.serving.step.model import StepModel
from rooflight.plan.serving.step.terms import CommTerm, ExpertReads
from rooflight.plan.serving.step.time import ServingStepTime

DENSE = ("llama3-8b", "llama2-13b", "gemma3-4b", "qwen3-8b", "mpt-7b")
LAYOUTS = (
    ("llama3-70b", "v5e:4x4", "tp=16,kv=batch"),
    ("llama3-70b", "v5e:4x4", "tp=16,kv=sequence"),
    ("llama3-70b", "v5e:4x4", "tp=4,ws=4"),
    ("llama3-70b", "h100:8", "tp=4,pp=2"),
    ("mixtral-8x7b", "h100:8", "tp=8,ep=8"),
    ("deepseek-v3", "h100:8x4", "dp=32,ep=32"),
    ("deepseek-v3", "h100:8", "tp=2,dp=4,ep=2"),
    ("gemma3-27b", "h100:2", "tp=2"),
)


@lru_cache
def built(name: str, on: str, layout: str, dtypes: str = "bf16") -> StepModel:
    return serving_model(
        load_model(name), parse_slice(on), parse_serving_layout(layout), parse_precision(dtypes)
    )


def peak(model: StepModel) -> float:
    return model.mesh.slice.chip.peak_flops("bf16")


def hbm(model: StepModel) -> float:
    rate = model.mesh.slice.chip.hbm_bytes_per_s
    assert rate
    return rate


@pytest.mark.parametrize("name", DENSE)
def test_flops_of_a_decode_step_on_one_chip_are_those_of_the_graph(name: str) -> None:
    model = built(name, "h100", "tp=1")
    step = model.generate([700] * 5)
    graph = model_graph(load_model(name))
    wanted = forward_flops(graph, batch=5, seq=700, queries=1, causal=True)
    assert step.flops_s * peak(model) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", (*DENSE, "mixtral-8x7b", "gpt-oss-20b"))
def test_a_prefill_has_the_flops_of_the_graph_but_one_token_of_logits(name: str) -> None:
    model, spec = built(name, "h100", "tp=1"), load_model(name)
    step = model.prefill([300])
    whole = forward_flops(model_graph(spec), batch=1, seq=300, causal=True)
    skipped = 299 * 2 * spec.d_model * spec.vocab
    assert step.flops_s * peak(model) == pytest.approx(whole - skipped, rel=1e-12)


@pytest.mark.parametrize("name", (*DENSE, "deepseek-v3"))
def test_a_step_reads_every_key_and_value_once(name: str) -> None:
    model = built(name, "h100", "tp=1", "bf16/fp8/bf16")
    contexts = [3, 5000, 40]
    graph = model_graph(load_model(name))
    kept = sum(kv_bytes(graph, batch=1, seq=c, dtype=DTYPES["fp8"]) for c in contexts)
    assert model.generate(contexts).kv_s * hbm(model) == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize("name", DENSE)
def test_weights_are_read_once_whatever_the_batch(name: str) -> None:
    """Every matrix that is multiplied; of an embedding only rows are looked up."""
    model, graph = built(name, "h100", "tp=1", "int8"), model_graph(load_model(name))
    one, many = model.generate([10]), model.generate([10] * 64)
    used = {t.name for op in graph.ops if op.kind == "matmul" for t in op.contraction.operands}
    matrices = sum(param_count(graph, p) for p in graph.params if p.tensor.name in used)
    assert one.weights_s == many.weights_s
    assert one.weights_s * hbm(model) == pytest.approx(float(matrices), rel=1e-12)


def test_a_batch_reads_the_experts_it_visits() -> None:
    """Against routing at random: each token picks 8 of 256 experts."""
    rng, trials = random.Random(0), 400
    visited = [
        len({e for _ in range(32) for e in rng.sample(range(256), 8)}) for _ in range(trials)
    ]
    expected = 256 * ExpertReads(1.0, 8 / 256).touched(32)
    assert sum(visited) / trials == pytest.approx(expected, rel=0.01)


def test_one_token_reads_its_own_experts_and_a_large_batch_all() -> None:
    model = built("mixtral-8x7b", "h100:8", "tp=8")
    few, many = model.generate([10]), model.generate([10] * 4096)
    graph = model_graph(load_model("mixtral-8x7b"))
    experts = sum(float(param_count(graph, p)) for p in graph.params if p.part == "experts")
    read = (many.weights_s - few.weights_s) * hbm(model) * 8
    assert read == pytest.approx(experts * 2 * 6 / 8, rel=1e-6)


@pytest.mark.parametrize(("name", "on", "layout"), LAYOUTS)
def test_splitting_leaves_the_work_of_all_chips_as_it_was(name: str, on: str, layout: str) -> None:
    """Busy chips together do the FLOPs of one chip; what is replicated only adds to them."""
    spread, alone = built(name, on, layout), built(name, "h100", "tp=1")
    contexts = [512] * 64
    chips = spread.mesh.slice.num_chips
    share = spread.generate(contexts).flops_s * peak(spread) * chips
    whole = alone.generate(contexts).flops_s * peak(alone)
    assert share >= whole * (1 - 1e-9)


def test_a_layout_that_replicates_nothing_has_exactly_the_flops_of_one_chip() -> None:
    spread, alone = built("llama3-70b", "v5e:2x4", "tp=8"), built("llama3-70b", "h100", "tp=1")
    share = spread.generate([512] * 64).flops_s * peak(spread) * 8
    assert share == pytest.approx(alone.generate([512] * 64).flops_s * peak(alone), rel=1e-9)


def collectives(model: StepModel, ops: str) -> list[str]:
    (stage,) = model.stages[frozenset(("generate",))]
    terms = [c.term for c in stage]
    return [t.kind for t in terms if isinstance(t, CommTerm) and t.op.startswith(ops)]


def test_a_cache_split_by_batch_costs_two_all_to_alls() -> None:
    model = built("llama3-70b", "v5e:4x4", "tp=16,kv=batch")
    found = collectives(model, "attention.")
    assert found == ["all_to_all", "all_to_all", "all_reduce"]


def test_a_cache_split_by_position_merges_softmaxes() -> None:
    model = built("llama3-70b", "v5e:4x4", "tp=16,kv=sequence")
    found = collectives(model, "attention.")
    assert found == ["all_gather", "all_reduce", "all_reduce", "reduce_scatter", "all_reduce"]


def test_splitting_the_cache_past_the_heads_halves_its_reads() -> None:
    contexts = [4096] * 16
    heads, batch, positions = (
        built("llama3-70b", "v5e:4x4", f"tp=16,kv={kv}").generate(contexts)
        for kv in ("heads", "batch", "sequence")
    )
    assert heads.kv_s == pytest.approx(2 * batch.kv_s) == pytest.approx(2 * positions.kv_s)
    assert heads.network_s < batch.network_s < positions.network_s


def test_experts_and_data_parallel_attention_exchange_tokens_twice() -> None:
    model = built("deepseek-v3", "h100:8x4", "dp=32,ep=32")
    assert collectives(model, "") == ["all_to_all", "all_to_all"]


def test_latent_attention_decodes_from_the_latents_alone() -> None:
    model = built("deepseek-v3", "h100", "tp=1")
    (stage,) = model.stages[frozenset(("generate",))]
    names = {c.term.op for c in stage}
    assert {"attention.q_absorb", "attention.v_up"} <= names and "attention.k" not in names


def test_data_parallel_ranks_wait_for_the_one_with_most_sequences() -> None:
    model = built("deepseek-v3", "h100:8", "dp=8,ep=8")
    assert model.generate([900] * 9).kv_s == pytest.approx(2 * model.generate([900] * 8).kv_s)


def test_cached_positions_of_a_prompt_are_not_computed_again() -> None:
    model = built("llama3-8b", "h100", "tp=1")
    whole, rest = model.prefill([4096]), model.prefill([4096], cached=3072)
    assert rest.matmul_s == pytest.approx(whole.matmul_s / 4, rel=0.01)
    assert rest.kv_s == whole.kv_s
    with pytest.raises(UsageError, match="leave nothing"):
        model.prefill([4096], cached=4096)


def test_chunks_of_a_prompt_add_up_to_its_attention() -> None:
    model = built("gemma3-4b", "h100", "tp=1")
    chunks = [(0, 1000), (1000, 2048), (2048, 3000)]
    spent = [
        model.mixed([1], tokens=e - s, kv_tokens=sum(range(s + 1, e + 1))).attention_s
        - model.generate([1]).attention_s
        for s, e in chunks
    ]
    assert sum(spent) == pytest.approx(model.prefill([3000]).attention_s, rel=1e-9)


def test_a_chunk_rides_on_the_weights_of_a_decode_step() -> None:
    model = built("llama3-8b", "h100", "tp=1")
    decode, mixed = model.generate([2048] * 8), model.mixed([2048] * 8, tokens=64, kv_tokens=64**2)
    alone = model.prefill([64])
    assert mixed.weights_s == decode.weights_s
    assert decode.expected_s < mixed.expected_s < decode.expected_s + alone.expected_s


def test_checking_proposed_tokens_reads_weights_and_cache_once() -> None:
    model = built("llama3-70b", "v5e:4x4", "tp=16,kv=batch")
    plain, checked = model.generate([4096] * 4), model.generate([4096] * 4, queries=5)
    assert (checked.weights_s, checked.kv_s) == (plain.weights_s, plain.kv_s)
    assert checked.matmul_s == pytest.approx(5 * plain.matmul_s)


def test_context_parallel_prefill_gathers_keys_and_values() -> None:
    model = built("llama3-70b", "v5e:4x4", "tp=4,cp=4")
    (stage,) = model.stages[frozenset(("prefill",))]
    found = [c.term for c in stage if isinstance(c.term, CommTerm) and c.term.where == "R"]
    assert [(m.kind, m.unit) for m in found] == [("all_gather", "positions")] * 2
    one = built("llama3-70b", "v5e:2x2", "tp=4").prefill([8192])
    assert model.prefill([8192]).matmul_s == pytest.approx(one.matmul_s / 4, rel=1e-3)


@settings(max_examples=60)
@given(
    st.sampled_from(LAYOUTS),
    st.integers(1, 200),
    st.integers(1, 30_000),
    st.integers(0, 50),
    st.integers(0, 5000),
)
def test_more_work_never_takes_less_time_and_bounds_stay_in_order(
    case: tuple[str, str, str], batch: int, context: int, more: int, longer: int
) -> None:
    model = built(*case)
    step, larger = (
        model.generate([context] * batch),
        model.generate([context + longer] * (batch + more)),
    )
    assert step.lower_s <= step.expected_s <= step.upper_s * (1 + 1e-12)
    assert step.expected_s <= larger.expected_s * (1 + 1e-12)
    assert step.lower_s <= larger.lower_s * (1 + 1e-12)
    assert 0 < step.mfu <= 1 and 0 < step.hbm_s <= step.expected_s


def test_a_utilisation_above_one_cannot_be_built() -> None:
    with pytest.raises(ModelError, match="above 100 %"):
        ServingStepTime(2.0, 0.0, 0.5, 0.0, 0.0, 1.0, {})


def test_a_layout_must_have_the_chips_of_the_slice() -> None:
    with pytest.raises(PlacementError, match="8 chips"):
        serving_model(load_model("llama3-8b"), parse_slice("v5e:4x4"), ServingLayout(tp=8))


def test_a_step_counts_its_matmuls_and_the_collectives_that_wait() -> None:
    step = built("llama3-70b", "v5e:4x4", "tp=16,kv=batch").generate([100])
    assert (step.num_matmuls, step.num_collectives) == (80 * 9 + 1, 80 * 4)
    assert 0 < step.latency_s < step.network_s


def test_the_overhead_of_a_step_is_named_and_added() -> None:
    spec, on = load_model("llama3-8b"), parse_slice("h100")
    plain = serving_model(spec, on, ServingLayout()).generate([100])
    slow = serving_model(spec, on, ServingLayout(), overhead_s=0.002).generate([100])
    assert slow.expected_s == pytest.approx(plain.expected_s + 0.002)
    assert slow.lower_s == plain.lower_s and plain.overhead_s == 0
