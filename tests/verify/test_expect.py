"""What a plan expects, against counting by hand; pairing, against collectives made up here."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import EXAMPLE, small_plan

from rooflight.graph import model_graph
from rooflight.specs import load_model
from rooflight.verify.expect import (
    Expected,
    expected_collectives,
    expected_weights,
    kept_gathers,
)
from rooflight.verify.hlo import Collective
from rooflight.verify.match import Small, match
from rooflight.verify.state import terms

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


def test_without_remat_what_was_gathered_is_kept_and_its_bytes_are_named() -> None:
    plan = small_plan("fsdp=X", "X=16", remat="none")
    assert _total(expected_collectives(plan))["all_gather"] == 2 * LAYER + 2 * FRAME
    assert kept_gathers(plan) == 2 * LAYER + FRAME  # nothing reads the embedding again
    (gathered,) = [t for t in terms(plan) if t.name == "gathered weights"]
    assert gathered.program_bytes == kept_gathers(plan) and "remat none" in gathered.because


@pytest.mark.parametrize("microbatches", [1, 4])
def test_data_parallel_gradients_are_reduced_once_for_all_layers(microbatches: int) -> None:
    found = expected_collectives(small_plan("dp=X", "X=16", microbatches=microbatches))
    assert {(e.kind, e.count) for e in found} == {("all_reduce", 1)}
    assert _total(found)["all_reduce"] == 2 * (2 * LAYER + 2 * FRAME)  # fp32


@pytest.mark.parametrize(("remat", "exchanges"), [("none", 4), ("dots", 6), ("block", 6)])
def test_experts_are_reached_and_left_again_where_remat_says_so(remat: str, exchanges: int) -> None:
    model = load_model("mixtral-8x7b")
    plan = replace(small_plan("dp=Y,fsdp=X,ep=X", "Y=2,X=8", remat=remat), model=model)
    found = [e for e in expected_collectives(plan) if e.kind == "all_to_all"]
    assert sum(e.count for e in found) == exchanges * len(model_graph(model).order)


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
