"""The time of a schedule: written by hand where the answer is known, read where it is real."""

import math
from collections.abc import Mapping

import pytest

from rooflight.compile.findings.of_plan import exposed_findings
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.costs.network import collective_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.plan.file.record import Time

MESH = parse_mesh("X=4,Y=4", on="v5e:4x4")
CLOCK = 1.5e9
CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
PAIRS = "source_target_pairs={{0,4},{4,8},{8,12},{12,0}}"
BACK = "source_target_pairs={{0,12},{4,0},{8,4},{12,8}}"


def time_of(lines: str, more: str = "") -> CompiledTime:
    """The time of an entry with one parameter %p of 8 MiB."""
    text = f"""HloModule m, is_scheduled=true, num_partitions=16
{more}
ENTRY %main (p: bf16[1024,4096]) -> bf16[1024,4096] {{
  %p = bf16[1024,4096]{{1,0}} parameter(0)
{lines}
}}
"""
    axes = MeshAxes(MESH.axes, {})
    return compiled_time(read_step(parse_module(text), axes=axes), MESH)


def busy(name: str, operand: str, cycles: int) -> str:
    """An op of known length: a long list of bytes does not cap its estimate."""
    shape = "bf16[1048576,4096]{1,0}"
    return f"  %{name} = {shape} negate(%{operand}), {CYCLES % cycles}\n"


def permute(name: str, pairs: str = PAIRS) -> str:
    kind = "bf16[1024,4096]{1,0}"
    return f"  %{name} = ({kind}, {kind}) collective-permute-start(%p), channel_id=1, {pairs}\n"


def done(name: str, *, root: bool = False) -> str:
    start = "ROOT " if root else ""
    return f"  {start}%{name}.done = bf16[1024,4096]{{1,0}} collective-permute-done(%{name})\n"


FLIGHT = collective_time("permute", 8 * 2**20, MESH.group("X")).expected_s


def test_ops_run_one_after_another() -> None:
    time = time_of(busy("a", "p", 1500) + busy("b", "a", 3000).replace("  %b", "  ROOT %b"))
    assert time.seconds == pytest.approx(3e-6)
    assert time.busy_s == {"memory": pytest.approx(3e-6)}
    assert time.network == {}
    assert time.known_share == 1


def test_an_op_without_matmuls_takes_no_longer_than_its_bytes() -> None:
    line = f"  ROOT %a = bf16[1024,4096]{{1,0}} negate(%p), {CYCLES % 10**6}\n"
    time = time_of(line)
    hbm = MESH.slice.chip.hbm_bytes_per_s
    assert hbm and time.seconds == pytest.approx(2 * 8 * 2**20 / hbm)
    assert time.ops["capped"] == 1


def test_a_transfer_with_nothing_between_start_and_done_is_exposed() -> None:
    time = time_of(busy("a", "p", 1500) + permute("s") + done("s", root=True))
    assert time.network["X"].exposed_s == pytest.approx(FLIGHT)
    assert time.network["X"].hidden_s == 0
    assert time.seconds == pytest.approx(1e-6 + FLIGHT)


@pytest.mark.parametrize("part", [0.25, 1.0, 3.0])
def test_work_between_start_and_done_hides_that_much_of_a_transfer(part: float) -> None:
    cycles = round(part * FLIGHT * CLOCK)
    time = time_of(permute("s") + busy("a", "p", cycles) + done("s", root=True))
    hidden = min(1.0, part) * FLIGHT
    assert time.network["X"].hidden_s == pytest.approx(hidden, rel=1e-4)
    assert time.seconds == pytest.approx(max(FLIGHT, part * FLIGHT), rel=1e-4)


def test_transfers_the_same_way_take_turns_and_opposite_ones_do_not() -> None:
    ends = done("s") + done("t", root=True)
    work = busy("a", "p", 15)
    same = time_of(work + permute("s") + permute("t") + ends)
    opposite = time_of(work + permute("s") + permute("t", BACK) + ends)
    assert same.seconds == pytest.approx(1e-8 + 2 * FLIGHT)
    assert opposite.seconds == pytest.approx(1e-8 + FLIGHT)


def loop(trips: int) -> CompiledTime:
    more = f"""
%body (s: (s32[], bf16[1024,4096])) -> (s32[], bf16[1024,4096]) {{
  %s = (s32[], bf16[1024,4096]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = bf16[1024,4096]{{1,0}} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
{busy("y", "x", 1500)}
  ROOT %t = (s32[], bf16[1024,4096]{{1,0}}) tuple(%next, %y)
}}

%cond (c: (s32[], bf16[1024,4096])) -> pred[] {{
  %c = (s32[], bf16[1024,4096]{{1,0}}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant({trips})
  ROOT %lt = pred[] compare(%j, %n), direction=LT
}}
"""
    lines = """  %zero = s32[] constant(0)
  %start = (s32[], bf16[1024,4096]{1,0}) tuple(%zero, %p)
  %w = (s32[], bf16[1024,4096]{1,0}) while(%start), condition=%cond, body=%body
  ROOT %out = bf16[1024,4096]{1,0} get-tuple-element(%w), index=1
"""
    return time_of(lines, more)


