"""Memory of a training step: by hand on a tiny model, the book's numbers, and properties."""

from dataclasses import replace
from itertools import pairwise
from math import isclose
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError, UnknownNameError, UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, op_flops
from rooflight.models.graph.ops import Graph
from rooflight.models.graph.utilisation import recomputed_flops_per_token
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Repeat
from rooflight.plan.training.memory.count import Memory, memory, memory_by_stage, usable_hbm_bytes
from rooflight.plan.training.memory.framework import parse_framework
from rooflight.plan.training.memory.job import RECIPES, Job, Microbatching, Recipe, parse_recipe
from rooflight.plan.training.memory.remat import REMATS, keep, parse_remat
from rooflight.plan.training.questions.fixes import fixes, sized, solve, together

POLICIES = ("none", "dots", "block", "offload")


def dense(*, d: int, f: int, layers: int, heads: int, head: int, vocab: int) -> Graph:
    block = Block(Attention(heads, heads, head), Mlp(f))
    return model_graph(ModelSpec("toy", "Toy", d, vocab, (Repeat((block,), layers),)))


TINY = dense(d=8, f=32, layers=3, heads=2, head=4, vocab=16)
TINY_PARAMS = 3 * (4 * 8 * 8 + 3 * 8 * 32 + 2 * 8) + 2 * 16 * 8 + 8


def job(
    graph: Graph | str,
    layout: str = "fsdp=X",
    *,
    axes: dict[str, int] | None = None,
    on: str = "v5p",
    batch: int = 4,
    seq: int = 16,
    recipe: str = "10",
    remat: str = "block",
) -> Job:
    graph = model_graph(load_model(graph)) if isinstance(graph, str) else graph
    return Job(
        graph,
        parse_layout(layout),
        {"X": 1} if axes is None else axes,
        load_chip(on),
        batch,
        seq,
        recipe=parse_recipe(recipe),
        remat=parse_remat(remat, graph),
    )


def sizes(found: Memory) -> dict[str, int]:
    return {part.name: part.nbytes for part in found.parts}


def saved(found: Memory) -> int:
    return found.part("saved activations").nbytes


def state(found: Memory) -> int:
    names = ("weights", "gradients", "master weights", "optimizer moments")
    return sum(found.part(name).nbytes for name in names)


# By hand


def test_one_chip_holds_what_a_hand_counts() -> None:
    tokens = 4 * 16
    layer = tokens * 2 * (3 * 8 + 8 + 8 + 8 + 8 + 3 * 32)  # all that block remat recomputes
    widest = tokens * 2 * (8 + 32)  # m and gate, or hidden and fed
    assert sizes(memory(job(TINY))) == {
        "weights": 2 * TINY_PARAMS,
        "gradients": 0,
        "master weights": 0,
        "optimizer moments": 8 * TINY_PARAMS,
        "saved activations": tokens * 2 * 8 * (3 + 2),  # x of 3 layers; x and h of the head
        "gathered weights": 0,
        "workspace": layer + widest,  # the logits take tokens * 16 * 6, which is less
    }


def test_two_chips_of_fsdp_hold_half_and_gather_two_weights_and_a_gradient() -> None:
    one, two = (sizes(memory(job(TINY, axes={"X": x}))) for x in (1, 2))
    gathered = two.pop("gathered weights")
    assert one.pop("gathered weights") == 0
    assert gathered == 3 * 2 * 8 * 32  # gate and in, and the gradient of one of them
    assert all(two[name] * 2 == one[name] for name in one)


def test_tensor_parallelism_gathers_activations_and_no_weight() -> None:
    found = memory(job(TINY, "tp=Y", axes={"Y": 2}))
    assert found.part("gathered weights").nbytes == 0
    widest = 64 * 2 * (8 + 16)  # m whole, gate halved
    halved = 64 * 2 * (20 - 1) * 8 // 2  # 20 times D, less the input that is saved
    assert found.part("workspace").nbytes == halved + widest


