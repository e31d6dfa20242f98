"""What a plan expects, against counting by hand; pairing, against collectives made up here."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import EXAMPLE, small_plan

from rooflight.compile.aot.state import expected_state, program_job, terms
from rooflight.compile.expected.match import Small, match
from rooflight.compile.expected.train import (
    Expected,
    expected_collectives,
    expected_optimizer,
    expected_weights,
)
from rooflight.compile.findings.verify import (
    _small,  # pyright: ignore[reportPrivateUsage]
    _stored,  # pyright: ignore[reportPrivateUsage]
)
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.step import CompiledStep
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.zero import split_state
from rooflight.models.presets import load_model
from rooflight.plan.file.record import MemoryUse, Plan
from rooflight.plan.training.memory.count import memory
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.program.from_plan.setting import setting_of

LAYER = 2 * (1024 * 128 * (8 + 4 + 4 + 8) + 3 * 1024 * 4096)  # bytes of a layer in bf16
FRAME = 2 * 1024 * 8192  # of the embedding, and of the head


def _total(expected: list[Expected]) -> Counter[str]:
    found: Counter[str] = Counter()
    for e in expected:
        found[e.kind] += e.nbytes * e.count
    return found


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_fsdp_gathers_twice_and_scatters_once(microbatches: int) -> None:
    plan = small_plan("fsdp=X", "X=16", microbatches=microbatches)
    assert _total(expected_collectives(plan)) == {
        "all_gather": microbatches * (2 * 2 * LAYER + 2 * FRAME),
        "reduce_scatter": microbatches * (2 * LAYER + 2 * FRAME),
    }


@pytest.mark.parametrize("remat", ["none", "dots", "q+k"])
def test_no_policy_keeps_the_gathered_weights_of_a_layer(remat: str) -> None:
    plain = expected_collectives(small_plan("fsdp=X", "X=16"))
    found = expected_collectives(small_plan("fsdp=X", "X=16", remat=remat))
    assert _total(found) == _total(plain)


NORMS = 5 * 1024  # scales: two in each of two layers, and the last one


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("recipe", ["10", "16", "18", "f32"])
def test_data_parallel_gradients_are_scattered_once_and_new_weights_gathered(
    microbatches: int, recipe: str
) -> None:
    plan = small_plan("dp=X", "X=16", microbatches=microbatches)
    found = expected_collectives(replace(plan, recipe=recipe))
    assert {(e.kind, e.count) for e in found} == {("reduce_scatter", 1), ("all_gather", 1)}
    numbers = (2 * LAYER + 2 * FRAME) // 2 + NORMS
    stored = 4 if recipe == "f32" else 2
    added = 4 if recipe in ("18", "f32") else 2
    gradient = stored if microbatches == 1 else added
    assert _total(found)["reduce_scatter"] == gradient * numbers
    assert _total(found)["all_gather"] == stored * numbers


def test_without_zero_gradients_are_all_reduced() -> None:
    plan = replace(small_plan("dp=X", "X=16"), zero=0)
    found = expected_collectives(plan)
    assert {(e.kind, e.count) for e in found} == {("all_reduce", 1)}
    assert _total(found)["all_reduce"] == 2 * (2 * LAYER + 2 * FRAME) + 4 * NORMS  # fp32


def test_an_axis_that_divides_no_dim_leaves_the_state_whole() -> None:
    plan = small_plan("dp=X", "X=16")
    numbers = (2 * LAYER + 2 * FRAME) // 2 + NORMS
    assert sum(expected_optimizer(plan).values()) == numbers // 16
    setting = setting_of(plan)
    for param in setting.graph.params:
        stored, sizes = setting.layout.of_weight(param.tensor), setting.graph.sizes
        assert split_state(stored, ("X",), sizes=sizes, axes={"X": 7}) == stored


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_experts_are_reached_and_left_again_in_the_backward_pass(remat: str) -> None:
    model = load_model("mixtral-8x7b")
    plan = replace(small_plan("dp=Y,fsdp=X,ep=X", "Y=2,X=8", remat=remat), model=model)
    found = [e for e in expected_collectives(plan) if e.kind == "all_to_all"]
    assert sum(e.count for e in found) == 6 * len(model_graph(model).order)


def test_a_tied_table_is_gathered_and_scattered_for_both_of_its_uses() -> None:
    model = load_model("gemma2-9b")
    plan = replace(small_plan("fsdp=X", "X=16"), model=model)
    ends = [e for e in expected_collectives(plan) if e.op in ("embedding.tokens", "head.logits")]
    assert Counter(e.kind for e in ends) == {"all_gather": 2, "reduce_scatter": 2}
    assert {e.nbytes for e in ends} == {2 * model.vocab * model.d_model}


def test_stored_weights_are_all_of_the_model_over_the_devices() -> None:
    plan = small_plan("fsdp=X", "X=16")
    elements = 2 * LAYER // 2 + 2 * FRAME // 2 + (2 * 2 + 1) * 1024  # and the norms
    assert sum(expected_weights(plan).values()) == 4 * elements // 16
    assert sum(1 for name in expected_weights(plan) if name.startswith("frame")) == 3


@pytest.mark.parametrize(("recipe", "copies"), [("f32", 2), ("10", 2), ("16", 3), ("18", 3)])
@pytest.mark.parametrize(("layout", "ways"), [("fsdp=X", 1), ("dp=X", 16)])
def test_the_state_is_every_weight_with_its_moments_and_the_recipes_master(
    recipe: str, copies: int, layout: str, ways: int
) -> None:
    plan = replace(small_plan(layout, "X=16"), recipe=recipe)
    weights, state = expected_weights(plan), expected_state(plan)
    assert len(state) == (1 + copies) * len(weights)
    wide = 4 * sum(weights.values()) // (4 if recipe == "f32" else 2)
    assert sum(state.values()) == sum(weights.values()) + copies * wide // ways


def test_a_program_whose_weights_are_not_found_is_not_judged_sound(
    steps: dict[str, CompiledStep],
) -> None:
    plan = small_plan("fsdp=X", "X=16")
    assert _stored(plan, steps["fsdp-partitioned"]) == ((), tuple(expected_state(plan)))


def test_a_plan_for_the_program_has_no_term_that_differs() -> None:
    plan = replace(EXAMPLE, memory=_held(EXAMPLE, "rooflight"))
    assert {t.because for t in terms(plan)} == {""}
    assert sum(t.program_bytes for t in terms(plan)) == plan.memory.total_bytes


def test_a_plan_for_the_closed_form_differs_in_terms_that_are_named() -> None:
    plan = replace(EXAMPLE, memory=_held(EXAMPLE, "none"))
    differing = {t.name for t in terms(plan) if t.because}
    assert differing == {"stacked gradients", "gathered weights", "workspace"}


def _held(plan: Plan, framework: str) -> MemoryUse:
    found = memory(replace(program_job(plan), framework=FRAMEWORKS[framework]))
    return MemoryUse(found.stage, found.parts, found.hbm_bytes)


@pytest.mark.parametrize(("microbatches", "numbers"), [(1, 4096), (2, 2048), (4, 1024)])
def test_small_is_a_vector_or_a_number_a_token_in_fp32(microbatches: int, numbers: int) -> None:
    plan = small_plan("fsdp=X", "X=16", microbatches=microbatches)
    setting = setting_of(plan)
    assert _small(setting, setting.dims).vector == 4 * numbers


def _found(expected: Expected, **changes: object) -> Collective:
    one = Collective(
        name="c",
        kind=expected.kind,
        dtype="bf16",
        input_bytes=expected.nbytes,
        output_bytes=expected.nbytes,
        axes=expected.axes,
        is_whole=True,
        group_size=4,
        form="sync",
        done=None,
        overlapped=None,
        count=expected.count,
        loops=(),
        channel=None,
        algorithm="",
        op_name=f"jit(step)/jvp({expected.op})/reshard",
        source="a.py:1",
    )
    return replace(one, **changes)  # pyright: ignore[reportArgumentType]


EXPECTED = [e for e in expected_collectives(EXAMPLE) if e.kind != "all_to_all"]
OPS = [op.name for op in model_graph(EXAMPLE.model).ops]


@given(st.permutations(EXPECTED))
def test_the_expected_collectives_match_in_any_order(shuffled: list[Expected]) -> None:
    matching = match(EXPECTED, [_found(e) for e in shuffled], OPS, Small(vector=1))
    assert (matching.missing, matching.surplus, matching.matched_share) == ((), (), 1.0)


@given(st.integers(0, len(EXPECTED) - 1))
def test_one_that_is_left_out_is_missing_with_its_bytes(at: int) -> None:
    found = [_found(e) for i, e in enumerate(EXPECTED) if i != at]
    matching = match(EXPECTED, found, OPS, Small(vector=1))
    (missing,) = matching.missing
    assert missing.nbytes == EXPECTED[at].nbytes * EXPECTED[at].count
    assert not matching.surplus and matching.matched_share < 1


@pytest.mark.parametrize(
    "changes",
    [{"kind": "permute"}, {"axes": ("Z",)}, {"axes": None}, {"is_whole": False}, {"count": None}],
)
def test_one_that_differs_is_both_missing_and_a_surprise(changes: dict[str, object]) -> None:
    first = replace(EXPECTED[0], nbytes=12_345_678)
    matching = match([first], [_found(first, **changes)], OPS, Small(vector=1))
    assert len(matching.missing) == len(matching.surprises) == 1


def test_a_named_class_does_not_hide_a_large_array() -> None:
    norm = Expected("all_reduce", ("X",), 4096, 1, "final_norm.norm", "")
    small = Small(vector=4096)
    assert not match([], [_found(norm)], OPS, small).surprises
    assert match([], [_found(replace(norm, nbytes=4097))], OPS, small).surprises


@pytest.mark.parametrize("nbytes", [4, 4096])
def test_a_named_class_does_not_hide_what_runs_unknown_times(nbytes: int) -> None:
    norm = Expected("all_reduce", ("X",), nbytes, 1, "final_norm.norm", "")
    assert match([], [_found(norm, count=None)], OPS, Small(vector=4096)).surprises


@pytest.mark.parametrize(("nbytes", "is_named"), [(1024, True), (4096, True), (4097, False)])
def test_a_bias_is_named_where_the_model_has_one_and_only_up_to_a_vector(
    nbytes: int, is_named: bool
) -> None:
    bias = Expected("all_gather", ("X",), nbytes, 1, "attention.q", "")
    biased = Small(vector=4096, biased=frozenset(["attention.q"]))
    assert (not match([], [_found(bias)], OPS, biased).surprises) == is_named
    assert match([], [_found(bias)], OPS, Small(vector=4096)).surprises
