"""Names that XLA and its profiler give to ops, and what they are."""

from pathlib import Path

import pytest

from rooflight.measure.trace.classify import COLLECTIVES, layer_of, op_class
from rooflight.measure.trace.overlap import overlaps
from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.table import step_table

from .tpu import US
from .writer import PlaneWriter, event, space


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("convolution fusion", "fusion.3", "matmul"),
        ("output fusion", "fusion.4", "matmul"),
        ("convolution", "convolution.1", "matmul"),
        ("dot", "dot.22", "matmul"),
        ("loop fusion", "fusion.1", "vector"),
        ("non-fusion elementwise", "add.1", "vector"),
        ("reduce", "reduce.3", "vector"),
        ("data formatting", "transpose.1", "copy"),
        ("copy-start", "copy-start.1", "copy"),
        ("copy-done", "copy-done.1", "copy"),
        ("async-done", "async-done.2", "copy"),
        ("dynamic-update-slice", "dynamic-update-slice.2", "copy"),
        ("all-reduce", "all-reduce.1", "all-reduce"),
        ("all-reduce fusion", "fusion.7", "all-reduce"),
        ("all-reduce-scatter fusion", "fusion.8", "reduce-scatter"),
        ("all-gather fusion", "fusion.9", "all-gather"),
        ("async-start", "all-gather-start.1", "all-gather"),
        ("collective-permute-done", "collective-permute-done.1", "collective-permute"),
        ("ragged-all-to-all", "ragged-all-to-all.1", "all-to-all"),
        ("send", "send.1", "send-recv"),
        ("recv-done", "recv-done.1", "send-recv"),
        ("host send", "send.2", "host"),
        ("infeed", "infeed.1", "host"),
        ("while", "while.1", "control"),
        ("call", "call.1", "control"),
        ("custom-call", "splash_mha_fwd.1", "attention kernel"),
        ("custom-call", "gmm.3", "kernel"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "ncclDevKernel_AllReduce", "all-reduce"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "sm90_xmma_gemm_bf16bf16", "matmul"),
        ("MemcpyD2D", "MemcpyD2D", "copy"),
    ],
)
def test_an_op_has_the_class_that_its_names_say(category: str, name: str, expected: str) -> None:
    assert op_class(category, name, holds=frozenset()) == expected


def test_a_kernel_is_known_by_its_target_else_by_where_it_was_called() -> None:
    none = frozenset[str]()
    in_attention = "jit(f)/attention.q/pallas_call"
    called = "custom-call.3"
    assert op_class("custom-call", called, scope=in_attention, holds=none) == "attention kernel"
    assert op_class("custom-call", "quantize.1", scope=in_attention, holds=none) == "kernel"
    target = "__cublas$gemm"
    assert (
        op_class("custom-call", called, target=target, scope=in_attention, holds=none) == "matmul"
    )


def test_a_fusion_is_what_it_holds() -> None:
    def fusion(*opcodes: str) -> str:
        return op_class("fusion", "fusion.1", holds=frozenset(opcodes))

    assert fusion("parameter", "dot", "add") == "matmul"
    assert fusion("parameter", "bitcast", "dynamic-slice", "copy") == "copy"
    assert fusion("parameter", "copy", "multiply") == "vector"


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(step)/jit(main)/mlp.in/dot_general", "mlp.in"),
        ("jit(step)/transpose(jvp(attention.q))/dot_general", "attention.q (backward)"),
        ("jit(step)/jvp()/while/body/closed_call/mlp.out/bf,fd->bd/dot_general", "mlp.out"),
        ("jit(f)/jvp(Model)/layers_0/mlp/dot_general:", "Model/layers_0/mlp"),
        ("jit(f)/checkpoint/rematted_computation/mlp.act/mul", "mlp.act"),
        ("jit(f)/vmap(jvp(a/b))/mul", "a/b"),
        ("jit(f)/add", "no scope"),
        ("", "no scope"),
    ],
)
def test_a_layer_is_the_scope_without_what_jax_puts_around_it(op_name: str, layer: str) -> None:
    assert layer_of(op_name) == layer


def test_streams_of_a_gpu_are_one_device_and_overlap(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    gemm, nccl = plane.kind("cutlass_gemm_kernel"), plane.kind("ncclDevKernel_AllGather_RING(x)")
    said = plane.stat("hlo_op", "gemm_fusion.1", by_word=True)
    plane.line("Stream #13(compute)", [event(gemm, 0, 40 * US, said)])
    plane.line("Stream #20(nccl)", [event(nccl, 30 * US, 30 * US)])
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    trace = read_trace(path)
    found = {row.key: round(row.seconds * 1e6, 6) for row in step_table(trace).rows}
    assert found == {"matmul": 40, "all-gather": 20, "idle": 0}
    assert round(overlaps(trace)[0].hidden_s * 1e6, 6) == 10
    assert set(COLLECTIVES) & set(found) == {"all-gather"}
