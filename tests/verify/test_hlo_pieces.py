"""What a scheduled collective is made of, and what moves after a padded one."""

from collections import Counter
from dataclasses import replace

import pytest
from hlo_pieces import Piece, pieces_of, shifts
from hypothesis import given
from hypothesis import strategies as st
from rewrites import explain_rewrites

from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step

AXES = MeshAxes({"X": 4}, {})
# Two gradients joined; of the first, 28 rows are padded to 32 so that each device has 8.
PADDED = """HloModule joined, is_scheduled=true, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%scatter (p0: f32[28,128], p1: f32[4,2,128]) -> (f32[8,128], f32[2,128]) {
  %p0 = f32[28,128] parameter(0)
  %zero = f32[] constant(0)
  %pad = f32[32,128] pad(%p0, %zero), padding=0_4x0_0
  %p1 = f32[4,2,128] parameter(1)
  %view = f32[8,128] bitcast(%p1)
  %r = (f32[32,128], f32[8,128]) all-reduce(%pad, %view), replica_groups={{0,1,2,3}}, to_apply=%sum
  %first = f32[32,128] get-tuple-element(%r), index=0
  %second = f32[8,128] get-tuple-element(%r), index=1
  %at = s32[] constant(0)
  %mine = f32[8,128] dynamic-slice(%first, %at, %at), dynamic_slice_sizes={8,128}
  %other = f32[2,128] dynamic-slice(%second, %at, %at), dynamic_slice_sizes={2,128}
  ROOT %tuple = (f32[8,128], f32[2,128]) tuple(%mine, %other)
}

ENTRY %main (w: f32[28,128], v: f32[4,2,128]) -> f32[3,128] {
  %w = f32[28,128] parameter(0)
  %v = f32[4,2,128] parameter(1)
  %fusion = (f32[8,128], f32[2,128]) fusion(%w, %v), kind=kCustom, calls=%scatter
  %part = f32[8,128] get-tuple-element(%fusion), index=0
  %moved = f32[3,128] slice(%part), slice={[5:8], [0:128]}
  ROOT %permute = f32[3,128] collective-permute(%moved), source_target_pairs={{0,1},{1,2},{2,3}}
}
"""


@pytest.fixture
def scheduled() -> CompiledStep:
    return read_step(parse_module(PADDED), axes=AXES)


def partitioned(scheduled: CompiledStep, *sizes: int) -> CompiledStep:
    """Plain scatters of so many bytes each."""
    one = next(c for c in scheduled.collectives if c.kind == "reduce_scatter")
    made = (replace(one, name=f"s{n}", input_bytes=n, output_bytes=n // 4) for n in sizes)
    return replace(scheduled, collectives=tuple(made))


def test_a_fused_scatter_is_made_of_its_parameters(scheduled: CompiledStep) -> None:
    scatter = next(c for c in scheduled.collectives if c.kind == "reduce_scatter")
    row = 4 * 128
    assert pieces_of(scheduled.module, scatter) == (
        Piece(28 * row, 28 * row, 32 * row),
        Piece(8 * row, 8 * row, 8 * row),
    )
    assert pieces_of(scheduled.module, replace(scatter, input_bytes=1, output_bytes=1)) is None


def test_joined_and_padded_scatters_are_explained_with_the_permute(
    scheduled: CompiledStep,
) -> None:
    row = 4 * 128
    before = partitioned(scheduled, 28 * row, 8 * row)
    found = explain_rewrites(before, scheduled, AXES)
    assert found.counts == {"padded": 1, "combined": 2}
    assert found.unexplained == 0


@pytest.mark.parametrize("rows", [(28,), (28, 8, 8), (24, 8), (28, 4)])
def test_other_gradients_do_not_explain_them(
    scheduled: CompiledStep, rows: tuple[int, ...]
) -> None:
    before = partitioned(scheduled, *(4 * 128 * n for n in rows))
    assert explain_rewrites(before, scheduled, AXES).unexplained > 0


def test_without_its_permute_a_padded_scatter_is_not_explained(scheduled: CompiledStep) -> None:
    only = replace(scheduled, collectives=scheduled.collectives[:1])
    before = partitioned(scheduled, 28 * 4 * 128, 8 * 4 * 128)
    assert explain_rewrites(before, only, AXES).unexplained == 3


@given(st.integers(1, 40), st.integers(0, 40), st.integers(2, 24))
def test_after_the_shifts_every_device_can_have_its_own_part(
    part: int, added: int, ways: int
) -> None:
    """By force: element e lies on device e // padded and is wanted on e // part."""
    padded = part + added
    far: Counter[int] = Counter()
    taken: dict[int, set[int]] = {}
    for element in range(part * ways):
        shift = element // part - element // padded
        far[shift] += 1
        taken.setdefault(shift, set()).add(element % padded)
    del far[0]
    spans = [max(taken[s]) - min(taken[s]) + 1 for s in sorted(far)]
    assert sorted(far) == list(range(1, len(far) + 1))
    assert shifts(part, padded, ways) == spans
