"""What the reader finds in real dumps of programs whose collectives and FLOPs are known."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.instruction import parse_type
from rooflight.compile.hlo.memory import read_memory
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.compile.hlo.work import _Window  # pyright: ignore[reportPrivateUsage]

DUMPS = Path(__file__).parent / "dumps"
MIB = 2**20
LAYERS, TOKENS, MODEL, HIDDEN = 6, 4096, 2048, 8192  # as in make_dumps.py


def kinds(found: CompiledStep) -> Counter[tuple[str, str, int]]:
    """Kind, axes and bytes of every collective, as often as it runs."""
    counted: Counter[tuple[str, str, int]] = Counter()
    for c in found.collectives:
        assert c.count is not None and c.axes is not None
        counted[c.kind, "+".join(c.axes), c.nbytes] += c.count
    return counted


def test_one_psum_is_one_all_reduce_of_the_local_block(steps: dict[str, CompiledStep]) -> None:
    assert kinds(steps["psum"]) == {("all_reduce", "X", 4 * MIB): 1}
    (found,) = steps["psum"].collectives
    assert found.algorithm.startswith("RotatedPincerEmitter") and found.is_exposed


def test_one_gather_is_one_all_gather_of_the_whole(steps: dict[str, CompiledStep]) -> None:
    assert kinds(steps["gather"]) == {("all_gather", "Y", 1024 * 8192 * 2): 1}
    (found,) = steps["gather"].collectives
    assert (found.input_bytes, found.output_bytes) == (4 * MIB, 16 * MIB)


def test_a_gpu_dump_reads_the_same(steps: dict[str, CompiledStep]) -> None:
    assert kinds(steps["gpu"]) == {("all_gather", "Y", 1024 * 8192 * 2): 1}
    (found,) = steps["gpu"].collectives
    assert found.form == "async" and found.done == "all-gather-done"


def test_collectives_in_loops_count_as_often_as_both_loops_go_round(
    steps: dict[str, CompiledStep],
) -> None:
    found = steps["scan"]
    assert kinds(found) == {
        ("permute", "X", 4 * MIB): 3 * 5,
        ("all_to_all", "Y", 4 * 4 * MIB): 3,
    }
    assert sorted(len(c.loops) for c in found.collectives) == [1, 2]


def test_fsdp_after_partitioning_is_exactly_the_textbook(steps: dict[str, CompiledStep]) -> None:
    """Two weights are gathered forward, three backward (checkpoint); gradients are scattered."""
    weight, tokens = 2 * MODEL * HIDDEN // 4, 2 * TOKENS // 16 * MODEL
    assert kinds(steps["fsdp-partitioned"]) == {
        ("all_gather", "X", weight): 5 * LAYERS,
        ("reduce_scatter", "X", weight): 2 * LAYERS,
        ("all_reduce", "Y", tokens): 2 * LAYERS,
        ("all_reduce", "X", 4): 1,
    }
    assert all(c.overlapped is None for c in steps["fsdp-partitioned"].collectives)


def test_asynchronous_fusions_count_once_and_name_the_matmul_that_hides_them(
    steps: dict[str, CompiledStep],
) -> None:
    found = [c for c in steps["fsdp"].collectives if c.form == "async fusion"]
    assert [c.count for c in found] == [LAYERS, LAYERS]
    flops = {w.name: w.flops for w in steps["fsdp"].work}
    for c in found:
        assert c.overlapped and any(flops.get(name) for name in c.overlapped)


def test_several_slices_scatter_inside_and_reduce_between(steps: dict[str, CompiledStep]) -> None:
    """Only a quarter of the block crosses the data-centre network."""
    block = 2 * 4096 * 8192 // 32
    found = {c.kind: c for c in steps["two-slices"].collectives}
    assert set(found) == {"reduce_scatter", "all_reduce", "all_gather"}
    between = found["all_reduce"]
    assert (between.form, between.axes, between.group_size) == ("dcn", ("X",), 2)
    assert between.nbytes == block // 4
    assert found["reduce_scatter"].nbytes == block and not found["reduce_scatter"].is_whole


@pytest.mark.parametrize("name", ["fsdp", "fsdp-v5p", "fsdp-partitioned"])
def test_flops_are_those_of_seven_matmuls_a_layer(
    name: str, steps: dict[str, CompiledStep]
) -> None:
    """Two forward, four backward, one again because of the checkpoint."""
    step = steps[name]
    matmul = 2 * TOKENS * MODEL * HIDDEN // step.module.num_partitions
    assert step.flops == 7 * LAYERS * matmul
    assert step.recomputed_flops == LAYERS * matmul


def test_flops_agree_with_the_compilers_own_count(steps: dict[str, CompiledStep]) -> None:
    """Loop bodies count once there, and element-wise operations count too."""
    costs = json.loads((DUMPS / "fsdp" / "summary.json").read_text())["costs"]
    once = sum(w.flops or 0 for w in steps["fsdp"].work)
    assert once <= costs["flops"] <= 1.01 * once


def test_every_matmul_has_a_cycle_estimate_after_code_generation(
    steps: dict[str, CompiledStep],
) -> None:
    matmuls = [w for w in steps["fsdp"].work if w.flops]
    assert len(matmuls) == 7 and all(w.estimated_cycles for w in matmuls)
    assert not any(w.estimated_cycles for w in steps["fsdp-v5p"].work)


@pytest.mark.parametrize("name", [p.parent.name for p in DUMPS.glob("*/*usage-report.txt")])
def test_memory_is_that_of_the_compiler(name: str, steps: dict[str, CompiledStep]) -> None:
    """The total is what the compiler's own report says, which it holds against the limit."""
    memory = steps[name].memory
    (report,) = (DUMPS / name).glob("*usage-report.txt")
    total = re.search(r"Memory Space: default.*\nTotal bytes: (\d+)", report.read_text())
    assert memory and total and memory.total_bytes == int(total[1])
    stats = json.loads((DUMPS / name / "summary.json").read_text())["memory"]
    if stats:
        assert memory.by_category["arguments"] == stats["argument_size_in_bytes"]
        returned = memory.by_category["outputs"]
        assert returned == pytest.approx(stats["output_size_in_bytes"], rel=1e-3)


