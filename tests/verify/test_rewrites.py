"""Rewrites of the compiler: each predicts what comes of what, and nothing else is explained."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from rewrites import Kind, explain_rewrites
from whole_models import WHOLE, Whole, rewriting

from rooflight.compile.aot.environment import package_version
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.step import CompiledStep

AXES = MeshAxes({"X": 16, "Y": 4}, {})
HAS_COMPILER = package_version("libtpu") is not None


@pytest.fixture
def before(steps: Mapping[str, CompiledStep]) -> CompiledStep:
    return steps["fsdp-partitioned"]


@pytest.fixture
def after(steps: Mapping[str, CompiledStep]) -> CompiledStep:
    return steps["fsdp-v5p"]


def test_the_schedule_of_a_real_program_is_explained_to_the_last_collective(
    before: CompiledStep, after: CompiledStep
) -> None:
    found = explain_rewrites(before, after, AXES)
    assert found.unexplained == 0
    # In the backward loop one weight is gathered twice, and one gradient is not scattered.
    assert found.counts == {"as partitioned": 37, "fused": 6, "unscattered": 6, "once": 6}


def test_a_program_that_did_not_change_has_no_rewrite(before: CompiledStep) -> None:
    found = explain_rewrites(before, before, AXES)
    assert set(found.counts) == {"as partitioned"}
    assert found.unexplained == 0


@pytest.mark.parametrize("place", range(9))
def test_a_collective_that_is_left_out_of_the_schedule_is_not_explained(
    before: CompiledStep, after: CompiledStep, place: int
) -> None:
    fewer = tuple(c for i, c in enumerate(after.collectives) if i != place)
    found = explain_rewrites(before, replace(after, collectives=fewer), AXES)
    assert found.unexplained >= (after.collectives[place].count or 0) > 0


@pytest.mark.parametrize("place", range(9))
def test_a_collective_that_is_larger_in_the_schedule_is_not_explained(
    before: CompiledStep, after: CompiledStep, place: int
) -> None:
    grown = list(after.collectives)
    one = grown[place]
    grown[place] = replace(one, input_bytes=one.nbytes + 4096, output_bytes=one.nbytes + 4096)
    found = explain_rewrites(before, replace(after, collectives=tuple(grown)), AXES)
    assert found.unexplained >= (one.count or 0)


def test_two_of_a_kind_may_be_combined_and_only_if_their_bytes_add_up(
    before: CompiledStep,
) -> None:
    gather = before.collectives[1]
    assert gather.kind == "all_gather"
    pair = replace(before, collectives=(gather, gather))
    whole = replace(gather, input_bytes=gather.input_bytes * 2, output_bytes=gather.nbytes * 2)
    joined = explain_rewrites(pair, replace(before, collectives=(whole,)), AXES)
    assert joined.counts == {"combined": 12}
    assert joined.unexplained == 0
    wrong = replace(whole, output_bytes=gather.nbytes * 2 + 4)
    apart = explain_rewrites(pair, replace(before, collectives=(wrong,)), AXES)
    assert apart.unexplained == 18


def test_a_sum_over_slices_is_done_inside_and_between_them(before: CompiledStep) -> None:
    total = replace(before.collectives[0], axes=("X", "Y"))
    inside = replace(total, axes=("Y",))
    across = replace(total, axes=("X",), form="dcn")
    one = replace(before, collectives=(total,))
    two = replace(before, collectives=(inside, across))
    slices = MeshAxes({"X": 2, "Y": 4}, {"X": 2})
    found = explain_rewrites(one, two, slices)
    assert found.unexplained == 0
    assert "between slices" in found.counts
    assert explain_rewrites(one, two, AXES).unexplained == 3


def test_a_window_is_one_permute_less_than_parts(before: CompiledStep) -> None:
    gather = before.collectives[1]
    part = gather.nbytes // 16
    permute = replace(
        gather, kind="permute", input_bytes=part, output_bytes=part, count=15 * (gather.count or 0)
    )
    one, two = (replace(before, collectives=(c,)) for c in (gather, permute))
    found = explain_rewrites(one, two, AXES)
    assert found.counts == {"windowed": 6}
    assert found.unexplained == 0
    short = replace(permute, count=(permute.count or 0) - 1)
    left = explain_rewrites(one, replace(before, collectives=(short,)), AXES)
    assert left.gone == {Kind("all_gather", ("X",), gather.nbytes): 6}


def test_a_padded_scatter_has_a_permute_of_what_was_added(before: CompiledStep) -> None:
    scatter = next(c for c in before.collectives if c.kind == "reduce_scatter")
    added = 16 * 4096
    padded = replace(scatter, input_bytes=scatter.nbytes + added)
    moved = replace(scatter, kind="permute", input_bytes=added * 15 // 16, output_bytes=0)
    one = replace(before, collectives=(scatter,))
    found = explain_rewrites(one, replace(before, collectives=(padded, moved)), AXES)
    assert found.counts == {"padded": 6}
    assert found.unexplained == 0
    wrong = replace(moved, input_bytes=added)
    left = explain_rewrites(one, replace(before, collectives=(padded, wrong)), AXES)
    assert left.unexplained == 18


@pytest.mark.parametrize(("nbytes", "unexplained"), [(1 << 16, 0), (1 << 17, 12)])
def test_only_a_small_gather_may_be_a_sum(
    before: CompiledStep, nbytes: int, unexplained: int
) -> None:
    gather = replace(before.collectives[1], input_bytes=nbytes, output_bytes=nbytes)
    total = replace(gather, kind="all_reduce")
    one, two = (replace(before, collectives=(c,)) for c in (gather, total))
    assert explain_rewrites(one, two, AXES).unexplained == unexplained


@pytest.mark.full
@pytest.mark.skipif(not HAS_COMPILER, reason="needs libtpu")
@pytest.mark.parametrize("whole", WHOLE, ids=lambda w: f"{w.model} on {w.slice}")
def test_the_schedules_of_whole_models_are_explained(whole: Whole) -> None:
    assert rewriting(whole).unexplained == 0
