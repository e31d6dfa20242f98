"""Constraints are the derivation: what a program is told is what the planner prices."""

import pytest

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import HAS_FLOPS
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.algorithm import derive_algorithm
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.plan.training.search.space import templates

BF16 = DTYPES["bf16"]


def constraints(
    name: str, layout: str, mesh: str = "X=8,Y=4", on: str = "v5p:4x4x2"
) -> Constraints:
    graph = model_graph(load_model(name))
    dims = dim_sizes(graph, batch=64, seq=4096)
    return constraints_of(
        graph, parse_layout(layout), mesh=parse_mesh(mesh, on=on), dims=dims, dtype=BF16
    )


@pytest.mark.parametrize(
    "layout", ["fsdp=X,sp=Y", "fsdp=X,tp=Y", "fsdp=X,cp=Y", "fsdp=X,ulysses=Y"]
)
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v2"])
def test_a_program_is_told_every_collective_that_is_priced(name: str, layout: str) -> None:
    graph = model_graph(load_model(name))
    found = constraints(name, layout)
    dims, mesh = dim_sizes(graph, batch=64, seq=4096), parse_mesh("X=8,Y=4", on="v5p:4x4x2")
    ops = [op for op in graph.ops if op.block == 0]
    lines = derive_algorithm(graph, ops, found.layout, mesh=mesh, dims=dims, dtype=BF16).forward
    for line in lines:
        constraint = found.ops[0, line.op]
        stops = {t for path in (*constraint.operands, constraint.result) for t in path}
        assert {*line.step.inputs, line.step.output} <= stops


def test_an_operand_shared_by_matmuls_is_moved_by_the_first() -> None:
    found = constraints("llama3-8b", "fsdp=X,sp=Y")
    assert [str(t) for t in found.ops[0, "attention.q"].operands[0]] == [
        "h[B_X,T_Y,D]",
        "h[B_X,T,D]",
    ]
    assert [str(t) for t in found.ops[0, "attention.k"].operands[0]] == ["h[B_X,T,D]"]


def test_the_gradient_of_an_operand_pends_over_the_axes_of_the_others() -> None:
    constraint = constraints("llama3-8b", "fsdp=X,sp=Y").ops[0, "attention.q"]
    assert constraint.pending(0) == ("Y",)  # dh is summed over heads
    assert constraint.pending(1) == ("X",)  # dW over tokens


def test_a_gradient_waits_for_the_end_of_a_step_where_the_weight_is_whole() -> None:
    graph = model_graph(load_model("llama3-8b"))
    weight = next(p.tensor for p in graph.params if p.name == "mlp.W_in")
    assert constraints("llama3-8b", "dp=X,sp=Y").once(weight, 0) == ("X",)
    assert constraints("llama3-8b", "fsdp=X,sp=Y").once(weight, 0) == ()  # it must be scattered
    assert constraints("llama3-8b", "fsdp=X,cp=Y").once(weight, 0) == ("Y",)


def test_the_gradient_of_a_vector_waits_too() -> None:
    graph = model_graph(load_model("gpt-oss-20b"))
    tensors = {p.name: p.tensor for p in graph.params if p.block == 0}
    found = constraints("gpt-oss-20b", "dp=X,sp=Y")
    assert {v for p in graph.params for v in [(p.block, p.name)] if "W_" not in v[1]} == set(
        found.vectors
    )
    assert found.once(tensors["attention_in_norm.Scale"], 0) == ("X", "Y")  # tokens of the stream
    assert found.once(tensors["attention.B_q"], 0) == ("X",)  # heads are split over Y
    assert found.once(tensors["attention.Sinks"], 0) == ("X",)
    assert constraints("gpt-oss-20b", "fsdp=X,sp=Y").once(tensors["mlp_in_norm.Scale"], 0) == ("Y",)


def test_an_axis_of_one_device_splits_nothing() -> None:
    found = constraints("llama3-8b", "fsdp=X,sp=Y", mesh="X=1,Y=4", on="v5p:2x2x1")
    named = {
        axis
        for constraint in found.ops.values()
        for path in (*constraint.operands, constraint.result)
        for tensor in path
        for axis in tensor.mesh_axes
    }
    assert named == {"Y"}


def test_every_product_of_every_pattern_is_pinned() -> None:
    graph = model_graph(load_model("mixtral-8x7b"))
    wanted = {(op.block, op.name) for op in graph.ops if op.kind in (*HAS_FLOPS, "lookup")}
    for layout in templates(graph):
        axes = ",".join(f"{a}=2" for a in (*layout.stages, *layout.split_over))
        mesh = parse_mesh(axes, on=f"v5p:{2 ** (axes.count('=') - 1)}x2x1")
        dims = dim_sizes(graph, batch=64, seq=4096)
        found = constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=BF16)
        assert wanted <= set(found.ops)
