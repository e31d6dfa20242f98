"""Matmuls that overlap their collective (Wang et al. 2023; chapter 10). Inside `shard_map`.

    all_gather_matmul      rows      A[I_X,J] * B[J,K_X] -> C[I,K_X]     C_i  = A_i B for each i
                           contract  A[I,J_X] * B[J,K_X] -> C[I,K_X]     C   += A_j B_j for each j
    matmul_reduce_scatter  rows      A[I,J_X] * B[J_X,K] -> C[I_X,K]     C_i += A_i B, travelling
                           columns   A[I,J_X] * B[J_X,K] -> C[I,K_X]     C_k += A B_k, travelling
    matmul_all_reduce                A[I,J_X] * B[J_X,K] -> C[I,K]       columns, then AllGather_X

Gradients are of the same family: dA of a gathering form is a scattering form of dC B^T, dB is the
other gathering form, and so back. Only local blocks are saved; A is gathered again for dB.
Matrices have two dims; `jax.vmap` adds others. The ways around the ring: `collective_matmul_ring`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.errors import ShardingError
from rooflight.program.collective_matmul.ring import arrivals, departures
from rooflight.program.varying import align

Gathered = Literal["rows", "contract"]
Scattered = Literal["rows", "columns"]
Pair = tuple[jax.Array, jax.Array]


def all_gather_matmul(
    a: jax.Array, b: jax.Array, *, axis: str, dim: Gathered, two_way: bool = True
) -> jax.Array:
    """AllGather_X(A) * B, A split over its rows or over the contracted dim."""
    return _gather(*_aligned(a, b, axis), axis, dim, two_way)


def matmul_reduce_scatter(
    a: jax.Array, b: jax.Array, *, axis: str, dim: Scattered, two_way: bool = True
) -> jax.Array:
    """ReduceScatter_X(A * B) over the rows or the columns of the matmul."""
    _check_divides(a.shape[0] if dim == "rows" else b.shape[1], axis, dim)
    return _scatter(*_aligned(a, b, axis), axis, dim, two_way)


def matmul_all_reduce(
    a: jax.Array, b: jax.Array, *, axis: str, two_way: bool = True, tiles: int = 2
) -> jax.Array:
    """AllReduce_X(A * B), the gather of one tile of columns beside the matmul of the next."""
    _check_divides(b.shape[1], axis, "columns", tiles)
    return _all_reduce(*_aligned(a, b, axis), axis, two_way, tiles)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _gather(a: jax.Array, b: jax.Array, axis: str, dim: Gathered, two_way: bool) -> jax.Array:
    rows = a.shape[0] * (lax.axis_size(axis) if dim == "rows" else 1)
    dtype = b.dtype if dim == "rows" else jnp.float32  # a sum of blocks is kept in fp32
    c = jnp.zeros_like(b, dtype, shape=(rows, b.shape[1]))
    for source, block in arrivals(a, axis=axis, two_way=two_way):
        if dim == "rows":
            c = _put(c, _matmul(block, b), source, 0)
        else:
            c += _matmul(block, _take(b, source, a.shape[1], 0))
    return c.astype(b.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _scatter(a: jax.Array, b: jax.Array, axis: str, dim: Scattered, two_way: bool) -> jax.Array:
    n = lax.axis_size(axis)

    def part(owner: jax.Array) -> jax.Array:
        if dim == "rows":
            return _take(a, owner, a.shape[0] // n, 0) @ b
        return a @ _take(b, owner, b.shape[1] // n, 1)

    return departures(part, axis=axis, two_way=two_way)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _all_reduce(a: jax.Array, b: jax.Array, axis: str, two_way: bool, tiles: int) -> jax.Array:
    blocks = [_scatter(a, tile, axis, "columns", two_way) for tile in jnp.split(b, tiles, axis=1)]
    whole = [lax.all_gather(c, axis, axis=1, tiled=True, to="invarying") for c in blocks]
    return jnp.concatenate(whole, axis=1)


def _gather_grads(axis: str, dim: Gathered, two_way: bool, saved: Pair, dc: jax.Array) -> Pair:
    a, b = saved
    scattered, other = ("rows", "contract") if dim == "rows" else ("columns", "rows")
    da: jax.Array = _scatter(dc, b.T, axis, scattered, two_way)
    return da, _gather(a.T, dc, axis, other, two_way)


def _scatter_grads(axis: str, dim: Scattered, two_way: bool, saved: Pair, dc: jax.Array) -> Pair:
    """Both gathering forms read the same blocks of dC, which go around once."""
    a, b = saved
    da, db = jnp.zeros_like(a, jnp.float32), jnp.zeros_like(b, jnp.float32)
    for source, block in arrivals(dc, axis=axis, two_way=two_way):
        if dim == "rows":
            da = _put(da, _matmul(block, b.T), source, 0)
            db += _matmul(_take(a, source, block.shape[0], 0).T, block)
        else:
            da += _matmul(block, _take(b, source, block.shape[1], 1).T)
            db = _put(db, _matmul(a.T, block), source, 1)
    return da.astype(a.dtype), db.astype(b.dtype)


def _all_reduce_grads(axis: str, two_way: bool, tiles: int, saved: Pair, dc: jax.Array) -> Pair:
    dc = lax.pcast(dc, axis, to="varying")  # every device has all of it: no exchange
    return dc @ saved[1].T, saved[0].T @ dc


def _saving(f: Callable[..., Any]) -> Callable[..., tuple[jax.Array, Pair]]:
    def forward(a: jax.Array, b: jax.Array, *words: object) -> tuple[jax.Array, Pair]:
        return f(a, b, *words), (a, b)

    return forward


_gather.defvjp(_saving(_gather), _gather_grads)
_scatter.defvjp(_saving(_scatter), _scatter_grads)
_all_reduce.defvjp(_saving(_all_reduce), _all_reduce_grads)


def _aligned(a: jax.Array, b: jax.Array, axis: str) -> Pair:
    return align((a, b, lax.axis_index(axis)))[:2]


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _take(x: jax.Array, block: jax.Array, size: int, dim: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, block * size, size, dim)


def _put(x: jax.Array, value: jax.Array, block: jax.Array, dim: int) -> jax.Array:
    value = value.astype(x.dtype)
    return lax.dynamic_update_slice_in_dim(x, value, block * value.shape[dim], dim)


def _check_divides(size: int, axis: str, what: str, tiles: int = 1) -> None:
    if size % (ways := lax.axis_size(axis) * tiles):
        raise ShardingError(
            f"{size} {what} of a matmul cannot be split {ways} ways ({tiles} tiles over {axis})",
            hint=f"pad the {what} to a multiple of {ways}",
        )