@pytest.mark.parametrize(
    ("queries", "blocks", "part"),
    [(4096, (8, 8), 9 / 16), (1024, (2, 8), 9 / 16), (4096, (8, 3), 1)],
)
def test_attention_in_a_kernel_takes_its_visible_tiles_at_the_peak(
    queries: int, blocks: tuple[int, int], part: float
) -> None:
    """All queries, an early and a late piece of them, or tiles of a window."""
    masks, q, k = f"s8[1,{blocks[0]},{blocks[1]}]", f"bf16[1,8,{queries},128]", "bf16[1,8,4096,128]"
    lines = f"""  %m = {masks} constant({{...}})
  %q = {q} constant({{...}})
  %k = {k} constant({{...}})
  %splash_mha_fwd.1 = {q} custom-call(%m, %m, %q, %k, %k), custom_call_target="tpu_custom_call"
  ROOT %r = bf16[1024,4096] negate(%p), {CYCLES % 0}
"""
    flops = 4 * 8 * queries * 4096 * 128 * part
    peak = MESH.slice.chip.peak_flops("bf16")
    assert time_of(lines).busy_s["kernels"] == pytest.approx(flops / peak)


def test_loops_are_multiplied_out() -> None:
    seven = loop(7)
    assert seven.seconds == pytest.approx(7e-6)
    assert [(s.row, s.trips, s.calls) for s in seven.rounds["main"]] == [("loops", 7, "body")]
    assert [s.seconds for s in seven.rounds["body"]] == [pytest.approx(1e-6)]


def test_a_step_without_estimates_has_no_time(steps: Mapping[str, CompiledStep]) -> None:
    with pytest.raises(UsageError, match="no cycle estimates"):
        compiled_time(steps["fsdp-v5p"], parse_mesh("X=16,Y=4", on="v5p:4x4x4"))


def test_of_a_real_step_waits_and_work_are_all_of_its_time(
    steps: Mapping[str, CompiledStep],
) -> None:
    time = compiled_time(steps["fsdp"], MESH)
    waits = sum(n.exposed_s for n in time.network.values()) + time.copies.exposed_s
    assert time.seconds == pytest.approx(sum(time.busy_s.values()) + waits)
    assert set(time.network) == {"X", "Y"}
    assert time.network["X"].hidden_s > 0, "the gathers of weights overlap with matmuls"
    assert time.network["Y"].hidden_s == 0, "the all-reduces of activations do not"
    assert not time.unknown


def test_the_matmuls_of_a_real_step_are_not_faster_than_the_peak(
    steps: Mapping[str, CompiledStep],
) -> None:
    time = compiled_time(steps["fsdp"], MESH)
    flops = steps["fsdp"].known_flops
    assert flops / MESH.slice.chip.peak_flops("bf16") < time.busy_s["matrix"]
    assert math.isclose(time.known_share, 23 / 24)


def test_a_slower_network_only_lengthens_what_is_exposed(
    steps: Mapping[str, CompiledStep],
) -> None:
    here = compiled_time(steps["fsdp"], MESH)
    wide = compiled_time(steps["fsdp"], parse_mesh("X=4,Y=4", on="v6e:4x4"))
    assert sum(n.exposed_s for n in wide.network.values()) < sum(
        n.exposed_s for n in here.network.values()
    )


def planned(matmuls_s: float, waits_s: float) -> Time:
    total = matmuls_s + waits_s
    return Time(total, matmuls_s, total, matmuls_s, 0.0, 0.0, {"X": total}, {"critical": total})


def test_collectives_that_a_plan_hides_and_the_schedule_does_not_are_a_finding() -> None:
    lines = permute("c") + done("c", root=True)
    text = f"""HloModule m, is_scheduled=true, num_partitions=16
ENTRY %main (p: bf16[1024,4096]) -> bf16[1024,4096] {{
  %p = bf16[1024,4096]{{1,0}} parameter(0)
{busy("a", "p", 1500)}{lines}
}}
"""
    step = read_step(parse_module(text), axes=MeshAxes(MESH.axes, {}))
    time = compiled_time(step, MESH)
    (finding,) = exposed_findings(planned(FLIGHT, 0.0), time, step.collectives)
    assert finding.kind == "exposed"
    assert finding.seconds == pytest.approx(FLIGHT)
    assert "over X" in finding.words
    assert "permute over X of 8.39 MB, 1 times" in finding.fix
    assert list(exposed_findings(planned(FLIGHT, FLIGHT), time, step.collectives)) == []
    assert list(exposed_findings(planned(101 * FLIGHT, 0.0), time, step.collectives)) == []
