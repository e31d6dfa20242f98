"""Derived steps, run on the devices of this host and timed: strategies of a contraction in turn.

Runs in a child (`child.measure`). What it runs is what the derivation says, one collective or one
einsum a step (`program.execute`); the time of starting an empty program is taken off.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Tensor, parse_contraction
from rooflight.measure.microbench.ops import Call, fastest
from rooflight.program.execute import execute, input_spec

_NOTHING = "nothing"


def contraction(
    *,
    text: str,
    axes: Mapping[str, int],
    dims: Mapping[str, int],
    which: Sequence[int],
    rounds: int,
) -> list[float]:
    """Seconds of the strategies numbered `which`, in the order of `algebra.strategies`."""
    known = strategies(parse_contraction(text), dict(axes))
    shape = tuple(axes.values())
    mesh = jax.make_mesh(shape, tuple(axes), axis_types=(AxisType.Auto,) * len(shape))
    calls = {str(i): _call(known[i], dims, mesh) for i in which}
    seconds = fastest(calls | {_NOTHING: _empty(mesh)}, rounds=rounds)
    return [max(seconds[str(i)] - seconds[_NOTHING], 1e-9) for i in which]


def _call(strategy: Strategy, dims: Mapping[str, int], mesh: Mesh) -> Call:
    inputs = strategy.contraction.operands
    run = jax.jit(execute(strategy.steps, inputs, mesh))
    return run, tuple(_array(tensor, dims, mesh) for tensor in inputs)


def _array(tensor: Tensor, dims: Mapping[str, int], mesh: Mesh) -> jax.Array:
    pending = tuple(mesh.shape[a] for a in tensor.unreduced)
    shape = (*pending, *(dims[d] for d in tensor.dims))
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, input_spec(tensor)))


def _empty(mesh: Mesh) -> Call:
    """A program of every device that does next to nothing."""
    spec = jax.sharding.PartitionSpec(tuple(mesh.axis_names))
    array = jax.device_put(jnp.ones(mesh.size), NamedSharding(mesh, spec))
    mapped = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec)
    return jax.jit(mapped), (array,)
