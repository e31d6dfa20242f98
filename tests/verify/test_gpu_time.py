"""Seconds of GPU kernels by our roofline: above every roof, and on one clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import read_step
from rooflight.compile.hlo.work import MatmulSizes
from rooflight.compile.time.gpu import gpu_rates, kernel_traffic, matmul_s, memory_s
from rooflight.compile.time.op import OpPricer
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.errors import UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh

H100, RATES = load_chip("h100"), gpu_rates()
MESH = parse_mesh("X=8", on="h100:8")
_CUBLAS = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":'
    '{"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"],'
    ' "rhs_contracting_dimensions": ["0"], "lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
)
_FMHA = (
    'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":'
    '{"intermediate_tensor_shape": {"element_type": "BF16", '
    '"dimensions": ["4", "16", "2048", "2048"]},'
    '"mask_type":"CAUSAL"}}'
)
_STEP = f"""HloModule step, is_scheduled=true, num_partitions=8

%tile (p0: bf16[8192,4096], p1: bf16[4096,4096]) -> bf16[8192,4096] {{
  %p0 = bf16[8192,4096]{{1,0}} parameter(0)
  %p1 = bf16[4096,4096]{{1,0}} parameter(1)
  %dot = bf16[8192,4096]{{1,0}} dot(%p0, %p1), \
lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %out = bf16[8192,4096]{{1,0}} negate(%dot)
}}

%written (c: bf16[64,8192,4096], x: bf16[8192,4096], at: s32[]) -> bf16[64,8192,4096] {{
  %c = bf16[64,8192,4096]{{2,1,0}} parameter(0)
  %x = bf16[8192,4096]{{1,0}} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %view = bf16[64,8192,4096]{{2,1,0}} bitcast(%c)
  %row = bf16[1,8192,4096]{{2,1,0}} bitcast(%x)
  ROOT %new = bf16[64,8192,4096]{{2,1,0}} dynamic-update-slice(%view, %row, %at, %zero, %zero)
}}

ENTRY %main (x: bf16[8192,4096], w: bf16[512,4096], c: bf16[64,8192,4096], at: s32[]) -> \
bf16[8192,4096] {{
  %x = bf16[8192,4096]{{1,0}} parameter(0)
  %w = bf16[512,4096]{{1,0}} parameter(1)
  %c = bf16[64,8192,4096]{{2,1,0}} parameter(2)
  %at = s32[] parameter(3)
  %start = (bf16[512,4096]{{1,0}}, bf16[4096,4096]{{1,0}}) all-gather-start(%w), channel_id=1, \
replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, use_global_device_ids=true
  %new = bf16[64,8192,4096]{{2,1,0}} fusion(%c, %x, %at), kind=kLoop, calls=%written
  %done = bf16[4096,4096]{{1,0}} all-gather-done(%start)
  %gemm = bf16[8192,4096]{{1,0}} fusion(%x, %done), kind=kCustom, calls=%tile
  %lib = (bf16[8192,4096]{{1,0}}, s8[4194304]{{0}}) custom-call(%gemm, %done), {_CUBLAS}
  %lib0 = bf16[8192,4096]{{1,0}} get-tuple-element(%lib), index=0
  %q = bf16[4,2048,16,128]{{3,2,1,0}} bitcast(%lib0)
  %attended = (bf16[4,2048,16,128]{{3,1,2,0}}, u8[0]{{0}}) custom-call(%q, %q, %q), {_FMHA}
  ROOT %gte = bf16[8192,4096]{{1,0}} copy(%lib0)
}}
"""


def _time(text: str = _STEP) -> CompiledTime:
    return compiled_time(read_step(parse_module(text), axes=MeshAxes({"X": 8}, {})), MESH)


def test_a_step_is_its_kernels_and_the_wait_for_what_nothing_hides() -> None:
    time = _time()
    sizes = MatmulSizes(1, 8192, 4096, 4096, "bf16")
    array, weight = 2 * 8192 * 4096, 2 * 4096 * 4096
    matmuls = 2 * matmul_s(H100, sizes, 2 * array + weight, RATES)
    # The library's workspace is a few bytes more.
    assert time.busy_s["matrix"] == pytest.approx(matmuls, rel=0.01)
    moved = [memory_s(H100, 2 * array, RATES)] * 2  # the update in place, and the copy
    assert time.busy_s["memory"] == pytest.approx(sum(moved), rel=0.01)
    network = time.network["X"]
    assert network.exposed_s > 0 and network.hidden_s == pytest.approx(moved[0], rel=0.01)
    assert time.seconds == pytest.approx(sum(time.busy_s.values()) + network.exposed_s)
    assert time.ops["roofline"] == sum(time.ops.values()) == 5 and not time.unknown


def test_attention_of_cudnn_has_the_flops_of_its_shapes() -> None:
    module = parse_module(_STEP)
    entry = module.computations[module.entry]
    price = OpPricer.of(module, H100).price(entry, entry.instructions[entry.position["attended"]])
    flops = 4 * 4 * 16 * 2048 * 2048 * 128 / 2  # half of it is masked
    assert price and price.unit == "kernels" and price.seconds > flops / H100.peak_flops("bf16")
    assert price.seconds < 3 * flops / H100.peak_flops("bf16") + RATES.attention_start_s


def test_a_library_call_has_the_flops_of_the_dot_it_came_from() -> None:
    step = read_step(parse_module(_STEP))
    flops = {work.name: work.flops for work in step.work}
    assert flops["lib"] == flops["gemm"] == 2 * 8192 * 4096 * 4096


def test_an_update_in_place_moves_the_update_alone() -> None:
    module = parse_module(_STEP)
    entry = module.computations[module.entry]
    update = entry.instructions[entry.position["new"]]
    assert kernel_traffic(module, entry, update) == 2 * 2 * 8192 * 4096 + 4


def test_a_step_that_has_no_schedule_has_no_time() -> None:
    with pytest.raises(UsageError, match="no cycle estimates"):
        _time(_STEP.replace(" is_scheduled=true,", ""))


@given(*(st.integers(1, 20_000) for _ in "mnk"), st.sampled_from(["bf16", "f8e4m3fn", "f32"]))
def test_no_matmul_is_faster_than_its_roofs_and_more_rows_never_are(
    m: int, n: int, k: int, dtype: str
) -> None:
    sizes, nbytes = MatmulSizes(1, m, n, k, dtype), m * k + k * n + m * n
    peak = {"bf16": "bf16", "f8e4m3fn": "fp8", "f32": "tf32"}[dtype]
    seconds = matmul_s(H100, sizes, nbytes, RATES)
    assert H100.hbm_bytes_per_s
    assert seconds > max(sizes.flops / H100.flops[peak], nbytes / H100.hbm_bytes_per_s)
    assert matmul_s(H100, MatmulSizes(1, 2 * m, n, k, dtype), nbytes, RATES) >= seconds
