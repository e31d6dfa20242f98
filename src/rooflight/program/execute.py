"""Runs a list of derived steps: one `jax.shard_map`, one `jax.lax` call for each collective.

The algebra's own oracle. What comes back is the block of every device, so a wrong block on any
replica is seen. A tensor that is unreduced over some axes travels with one leading dim for each
of them (sorted by name), holding the terms of the pending sum.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from rooflight.algebra.blocks import block_moves
from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.steps import Step

Blocks = jax.Array  # [every mesh axis..., *local shape]


def execute(steps: Sequence[Step], inputs: Sequence[Tensor], mesh: Mesh) -> Callable[..., Blocks]:
    """The function that runs `steps` on global arrays laid out as `inputs`.

    Its result has one leading dim for each mesh axis: the local block of every device.
    """
    names = tuple(mesh.axis_names)

    def local(*arrays: jax.Array) -> jax.Array:
        held = [(t, _enter(t, a, names)) for t, a in zip(inputs, arrays, strict=True)]
        for step in steps:
            held = _apply(step, held, mesh)
        block = held[0][1]
        return block.reshape((1,) * len(names) + block.shape)

    result = steps[-1].output if steps else inputs[0]
    out_specs = PartitionSpec(*names, *(None for _ in result.dims))
    return jax.shard_map(
        local, mesh=mesh, in_specs=tuple(input_spec(t) for t in inputs), out_specs=out_specs
    )


def input_spec(tensor: Tensor) -> PartitionSpec:
    """The partition spec of a tensor: pending axes first, then its dims."""
    return PartitionSpec(*tensor.unreduced, *(axes or None for axes in tensor.axes))


Held = list[tuple[Tensor, jax.Array]]


def _apply(step: Step, held: Held, mesh: Mesh) -> Held:
    """Replaces the inputs of a step by its output."""
    if step.op == "einsum":
        return [(step.output, _einsum(step, [value for _, value in held]))]
    at = next(i for i, (tensor, _) in enumerate(held) if tensor == step.inputs[0])
    moved = _collective(step, held[at][1], mesh)
    return [*held[:at], (step.output, moved), *held[at + 1 :]]


def _collective(step: Step, value: jax.Array, mesh: Mesh) -> jax.Array:
    source, axes = step.inputs[0], step.axes
    dim = source.dims.index(step.dim) if step.dim else -1
    to_dim = source.dims.index(step.to_dim) if step.to_dim else -1
    match step.op:
        case "all_gather":
            return lax.all_gather(value, axes, axis=dim, tiled=True)
        case "reduce_scatter":
            return lax.psum_scatter(value, axes, scatter_dimension=to_dim, tiled=True)
        case "all_reduce":
            return lax.pcast(lax.psum(value, axes), axes, to="varying")
        case "all_to_all":
            return lax.all_to_all(value, axes, split_axis=to_dim, concat_axis=dim, tiled=True)
        case "permute":
            group = tuple(n for n in mesh.axis_names if n in axes)  # ppermute counts in mesh order
            return lax.ppermute(value, group, block_moves(step, group, dict(mesh.shape)))
        case "slice":
            ways = int(np.prod([mesh.shape[a] for a in axes]))
            size = value.shape[to_dim] // ways
            return lax.dynamic_slice_in_dim(value, lax.axis_index(axes) * size, size, to_dim)
        case "einsum":
            raise AssertionError("an einsum is not a collective")


def _einsum(step: Step, values: list[jax.Array]) -> jax.Array:
    letters = {d: chr(ord("a") + i) for i, d in enumerate(_all_dims(step))}
    terms = ["".join(letters[d] for d in t.dims) for t in step.inputs]
    result = "".join(letters[d] for d in step.output.dims)
    return jnp.einsum(f"{','.join(terms)}->{result}", *values)


def _all_dims(step: Step) -> list[str]:
    return list(dict.fromkeys(d for t in step.inputs for d in t.dims))


def _enter(tensor: Tensor, array: jax.Array, names: Axes) -> jax.Array:
    """An input inside the map: no leading dims, and typed as different on every device."""
    block = array.reshape(array.shape[len(tensor.unreduced) :])
    same = tuple(n for n in names if n not in tensor.mesh_axes)
    return lax.pcast(block, same, to="varying") if same else block
