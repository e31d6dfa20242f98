"""One description a weight: counts, shapes, shardings and first values all come from it."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

import jax
import numpy as np
from device_weights import device_nbytes
from program_cases import MODELS, alone, cases

from rooflight.dtypes import DTYPES
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, param_bytes
from rooflight.models.presets import load_model
from rooflight.program.model.params import (
    abstract_params,
    every_spec,
    init_params,
    map_specs,
    tensor_specs,
)
from rooflight.program.shardings import abstract_mesh, device_mesh


@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-27b", "gpt-oss-20b", "deepseek-v3"])
def test_the_specs_of_a_model_have_the_elements_and_bytes_of_its_graph(name: str) -> None:
    model = load_model(name)
    specs = every_spec(tensor_specs(model, "bf16"))
    assert sum(s.num_elements for s in specs) == count_params(model_graph(model))
    assert sum(s.nbytes for s in specs) == param_bytes(model_graph(model), DTYPES["bf16"])


def test_a_pattern_of_blocks_is_stacked_as_often_as_it_repeats() -> None:
    specs = tensor_specs(load_model("gemma3-27b"))
    assert [len(run) for run in specs.layers] == [6, 1]
    assert {s.shape[0] for block in specs.layers[0] for s in block.values()} == {10}


@pytest.mark.parametrize(("model", "devices"), [("moe", 8), ("latent", 16)])
def test_the_parts_of_all_devices_make_up_the_weights(model: str, devices: int) -> None:
    specs = tensor_specs(MODELS[model])
    for case in cases(model, devices):
        constraints = case.constraints
        arrays = jax.tree.leaves(
            abstract_params(specs, constraints, abstract_mesh(constraints.axes))
        )
        for spec, array in zip(every_spec(specs), arrays, strict=True):
            local = array.sharding.shard_shape(array.shape)
            assert np.prod(local) * 4 == device_nbytes(spec, constraints), case


def test_first_values_have_the_spread_that_keeps_matmuls_in_size() -> None:
    constraints = alone("moe").constraints
    specs = tensor_specs(MODELS["moe"])
    with jax.set_mesh(device_mesh(constraints.axes)):
        made = init_params(specs, constraints, jax.random.key(1))
    for spec, array in zip(every_spec(specs), jax.tree.leaves(made), strict=True):
        value = np.asarray(array)
        assert value.shape == spec.shape
        assert np.std(value) == pytest.approx(spec.std, rel=0.1)
        assert spec.init == "normal" or (value == (spec.init == "ones")).all()


def test_leaves_are_numbered_in_the_order_of_a_tree() -> None:
    specs = tensor_specs(MODELS["pattern"])
    named = map_specs(lambda spec: spec.name, specs)
    assert jax.tree.leaves(named) == [s.name for s in every_spec(specs)]
