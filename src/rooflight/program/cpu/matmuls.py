"""Matmuls of a few rows with a weight by an FFI custom call of this CPU (`csrc/few_rows.cc`).

    x[B,T,D] * W[D,K,G,H] -> q[B,T,K,G,H]   as x[BT,D] * W[D,KGH]

XLA's matmul packs a weight before it multiplies, which is as much work as a few rows are. Of one
device only, and without a gradient: for inference.
"""

import math

import jax
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Contraction
from rooflight.program.cpu.load import FEW_ROWS, STORED
from rooflight.program.decode.form import decode_form

_MOST = 32  # rows; with more of them packing pays


def few_rows_can(contraction: Contraction, x: jax.Array, weight: jax.Array) -> bool:
    """Whether these factors are a few rows and a matrix, one after the other in memory."""
    if not decode_form().is_native or jax.sharding.get_abstract_mesh().size != 1:
        return False
    if x.dtype != weight.dtype or x.dtype not in STORED:
        return False
    kept, summed, columns = _dims(contraction)
    left, right = contraction.operands
    is_in_order = (left.dims, right.dims) == (kept + summed, summed + columns)
    is_in_order &= contraction.result.dims == kept + columns
    return is_in_order and math.prod(x.shape[: len(kept)]) <= _MOST


def few_rows(contraction: Contraction, x: jax.Array, weight: jax.Array) -> jax.Array:
    """The contraction of an activation with its weight, which `few_rows_can` has seen."""
    kept, summed, _ = _dims(contraction)
    x, weight = (jax.reshard(factor, PartitionSpec()) for factor in (x, weight))
    rows, columns = x.shape[: len(kept)], weight.shape[len(summed) :]
    result = jax.ShapeDtypeStruct((math.prod(rows), math.prod(columns)), x.dtype)
    y = jax.ffi.ffi_call(FEW_ROWS, result)(
        x.reshape(result.shape[0], -1), weight.reshape(-1, result.shape[1])
    )
    return y.reshape(*rows, *columns)


def _dims(contraction: Contraction) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Those of the activation alone, of both and of the weight alone."""
    left, right = (t.dims for t in contraction.operands)
    summed = tuple(d for d in left if d in right)
    return (
        tuple(d for d in left if d not in right),
        summed,
        tuple(d for d in right if d not in left),
    )
