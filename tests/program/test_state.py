"""What a step keeps: weights, a copy and moments as the program is told, in their places."""

from dataclasses import replace
from typing import Any  # pytrees

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax.sharding import PartitionSpec

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.model.forward import Program
from rooflight.program.shardings import abstract_mesh
from rooflight.program.train import TrainState, abstract_state


def state_of(**changes: object) -> TrainState:
    """Of llama3-8b under dp=Z,fsdp=X on 4 x 4 chips that are not there."""
    model = load_model("llama3-8b")
    graph, mesh = model_graph(model), parse_mesh("Z=4,X=4", on="v5e:4x4")
    dims = dim_sizes(graph, batch=16, seq=4096)
    layout = parse_layout("dp=Z,fsdp=X")
    constraints = constraints_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"])
    program = replace(Program(model, constraints, weights="bf16", compute="bf16"), **changes)
    described = abstract_mesh(constraints.axes)
    with jax.sharding.use_abstract_mesh(described):
        return abstract_state(program, optax.adam(1e-3), described)


def dtypes_of(tree: Any) -> set[str]:
    return {x.dtype.name for x in jax.tree.leaves(tree)}


@pytest.mark.parametrize("master", [None, "f32"])
def test_a_master_copy_is_there_if_the_program_is_told_to_keep_one(master: str | None) -> None:
    state = state_of(master=master)
    assert (state.master is None) == (master is None)
    assert dtypes_of(state.params) == {"bfloat16"}
    assert dtypes_of(state.master) == ({master and "float32"} - {None})
    assert dtypes_of(state.optimizer[0].mu) == {"float32"}


def test_zero_splits_moments_and_master_over_the_data_axes_but_not_the_weights() -> None:
    plain, split = (state_of(master="f32", zero=zero) for zero in (0, 1))
    name = "mlp.W_in"
    places = [s.params.layers[0][0][name].sharding.spec for s in (plain, split)]
    assert places == [PartitionSpec(None, "X", None)] * 2
    for state, place in ((plain, "X"), (split, ("X", "Z"))):
        assert state.master
        for tree in (state.master, state.optimizer[0].mu, state.optimizer[0].nu):
            assert tree.layers[0][0][name].sharding.spec == PartitionSpec(None, place, None)