def test_what_does_not_fit_is_named_with_its_largest_buffer(
    steps: dict[str, CompiledStep],
) -> None:
    memory = steps["too-large"].memory
    assert memory and memory.by_category["outputs"] == 400_000**2 * 2
    assert memory.peak[0].shape == "bf16[400000,400000]"
    assert memory.peak[0].source.startswith("programs.py:")


def test_a_part_of_a_reduction_that_a_device_keeps_makes_it_a_reduce_scatter() -> None:
    tables = {
        "0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32, 32, 48, 48, 48, 48": "reduce_scatter",
        "0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48": "all_reduce",
    }
    for table, kind in tables.items():
        text = f"""HloModule m, num_partitions=16

%sum (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %c = bf16[] add(%a, %b)
}}

ENTRY %main (p: bf16[64]) -> bf16[16] {{
  %p = bf16[64]{{0}} parameter(0)
  %r = bf16[64]{{0}} all-reduce(%p), replica_groups=[4,4]<=[4,4]T(1,0), to_apply=%sum
  %t = s32[16]{{0}} constant({{{table}}})
  %i = u32[] partition-id()
  %d = s32[1]{{0}} dynamic-slice(%t, %i), dynamic_slice_sizes={{1}}
  %o = s32[] reshape(%d)
  ROOT %s = bf16[16]{{0}} dynamic-slice(%r, %o), dynamic_slice_sizes={{16}}
}}
"""
        axes = MeshAxes({"X": 4, "Y": 4}, {})
        (found,) = read_step(parse_module(text), axes=axes).collectives
        assert (found.kind, found.axes, found.nbytes) == (kind, ("X",), 128)


