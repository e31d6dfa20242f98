"""What the devices of a pipeline add up while they run in step: losses and gradients.

    dW[S_P,c,...]{U_X} += adds[S_P,c] * dW'[S_P,...]{U_X}    those without a slot times 0

In: the tables of a schedule, and terms that may be pending sums over data axes, which are added up
as they are. Out: `Sums` of the same types, a row for each device.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.pipeline.table import Ticks
from rooflight.program.pipeline.work import Fns, Sums
from rooflight.program.varying import axes_by_dim


def adds_of(ticks: Ticks) -> npt.NDArray[Any]:
    """[ticks, devices, chunks]: 1 at the chunk whose weights get a gradient."""
    lane = ticks.lanes["backward"]
    is_chunk = lane["chunk"][..., None] == np.arange(ticks.chunks)
    return (lane["does"][..., None] * is_chunk).astype(np.float32)


def add_terms(sums: Sums, terms: Sums, adds: jax.Array) -> Sums:
    """Adds what the slots made, each to the sum of its chunk; devices without a slot add none."""
    any_chunk = adds.sum(1)

    def into_chunk(total: jax.Array, term: jax.Array) -> jax.Array:
        # Without its dims of 1: a broadcast that has to drop them first would sum what is pending.
        dims = (0, *(at for at in range(2, total.ndim) if total.shape[at] > 1))
        entries, spec = entries_of(total), jax.typeof(total).sharding.spec
        kept = PartitionSpec(*(entries[at] for at in dims), unreduced=spec.unreduced)
        term = term.reshape([total.shape[at] for at in dims], out_sharding=kept)
        every = lax.broadcast_in_dim(term, total.shape, dims, out_sharding=spec)
        return total + _scaled(every.astype(total.dtype), adds)

    def into(total: jax.Array, term: jax.Array) -> jax.Array:
        return total + _scaled(term.astype(total.dtype), any_chunk)

    return Sums(
        into(sums.loss, terms.loss),
        jax.tree.map(into_chunk, sums.stages, terms.stages),
        jax.tree.map(into, sums.ends, terms.ends),
    )


def _scaled(term: jax.Array, scale: jax.Array) -> jax.Array:
    """Times a factor of the leading dims; where a sum is pending, its factor is the same there."""
    pending = jax.typeof(term).sharding.spec.unreduced
    if pending:
        scale = jax.reshard(scale, PartitionSpec(*entries_of(scale), reduced=pending))
    return term * lax.expand_dims(scale.astype(term.dtype), range(scale.ndim, term.ndim))


def zero_sums(parts: Fns, terms: Sums, chunks: int) -> Sums:
    """Zeros of the types of the terms, sums pending and all."""

    def zeros(like: jax.Array | jax.ShapeDtypeStruct, *, stacked: bool = False) -> jax.Array:
        first, *rest = entries_of(like)
        pending = jax.typeof(like).sharding.spec.unreduced
        entries = [first, None, *rest] if stacked else [first, *rest]
        shape = (like.shape[0], chunks, *like.shape[1:]) if stacked else like.shape
        made = jnp.zeros(shape, parts.sums, out_sharding=PartitionSpec(*entries))
        return jax.reshard(made, PartitionSpec(*entries, unreduced=pending))

    return Sums(
        zeros(terms.loss).astype(jnp.float32),
        jax.tree.map(lambda like: zeros(like, stacked=True), terms.stages),
        jax.tree.map(zeros, terms.ends),
    )


def entries_of(like: jax.Array | jax.ShapeDtypeStruct) -> tuple[Any, ...]:
    """The axes of each dim."""
    found = axes_by_dim(jax.typeof(like).sharding.spec)
    return (*found, *(None,) * (len(like.shape) - len(found)))
