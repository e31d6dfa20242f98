# pyright: reportUntypedFunctionDecorator=false
# jax annotates its own functions only in part.
"""A scale or a bias beside an activation, with a gradient whose sum over devices pends.

    y[B_X,T_Y,D] = x[B_X,T_Y,D] * v[D]     dv[D]{U_XY} = sum over B, T of dy[B_X,T_Y,D] x[B_X,T_Y,D]
    y[B_X,T_Y,D] = x[B_X,T_Y,D] + v[D]     dv[D]{U_XY} = sum over B, T of dy[B_X,T_Y,D]

In: v typed `reduced` over X and Y, with as many dims as x, of size 1 where it has none. jax's own
rule would sum over X and Y at once, for each layer of each microbatch; these sum what a device has.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.varying import axes_by_dim


@jax.custom_vjp
def scaled(x: jax.Array, v: jax.Array) -> jax.Array:
    """x * v."""
    return x * _whole(v)


def _scaled_forward(x: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return scaled(x, v), (x, v)


def _scaled_backward(
    kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, v = kept
    return dy * _whole(v), _gradient(v, dy * x)


scaled.defvjp(_scaled_forward, _scaled_backward)


@jax.custom_vjp
def shifted(x: jax.Array, v: jax.Array) -> jax.Array:
    """x + v."""
    return x + _whole(v)


def _shifted_forward(x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    return shifted(x, v), v


def _shifted_backward(v: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    return dy, _gradient(v, dy)


shifted.defvjp(_shifted_forward, _shifted_backward)


def _whole(v: jax.Array) -> jax.Array:
    """The same values; nothing pends where no gradient is taken."""
    return jax.reshard(v, PartitionSpec(*axes_by_dim(jax.typeof(v).sharding.spec)))


def _gradient(v: jax.Array, terms: jax.Array) -> jax.Array:
    """The sum, in fp32, over the dims along which v is one value: of what a device has only."""
    spec = jax.typeof(v).sharding.spec
    along = tuple(i for i, size in enumerate(v.shape) if size == 1 and terms.shape[i] > 1)
    kept = [axes for i, axes in enumerate(axes_by_dim(spec)) if i not in along]
    placed = PartitionSpec(*kept, unreduced=spec.reduced)
    found = lax.reduce_sum(terms.astype(jnp.float32), along, out_sharding=placed)
    return lax.expand_dims(found.astype(v.dtype), along)