@pytest.mark.parametrize("layout", ("fsdp=X,tp=Y", "fsdp=X,sp=Y", "fsdp=X,mp=Y"))
def test_a_weight_is_gathered_over_the_data_axis_only(layout: str) -> None:
    found = memory(job(TINY, layout, axes={"X": 2, "Y": 2}))
    assert found.part("gathered weights").nbytes == 3 * 2 * 8 * 32 // 2


def test_the_workspace_is_the_loss_where_the_vocabulary_is_large() -> None:
    ask = job(dense(d=8, f=32, layers=3, heads=2, head=4, vocab=1024))
    logits = 4 * 16 * 1024
    assert memory(ask).part("workspace").nbytes == 6 * logits
    loss = (DTYPES["f32"], DTYPES["f32"], DTYPES["bf16"])
    more = replace(ask, framework=replace(ask.framework, loss=loss))
    assert memory(more).part("workspace").nbytes == 10 * logits


def bytes_per_param(recipe: Recipe) -> int:
    held = (recipe.weights, recipe.gradients, recipe.master, *recipe.moments)
    return sum(d.nbytes(1) for d in held if d)


def test_recipes_hold_the_bytes_of_their_names() -> None:
    for name, recipe in RECIPES.items():
        found = memory(job(TINY, recipe=name))
        assert state(found) == bytes_per_param(recipe) * TINY_PARAMS
        assert name == "f32" or bytes_per_param(recipe) == int(name)


def test_a_batch_that_does_not_split_is_refused_by_the_algebra() -> None:
    with pytest.raises(ShardingError, match="B=4 does not split 8 ways"):
        memory(job(TINY, "dp=X", axes={"X": 8}))
    with pytest.raises(ShardingError, match="K=2 does not split 4 ways"):
        memory(job(TINY, "tp=X", axes={"X": 4}))


def test_the_compilers_limit_stands_before_the_data_sheet() -> None:
    v5p, h100 = load_chip("v5p"), load_chip("h100")
    assert usable_hbm_bytes(v5p) == v5p.detail["hbm_usable_bytes"]
    assert usable_hbm_bytes(h100) == h100.hbm_bytes


# The book


def book_layers(found: Memory, tokens: int, d: int) -> int:
    """Saved bytes without the two tensors that the head keeps, which the book leaves out."""
    return saved(found) - 2 * 2 * tokens * d


def test_every_intermediate_is_twenty_tensors_a_layer_and_block_remat_is_one() -> None:
    graph = dense(d=8192, f=4 * 8192, layers=64, heads=64, head=128, vocab=32000)
    ask = job(graph, batch=1000, seq=4000, remat="none")
    assert book_layers(memory(ask), 4_000_000, 8192) == 83_886_080_000_000
    block = memory(replace(ask, remat=REMATS["block"]))
    assert book_layers(block, 4_000_000, 8192) == 4_194_304_000_000


def test_keeping_the_large_matmuls_is_seven_tensors_a_layer() -> None:
    graph = model_graph(load_model("llama3-70b"))
    layer = [op for op in graph.ops if op.block == 0]
    assert len(keep(layer, REMATS["dots"]).tensors) == 7


