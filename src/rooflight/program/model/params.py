"""`TensorSpec`: one description a weight, off which everything about parameters is read.

In: a model and its constraints. Out: abstract arrays with shardings, arrays born on a mesh, sizes.
Layers are stacked as they are scanned: a run repeats a pattern of blocks, and each weight of each
block of the pattern has one leading dim, as long as the run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.steps import Step
from rooflight.dtypes import DTYPES, Dtype, parse_dtype
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph, Param
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.zero import data_axes, split_state
from rooflight.models.spec import ModelSpec, Moe, Repeat
from rooflight.program.shardings import spec_of

Init = Literal["normal", "ones", "zeros"]
JAX_DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
_EMBEDDING_STD = 0.02


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A weight: its dims and sizes, where it is stored, how it begins."""

    name: str  # that of the graph, such as attention.W_q
    tensor: Tensor  # of one layer, unsharded
    shape: tuple[int, ...]  # with the leading dim of a run
    dtype: Dtype
    init: Init
    std: float = 0.0
    block: int | None = None  # index in ModelSpec.blocks
    times: int | None = None  # layers of the run; None outside the layers

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.num_elements)

    def spec(self, constraints: Constraints, *, reduced: Axes = ()) -> PartitionSpec:
        stored = constraints.layout.of_weight(self.tensor)
        stacked = None if self.times is None else constraints.layout.stages
        return spec_of(stored, reduced=reduced, stacked=stacked)

    def state(self, constraints: Constraints, zero: int) -> Tensor:
        """One layer of it where the optimizer keeps its part: split over data axes with zero 1."""
        stored = constraints.layout.of_weight(self.tensor)
        extra = data_axes(constraints.layout) if zero else ()
        sizes = dict(zip(self.tensor.dims, self.shape[-len(self.tensor.dims) :], strict=True))
        return split_state(stored, extra, sizes=sizes, axes=constraints.axes)

    def moved(self, value: jax.Array, way: Sequence[Step], constraints: Constraints) -> jax.Array:
        """The weight, or what there is one of for each, taken along steps of the algebra."""
        stacked = None if self.times is None else constraints.layout.stages
        for step in way:
            value = jax.reshard(value, spec_of(step.output, stacked=stacked))
        return value


class Tree(NamedTuple):
    """The weights of a model, or anything that there is one of for each: a pytree."""

    frame: dict[str, Any]  # arrays; shapes, shardings or gradients where those are meant
    layers: tuple[tuple[dict[str, Any], ...], ...]  # [run][block of its pattern][name]


class Specs(NamedTuple):
    """A `Tree` of descriptions."""

    frame: dict[str, TensorSpec]
    layers: tuple[tuple[dict[str, TensorSpec], ...], ...]


def tensor_specs(
    model: ModelSpec, dtype: str = "f32", *, runs: Sequence[Repeat] | None = None
) -> Specs:
    """Describes every weight of a model, stacked by its own runs or by those given.

    >>> from rooflight.models.presets import load_model
    >>> spec = tensor_specs(load_model("llama3-8b"), "bf16").layers[0][0]["attention.W_q"]
    >>> spec.shape, spec.nbytes
    ((32, 4096, 8, 4, 128), 1073741824)
    """
    stored = parse_dtype(dtype)
    params = model_graph(model).params
    frame = {p.name: _describe(model, p, stored) for p in params if p.block is None}
    layers = tuple(
        tuple(_block(model, model.blocks.index(b), run.times, stored) for b in run.blocks)
        for run in (model.layers if runs is None else runs)
    )
    return Specs(frame, layers)


def _block(model: ModelSpec, block: int, times: int, dtype: Dtype) -> dict[str, TensorSpec]:
    mine = [p for p in model_graph(model).params if p.block == block]
    specs = {p.name: _describe(model, p, dtype, times=times) for p in mine}
    mlp = model.blocks[block].mlp
    if isinstance(mlp, Moe) and mlp.has_choice_bias:  # no gradient reaches it: not in the graph
        name, tensor = "router.B_choice", Tensor("B_choice", ("E",), ((),))
        shape = (times, mlp.num_experts)
        specs[name] = TensorSpec(name, tensor, shape, DTYPES["f32"], "zeros", 0.0, block, times)
    return specs