def test_a_reduction_in_a_computation_of_its_own_is_cut_by_its_only_caller() -> None:
    one, two = "%q = bf16[64]{0} copy(%p)", "%q = bf16[64]{0} call(%p), to_apply=%body"
    for extra, kind in {one: "reduce_scatter", two: "all_reduce"}.items():
        text = f"""HloModule m, num_partitions=4

%sum (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %c = bf16[] add(%a, %b)
}}

%body (x: bf16[64]) -> bf16[64] {{
  %x = bf16[64]{{0}} parameter(0)
  ROOT %r = bf16[64]{{0}} all-reduce(%x), replica_groups={{{{0,1,2,3}}}}, to_apply=%sum
}}

ENTRY %main (p: bf16[64]) -> bf16[16] {{
  %p = bf16[64]{{0}} parameter(0)
  {extra}
  %k = bf16[64]{{0}} call(%q), to_apply=%body
  %t = s32[4]{{0}} constant({{0, 16, 32, 48}})
  %i = u32[] partition-id()
  %d = s32[1]{{0}} dynamic-slice(%t, %i), dynamic_slice_sizes={{1}}
  %o = s32[] reshape(%d)
  ROOT %s = bf16[16]{{0}} dynamic-slice(%k, %o), dynamic_slice_sizes={{16}}
}}
"""
        (found,) = read_step(parse_module(text), axes=MeshAxes({"X": 4}, {})).collectives
        assert (found.kind, found.axes, found.nbytes) == (kind, ("X",), 128)


def test_a_start_whose_done_is_in_another_round_has_unknown_overlap() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=4

ENTRY %main (p: bf16[64]) -> (bf16[64], bf16[64], u32[], u32[]) {
  %p = bf16[64]{0} parameter(0)
  ROOT %s = (bf16[64]{0}, bf16[64]{0}, u32[], u32[]) collective-permute-start(%p), \
channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""
    (found,) = read_step(parse_module(text), axes=MeshAxes({"X": 4}, {})).collectives
    assert found.overlapped is None and not found.is_exposed and found.nbytes == 128


@given(*(st.integers(1, 7) for _ in range(4)), st.integers(0, 6), st.integers(1, 3))
def test_the_pairs_that_meet_in_a_window_are_those_one_can_count(
    inputs: int, outputs: int, size: int, stride: int, pad: int, gap: int
) -> None:
    text = f"window={{size={size} stride={stride} pad={pad}_0 lhs_dilate={gap}}}"
    places = {i * gap for i in range(inputs)}
    counted = sum(o * stride + k - pad in places for o in range(outputs) for k in range(size))
    assert _Window.parse(text).meetings(0, inputs, outputs) == counted


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("bf16[6,100]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[6,100]{0,1:T(8,128)(2,1)}", 104 * 128 * 2),
        ("f32[3]{0:T(128)}", 128 * 4),
        ("s32[]{:T(128)}", 128 * 4),
        ("bf16[5,7]", 70),
        ("s4[3,3]{1,0}", 5),
    ],
)
def test_tiles_are_padded_to_the_full(text: str, padded: int) -> None:
    (shape,) = parse_type(text)
    assert (
        shape.padded_bytes == padded >= shape.nbytes == math.ceil(shape.elements * shape.bits / 8)
    )


def test_a_text_that_is_no_buffer_assignment_is_refused() -> None:
    from rooflight.errors import ParseError

    with pytest.raises(ParseError, match="BufferAssignment"):
        read_memory("nonsense", "", None)


def test_the_value_of_a_collective_is_the_array_as_if_not_split(
    steps: dict[str, CompiledStep],
) -> None:
    every: list[Collective] = [c for s in steps.values() for c in s.collectives]
    for c in every:
        assert c.nbytes >= max(c.input_bytes, c.output_bytes) > 0
        if c.kind == "all_gather" and c.group_size:
            assert c.output_bytes == c.input_bytes * c.group_size
        if c.kind == "reduce_scatter" and c.group_size:
            assert c.input_bytes == c.output_bytes * c.group_size