@pytest.mark.parametrize(
    ("tokens", "expected"), ((16_000_000, 41_943_040_000_000), (3_000_000, 7_864_320_000_000))
)
def test_checkpoints_after_the_feed_forward_matmuls_are_d_and_twice_f(
    tokens: int, expected: int
) -> None:
    found = memory(job("llama2-13b", batch=tokens // 4000, seq=4000, remat="gate+up"))
    assert book_layers(found, tokens, 5120) == expected
    assert isclose(state(found), 130e9, rel_tol=0.002)
    if tokens == 3_000_000:
        whole = book_layers(found, tokens, 5120) + state(found)
        assert isclose(whole, 8e12, rel_tol=0.002)
        assert isclose(whole / 4096, 1.95e9, rel_tol=0.002)


def test_llama_70b_with_four_checkpoints_a_layer() -> None:
    ask = job("llama3-70b", batch=1000, seq=4000, remat="q+attended_heads+attended")
    found = memory(ask)
    assert isclose(found.part("weights").nbytes, 140e9, rel_tol=0.01)
    assert isclose(found.part("optimizer moments").nbytes, 560e9, rel_tol=0.01)
    assert book_layers(found, ask.tokens, 8192) == 20_971_520_000_000
    whole = book_layers(found, ask.tokens, 8192) + state(found)
    assert isclose(whole, 21.6e12, rel_tol=0.005)
    assert isclose(whole / (ask.chip.hbm_bytes or 0), 225, rel_tol=0.005)
    assert isclose(whole / 8960, 2.4e9, rel_tol=0.01)


def test_data_parallelism_on_one_v5p_ends_at_nine_billion_parameters() -> None:
    hbm_bytes = load_chip("v5p").hbm_bytes or 0
    most = hbm_bytes / bytes_per_param(RECIPES["10"])
    assert isclose(most, 9e9, rel_tol=0.07)
    assert state(memory(job("llama3-8b"))) < hbm_bytes
    assert state(memory(job("olmo2-13b"))) > hbm_bytes


@pytest.mark.parametrize(
    ("layout", "zero", "expected"),
    (("dp=X", 0, 120e9), ("dp=X", 1, 31.4e9), ("dp=X", 2, 16.6e9), ("fsdp=X", 0, 1.9e9)),
)
def test_the_stages_of_zero(layout: str, zero: Literal[0, 1, 2], expected: float) -> None:
    ask = job("llama3-8b", layout, axes={"X": 64}, batch=64, recipe="16")
    found = memory(replace(ask, zero=zero))
    per_param = state(found) / count_params(ask.graph)
    assert isclose(7.5e9 * per_param, expected, rel_tol=0.015)


# What is recomputed


@pytest.mark.parametrize("name", model_names())
def test_keeping_matmuls_redoes_attention_and_nothing_else(name: str) -> None:
    ask = job(name, batch=1, seq=1024, remat="dots")
    again = recomputed_flops_per_token(ask.graph, 1024, "attention") * 1024
    assert isclose(memory(ask).recompute_flops, again, rel_tol=1e-12)


@pytest.mark.parametrize("name", ("llama3-70b", "qwen3-32b", "gpt3-175b", "phi-4"))
def test_block_remat_redoes_a_forward_pass_less_the_product_that_nothing_reads(name: str) -> None:
    ask = job(name, batch=1, seq=1024)
    last = [op for op in ask.graph.ops if op.name == "mlp.out"]
    unread = sum(op.count * op_flops(op, ask.sizes(), causal=True) for op in last)
    full = recomputed_flops_per_token(ask.graph, 1024, "full") * 1024
    assert isclose(memory(ask).recompute_flops, full - float(unread), rel_tol=1e-12)


def test_offload_moves_what_block_keeps_to_the_host_and_back() -> None:
    block, host = (memory(job("llama3-8b", batch=2, remat=r)) for r in ("block", "offload"))
    assert host.host_bytes == saved(block) - saved(host) > 0
    pcie = load_chip("v5p").pcie_bytes_per_s
    assert pcie and host.offload_s == 2 * host.host_bytes / pcie
    assert block.recompute_flops == host.recompute_flops and block.offload_s == 0
    assert memory(job("llama3-8b", remat="offload", on="b200")).offload_s is None


def test_a_tensor_that_no_layer_has_is_named() -> None:
    with pytest.raises(UnknownNameError, match="'gat'") as error:
        parse_remat("up+gat", TINY)
    assert "gate" in error.value.hint


# Properties


@pytest.mark.parametrize("name", model_names())
def test_policies_keep_less_and_redo_more_in_order(name: str) -> None:
    found = [memory(job(name, batch=2, seq=256, remat=r)) for r in POLICIES]
    for more, less in pairwise(found):
        assert saved(more) > saved(less)
        assert more.total_bytes >= less.total_bytes
        assert more.recompute_flops <= less.recompute_flops


@pytest.mark.parametrize("remat", POLICIES)
def test_memory_is_additive_over_layers(remat: str) -> None:
    graphs = [dense(d=64, f=256, layers=n, heads=4, head=16, vocab=128) for n in (1, 2, 3)]
    found = [memory(job(g, remat=remat)) for g in graphs]
    for name in sizes(found[0]):
        one, two, three = (f.part(name).nbytes for f in found)
        assert three - two == two - one
    one, two, three = (f.host_bytes for f in found)
    assert three - two == two - one == one


LAYOUTS = st.sampled_from(
    ("dp=X,tp=Y", "fsdp=X,tp=Y", "fsdp=XY", "fsdp=X,sp=Y", "fsdp=X,cp=Y", "dp=X,mp=Y")
)
MODELS = st.sampled_from(("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gemma2-9b"))


@settings(max_examples=40)
@given(
    MODELS,
    LAYOUTS,
    st.sampled_from(POLICIES),
    st.sampled_from(list(RECIPES)),
    st.sampled_from(("X", "Y")),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2)),
)
def test_more_shards_and_smaller_batches_never_need_more(
    model: str, layout: str, remat: str, recipe: str, axis: str, x: int, zero: Literal[1, 2]
) -> None:
    ask = job(model, layout, axes={"X": x, "Y": 2}, batch=16, seq=64, remat=remat, recipe=recipe)
    now = memory(replace(ask, zero=zero))
    more = memory(replace(ask, zero=zero, axes={**ask.axes, axis: 2 * ask.axes[axis]}))
    half = memory(replace(ask, zero=zero, batch=8))
    unsplit = memory(ask)
    stored = set(sizes(now)) - {"gathered weights"}  # splitting first makes gathers
    assert all(more.part(n).nbytes <= now.part(n).nbytes for n in stored)
    assert half.total_bytes < now.total_bytes <= unsplit.total_bytes