def _describe(
    model: ModelSpec, param: Param, dtype: Dtype, *, times: int | None = None
) -> TensorSpec:
    graph, init = model_graph(model), _init(model, param)
    sizes = tuple(graph.sizes[d] for d in param.tensor.dims)
    shape = sizes if times is None else (times, *sizes)
    std = _std(graph, param) if init == "normal" else 0.0
    return TensorSpec(param.name, param.tensor, shape, dtype, init, std, param.block, times)


def _init(model: ModelSpec, param: Param) -> Init:
    name = param.tensor.name
    if name in ("Scale", "Q_scale", "K_scale"):
        return "zeros" if model.norm.adds_one else "ones"
    return "zeros" if name in ("Bias", "Sinks") or name.startswith("B_") else "normal"


def _std(graph: Graph, param: Param) -> float:
    """One over the root of what is summed over, so that matmuls keep the size of their inputs."""
    uses = [op for op in graph.ops if param.name in op.params and op.block == param.block]
    if param.part == "embedding" or not uses:
        return _EMBEDDING_STD
    return math.prod(graph.sizes[d] for d in uses[0].contraction.contracted) ** -0.5


def map_specs(make: Callable[[TensorSpec], Any], specs: Specs) -> Tree:
    """A tree with one leaf for each description: an array, or what stands for one."""
    frame = {n: make(s) for n, s in specs.frame.items()}
    layers = tuple(
        tuple({n: make(s) for n, s in block.items()} for block in run) for run in specs.layers
    )
    return Tree(frame, layers)


def every_spec(specs: Specs) -> list[TensorSpec]:
    """All descriptions, in the order of the leaves of a `Tree`."""
    numbered: list[TensorSpec] = []

    def count(spec: TensorSpec) -> int:
        numbered.append(spec)
        return len(numbered) - 1

    return [numbered[i] for i in jax.tree.leaves(map_specs(count, specs))]


def abstract_params(specs: Specs, constraints: Constraints, mesh: Mesh | AbstractMesh) -> Tree:
    """What stands for the weights where a program is lowered: shapes, dtypes and shardings."""

    def abstract(spec: TensorSpec) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec.spec(constraints))
        return jax.ShapeDtypeStruct(spec.shape, JAX_DTYPES[spec.dtype.name], sharding=sharding)

    return map_specs(abstract, specs)


# LLVM takes five times as long to optimize the twenty rounds of each draw, for the same bits.
_COMPILES_QUICKLY = {"xla_backend_optimization_level": 1}


def init_params(specs: Specs, constraints: Constraints, key: jax.Array) -> Tree:
    """The weights as they begin, each part made on the device that keeps it.

    The numbers belong to the key and the place in the tree, not to the mesh.
    """
    places = {id(spec): i for i, spec in enumerate(every_spec(specs))}

    def make(spec: TensorSpec, key: jax.Array) -> jax.Array:
        dtype, sharding = JAX_DTYPES[spec.dtype.name], spec.spec(constraints)
        if spec.init != "normal":
            fill = 1 if spec.init == "ones" else 0
            return jnp.full(spec.shape, fill, dtype, out_sharding=sharding)
        mine = jax.random.fold_in(key, places[id(spec)])
        drawn = jax.random.normal(mine, spec.shape, jnp.float32, out_sharding=sharding)
        return (drawn * spec.std).astype(dtype)

    def every(key: jax.Array) -> Tree:
        return map_specs(lambda spec: make(spec, key), specs)

    quick = _COMPILES_QUICKLY if jax.default_backend() == "cpu" else None
    return jax.jit(every, compiler_options=quick)(key)
