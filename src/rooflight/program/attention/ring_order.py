"""Which positions of a sequence the devices of a ring hold.

"blocks": device r of n holds positions [r t, (r+1) t). Under a causal mask device 0 then has
nothing to do in any round but its own, and the last device has a full round every time.

"zigzag": the sequence is cut into 2n pieces, and device r holds pieces r and 2n-1-r, an early and
a late one. In every round every device has two of four pairs of pieces to do, in its own three.
`zigzag` puts a whole sequence into the order whose equal blocks are these; `unzigzag` undoes it.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.algebra.notation import Axes

Order = Literal["blocks", "zigzag"]


def order_of(length: int, devices: int) -> Order:
    """The order in which devices hold `length` positions each."""
    return "blocks" if devices == 1 or length % 2 else "zigzag"


def zigzag_pieces(devices: int) -> list[int]:
    """The pieces of a sequence in the order in which the devices hold them.

    >>> zigzag_pieces(4)
    [0, 7, 1, 6, 2, 5, 3, 4]
    """
    return [piece for r in range(devices) for piece in (r, 2 * devices - 1 - r)]


def zigzag(x: jax.Array, devices: int, dim: int = 1) -> jax.Array:
    """A whole sequence along `dim`, reordered so that block r is what device r holds.

    One that does not cut into so many pieces stays as it is: in the order "blocks".
    """
    if order_of(x.shape[dim] // devices, devices) == "blocks":
        return x
    return _take_pieces(x, zigzag_pieces(devices), dim)


def unzigzag(x: jax.Array, devices: int, dim: int = 1) -> jax.Array:
    """The inverse of `zigzag`: positions in their own order."""
    if order_of(x.shape[dim] // devices, devices) == "blocks":
        return x
    pieces = zigzag_pieces(devices)
    return _take_pieces(x, [pieces.index(i) for i in range(2 * devices)], dim)


def ring_positions(
    length: int, *, axis: str | Axes, order: Order, rank: jax.Array | None = None
) -> jax.Array:
    """Inside `shard_map`: the positions of the `length` tokens that a device (this one) holds."""
    rank = lax.axis_index(axis) if rank is None else rank
    if order == "blocks":
        return rank * length + jnp.arange(length)
    half, last = length // 2, 2 * lax.axis_size(axis) - 1
    pieces = jnp.stack([rank, last - rank])[:, None]
    return (pieces * half + jnp.arange(half)).reshape(length)


def _take_pieces(x: jax.Array, pieces: list[int], dim: int) -> jax.Array:
    size = x.shape[dim] // len(pieces)
    whole = x.reshape(*x.shape[:dim], len(pieces), size, *x.shape[dim + 1 :])
    return jnp.take(whole, jnp.array(pieces), axis=dim).reshape(x.shape)