@settings(max_examples=20)
@given(MODELS, LAYOUTS, st.sampled_from(POLICIES), st.sampled_from(list(RECIPES)))
def test_every_fix_saves_what_it_says_and_sufficient_ones_come_first(
    model: str, layout: str, remat: str, recipe: str
) -> None:
    ask = job(model, layout, axes={"X": 4, "Y": 2}, batch=16, on="v5e", remat=remat, recipe=recipe)
    before, found = memory(ask), fixes(ask)
    assert found
    for fix in found:
        after = memory(fix.job)
        assert after == fix.memory
        assert before.total_bytes - after.total_bytes == fix.saves_bytes > 0
    fits = [fix.memory.fits for fix in found]
    assert fits == sorted(fits, reverse=True)


def test_changes_made_together_end_in_a_job_that_fits_on_the_same_chips() -> None:
    ask = job("llama3-8b", "dp=X", axes={"X": 16}, batch=128, seq=4096, on="v5e", recipe="18")
    steps = together(ask)
    assert not any(f.memory.fits for f in fixes(ask) if f.job.axes == ask.axes)
    assert len(steps) > 1 and memory(steps[-1].job).fits
    assert steps[-1].job.axes == ask.axes
    assert together(replace(ask, graph=model_graph(load_model("gpt3-175b")))) == ()


# Pipelines and microbatches


def pipeline(schedule: str = "1f1b", *, count: int = 8, stages: int = 4, virtual: int = 1) -> Job:
    ask = job("llama3-8b", "fsdp=X,pp=Y", axes={"X": 2, "Y": stages}, batch=16, seq=64)
    return replace(ask, micro=Microbatching(count, schedule, virtual))


def test_stages_hold_what_the_whole_model_holds() -> None:
    whole = memory(job("llama3-8b", axes={"X": 2}, batch=2, seq=64))
    stages = memory_by_stage(pipeline())
    for name in ("weights", "optimizer moments"):
        assert sum(s.part(name).nbytes for s in stages) == whole.part(name).nbytes
    assert sum(s.num_layers for s in stages) == 32
    assert memory(pipeline()) == max(stages, key=lambda found: found.total_bytes)


def test_one_forward_one_backward_keeps_a_microbatch_less_on_each_later_stage() -> None:
    each = 8 * 2 * 64 * 4096 * 2 // 2  # 8 layers, a microbatch of 2 sequences over 2 chips
    found = [saved(stage) for stage in memory_by_stage(pipeline())]
    assert found == [4 * each, 3 * each, 2 * each, each + 2 * each // 8]  # and the head's x and h


def test_all_forwards_first_keep_every_microbatch() -> None:
    each = 8 * 2 * 64 * 4096 * 2 // 2
    assert saved(memory_by_stage(pipeline("gpipe"))[0]) == 8 * each


def test_tied_embeddings_are_on_the_first_and_on_the_last_stage() -> None:
    ask = replace(pipeline(), graph=model_graph(load_model("llama3.2-1b")))
    one = memory(replace(ask, layout=parse_layout("fsdp=X"), axes={"X": 2}, micro=Microbatching()))
    more = sum(s.part("weights").nbytes for s in memory_by_stage(ask)) - one.part("weights").nbytes
    assert more == 2 * 128256 * 2048 // 2


def test_microbatches_on_one_stage_keep_the_activations_of_one() -> None:
    ask = job("llama3-8b", batch=16, seq=64)
    parts = replace(ask, micro=Microbatching(8))
    assert saved(memory(ask)) == 8 * saved(memory(parts))
    assert memory(ask).recompute_flops == memory(parts).recompute_flops
    assert memory(ask).part("gradients").nbytes == 0  # used up as they come
    summed = memory(parts).part("gradients").nbytes  # added up over microbatches
    assert summed == memory(ask).part("weights").nbytes
    assert state(memory(parts)) == state(memory(ask)) + summed


@pytest.mark.parametrize(
    ("schedule", "virtual"), (("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1))
)
def test_no_schedule_keeps_less_than_one_forward_one_backward_on_its_last_stage(
    schedule: str, virtual: int
) -> None:
    least = min(saved(stage) for stage in memory_by_stage(pipeline()))
    found = memory_by_stage(pipeline(schedule, virtual=virtual))
    assert all(saved(stage) >= least for stage in found)
    copies = 2 if schedule == "dualpipe" else 1
    whole = memory(job("llama3-8b", axes={"X": 2}, batch=2, seq=64)).part("weights").nbytes
    assert sum(stage.part("weights").nbytes for stage in found) == copies * whole


def test_a_pipeline_with_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="3 layers do not fill 4"):
        memory(replace(pipeline(), graph=TINY))


@pytest.mark.parametrize(
    "wrong", ({"count": 0}, {"schedule": "interleaved"}, {"virtual": 2}, {"schedule": "2f2b"})
)
def test_a_microbatching_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Microbatching(**wrong)


def test_zero_3_splits_the_weights_over_data_and_context_and_gathers_them() -> None:
    ask = job("llama3-8b", "dp=X,cp=Y", axes={"X": 2, "Y": 2}, batch=4, seq=64)
    flat, fsdp = memory(replace(ask, zero=3)), memory(job("llama3-8b", axes={"X": 4}, seq=64))
    assert flat.part("weights").nbytes == fsdp.part("weights").nbytes
    assert flat.part("gathered weights").nbytes == fsdp.part("gathered weights").nbytes > 0


# What frameworks hold


def test_an_unfused_gate_keeps_one_more_tensor_of_the_width() -> None:
    ask = job(TINY, remat="none")
    more = replace(ask, framework=replace(ask.framework, keeps_activation=True))
    assert saved(memory(more)) - saved(memory(ask)) == 3 * 64 * 32 * 2


def test_inputs_kept_as_gathered_are_whole_on_every_chip_of_a_tensor_axis() -> None:
    ask = job(TINY, "sp=Y", axes={"Y": 2}, remat="none")
    more = replace(ask, framework=replace(ask.framework, keeps_gathered=True))
    assert saved(memory(more)) - saved(memory(ask)) == 3 * 2 * 64 * 8 * 2 // 2  # h and m


def test_unread_gradients_are_one_of_each_shape_however_many_layers() -> None:
    ask = job(TINY)
    found = memory(replace(ask, framework=replace(ask.framework, unread_gradients=True)))
    matrices = 4 * 8 * 8 + 3 * 8 * 32 + 16 * 8
    assert found.part("unread gradients").nbytes == 2 * matrices


def test_a_stage_that_keeps_its_weights_holds_them_whole_with_their_gradients() -> None:
    ask = pipeline()
    found = memory_by_stage(
        replace(ask, framework=replace(ask.framework, keeps_weights=True, reserved=0.5))
    )
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert found[1].part("gathered weights").nbytes == 8 * layer * (2 + 4)
    others = sum(part.nbytes for part in found[1].parts if part.name != "allocator")
    assert found[1].part("allocator").nbytes == others // 2


def test_a_copy_of_the_gradients_is_there_only_with_data_parallelism() -> None:
    for chips in (1, 2):
        ask = job(TINY, "dp=X", axes={"X": chips}, recipe="18")
        more = replace(ask, framework=replace(ask.framework, copies_gradients=True))
        extra = memory(more).part("gradients").nbytes - memory(ask).part("gradients").nbytes
        assert extra == (2 * TINY_PARAMS if chips > 1 else 0)


def own(ask: Job) -> Job:
    return replace(ask, framework=parse_framework("rooflight"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_scan_stacks_the_gradients_of_its_layers_beside_their_sums(count: int) -> None:
    ask = job(TINY, "dp=X", axes={"X": 2}, batch=4, recipe="18", remat="none")
    found = memory(own(replace(ask, micro=Microbatching(count))))
    layers_and_head = TINY_PARAMS - 16 * 8  # the embedding's comes when the layers are done
    assert found.part("stacked gradients").nbytes == 2 * layers_and_head
    assert found.part("gradients").nbytes == (4 * TINY_PARAMS if count > 1 else 0)


@pytest.mark.parametrize("rows", [1, 2])
def test_logits_in_chunks_do_not_grow_with_the_batch(rows: int) -> None:
    ask = own(job("llama3-8b", axes={"X": 32}, batch=32 * rows, seq=4096))
    assert memory(ask).part("workspace").nbytes == 2048 * 128256 * 6


def test_zero_splits_whole_dims_where_the_program_does() -> None:
    ask = replace(job(TINY, "dp=X", axes={"X": 3}, batch=3), zero=1)
    flat, whole = (memory(a).part("optimizer moments").nbytes for a in (ask, own(ask)))
    assert flat < whole == 8 * TINY_PARAMS  # 3 divides neither 8 nor 32


def test_an_unknown_framework_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="megatorn") as error:
        parse_framework("megatorn")
    assert "megatron" in error.value.hint


# Solving


def test_the_fewest_chips_fit_and_half_of_them_do_not() -> None:
    ask = job("llama3-8b", "fsdp=X,tp=Y", axes={"X": 1, "Y": 2}, batch=64, seq=4096, on="v5e")
    found = solve(ask, "chips")
    assert found is not None and memory(found).fits and found.axes["Y"] == 2
    assert not memory(sized(ask, "chips", found.axes["X"] // 2)).fits
    assert solve(replace(ask, seq=1_048_576), "chips") is None


@pytest.mark.parametrize("unknown", ("batch", "seq"))
@pytest.mark.parametrize("layout", ("fsdp=X,tp=Y", "fsdp=X,cp=Y", "fsdp=X,sp=Y"))
def test_the_solution_fits_and_the_next_size_does_not(
    unknown: Literal["batch", "seq"], layout: str
) -> None:
    ask = job("llama3-8b", layout, axes={"X": 8, "Y": 2}, batch=8, seq=4096, on="v5e")
    found = solve(ask, unknown)
    assert found is not None and memory(found).fits
    size, step = (getattr(at, unknown) for at in (found, sized(ask, unknown, 1)))
    assert size % step == 0
    assert not memory(sized(ask, unknown, size // step + 1)).fits


def test_a_model_that_does_not_fit_at_any_batch_has_no_solution() -> None:
    assert solve(job("gpt3-175b", on="v5e"), "batch") is None


def saved_by(framework: str, remat: str = "none") -> int:
    asked = replace(job(TINY, remat=remat), framework=parse_framework(framework))
    return memory(asked).part("saved activations").nbytes


def test_dropout_keeps_a_byte_of_each_element_and_unfused_attention_the_scores() -> None:
    stream, scores = 4 * 16 * 8, 4 * 2 * 16 * 16  # B T D, and B N T S
    plain = saved_by("megatron")
    assert saved_by("megatron+dropout") - plain == 3 * 2 * stream
    assert saved_by("megatron+unfused-attention") - plain == 3 * 2 * scores
    both = saved_by("megatron+unfused-attention+dropout")
    assert both - plain == 3 * (2 * stream + 5 * scores)
    assert saved_by("megatron+dropout+unfused-attention", "block") == saved_by("megatron", "block")


def test_fp8_saves_inputs_of_matmuls_in_a_byte_and_keeps_what_attention_reads_again() -> None:
    stream, width = 4 * 16 * 8, 4 * 16 * 32  # B T D, and B T F
    saved = saved_by("megatron") - saved_by("megatron+fp8")
    # h, m and hidden are halved; attention's result stays and gets a copy.
    assert saved == 3 * (2 * stream + width - stream)
    assert saved_by("megatron+fp8", "block") == saved_by("megatron", "block")


def experts(framework: str, *, on: str = "h100") -> Memory:
    block = Block(Attention(2, 2, 4), Moe(4, 2, Mlp(16)))
    graph = model_graph(ModelSpec("toy", "Toy", 8, 16, (Repeat((block,), 3),)))
    asked = job(graph, "dp=X", on=on, remat="none")
    return memory(replace(asked, framework=parse_framework(framework)))


def test_index_add_keeps_what_experts_give() -> None:
    plain, deterministic = (
        experts(name).part("saved activations").nbytes
        for name in ("megatron", "megatron+deterministic")
    )
    assert deterministic - plain == 3 * 2 * (4 * 16 * 2 * 8)  # layers, bytes, B T k D


def test_workspaces_grow_with_the_chip_and_with_streams() -> None:
    def buffers(framework: str, *, on: str = "h100") -> float:
        return experts(framework, on=on).part("library buffers").nbytes / 2**20

    assert buffers("megatron") == buffers("megatron", on="b200") == 2 * 32 + 5 * 32
    assert buffers("megatron+single-experts") == 2 * 32 + 32
    assert buffers("megatron+tp-overlap") == 2 * 32 + 8 * 32
    assert buffers("megatron", on="a100") == 2 * 8.125 + 5 * 4
    assert buffers("megatron+deterministic", on="a100") == 2 * 32 + 5 * 4
    assert buffers("megatron", on="mi300x") == buffers("megatron")  # nothing known: the larger
    dense_job = replace(job(TINY), framework=parse_framework("megatron"), chip=load_chip("h100"))
    assert memory(dense_job).part("library buffers").nbytes == 3 * 2**25


def test_an_unknown_setting_of_a_framework_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="dropuot"):
        parse_framework("megatron+dropuot")


def in_chunks(*layers: int) -> Job:
    asked = job(TINY, "dp=X,pp=Y", axes={"X": 1, "Y": 2}, batch=4, remat="none")
    return replace(asked, micro=Microbatching(4, "interleaved", 2, layers))


def test_layers_of_chunks_may_be_given() -> None:
    assert [found.num_layers for found in memory_by_stage(in_chunks(0, 1, 2, 0))] == [2, 1]
    with pytest.raises(UsageError, match="2 chunks have 3 layers"):
        memory_by_stage(in_chunks(1, 2))


def test_the_loss_comes_only_while_a_microbatch_is_in_the_chunk_of_the_head() -> None:
    """The last stage holds three microbatches of its first chunk, or two and one at the loss."""
    micro = Microbatching(8, "interleaved", 2, (0, 3, 0, 0))
    few = replace(in_chunks(), batch=8, micro=micro)
    many = replace(few, graph=dense(d=8, f=32, layers=3, heads=2, head=4, vocab=4096))
    small, large = (memory_by_stage(asked)[-1] for asked in (few, many))
    assert "3 + 0 microbatches" in small.part("saved activations").because
    assert "loss" not in small.part("workspace").because
    assert "2 + 1 microbatches" in large.part("saved activations").because
    assert "at the loss" in large.part("workspace").because
