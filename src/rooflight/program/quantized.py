"""Quantized arrays with a scale per row: weights of a model, keys and values of a cache.

    w[D,F] ~ values[D,F] * scale[1,F]        scale = max over D of |w| / the largest value

In: arrays in a wide dtype. Out: `Quantized`, which stands where the array stood: the program asks a
weight only for `astype`, and the compiler multiplies as it reads. Rounding to the nearest moves an
element of int8 by at most half a scale, 1/254 of the largest of its row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from rooflight.errors import UnknownNameError
from rooflight.models.graph.build import model_graph
from rooflight.models.spec import ModelSpec
from rooflight.program.model.params import Tree

FORMATS = {"int8": (jnp.int8, 127.0), "int4": (jnp.int4, 7.0), "fp8": (jnp.float8_e4m3fn, 448.0)}


class Quantized(NamedTuple):
    """values * scale; the scale has one element along the dims it is shared by."""

    values: jax.Array
    scale: jax.Array

    def astype(self, dtype: DTypeLike) -> jax.Array:
        """The array that this stands for."""
        return self.values.astype(dtype) * self.scale.astype(dtype)


def quantize(wide: jax.Array, dtype: str, *, dims: tuple[int, ...] = (-1,)) -> Quantized:
    """Rounds to a format of `FORMATS`, one scale for all elements along `dims`.

    >>> found = quantize(jnp.array([[1.0, -2.54], [0.0, 0.0]]), "int8")
    >>> found.values.tolist(), found.astype(jnp.float32).round(2).tolist()
    ([[50, -127], [0, 0]], [[1.0, -2.5399999618530273], [0.0, 0.0]])
    """
    if dtype not in FORMATS:
        raise UnknownNameError("quantized format", dtype, FORMATS)
    stored, largest = FORMATS[dtype]
    wide = wide.astype(jnp.float32)
    top = jnp.abs(wide).max(dims, keepdims=True)
    scale = jnp.where(top > 0, top, 1) / largest
    ratio = jnp.clip(wide / scale, -largest, largest)
    whole = jnp.issubdtype(stored, jnp.integer)
    return Quantized((jnp.round(ratio) if whole else ratio).astype(stored), scale)


def quantize_weights(model: ModelSpec, params: Tree, dtype: str) -> Tree:
    """The same weights, the matrices of the layers and a head of its own quantized.

    A scale is shared along the dims that the weight's matmul sums over. The table of tokens, of
    which a step reads few rows, routers, scales and biases stay as they are.
    """
    summed = _summed_dims(model)

    def of_frame(name: str, weight: jax.Array) -> jax.Array | Quantized:
        dims = summed.get((None, name)) if name.startswith("head.") else None
        return weight if dims is None else quantize(weight, dtype, dims=dims)

    def of_layer(block: int, name: str, weight: jax.Array) -> jax.Array | Quantized:
        dims = None if name.startswith("router.") else summed.get((block, name))
        return weight if dims is None else quantize(weight, dtype, dims=dims)

    frame = {n: of_frame(n, w) for n, w in params.frame.items()}
    layers = tuple(
        tuple(
            {n: of_layer(model.blocks.index(block), n, w) for n, w in weights.items()}
            for block, weights in zip(run.blocks, mine, strict=True)
        )
        for run, mine in zip(model.layers, params.layers, strict=True)
    )
    return Tree(frame, layers)


def _summed_dims(model: ModelSpec) -> dict[tuple[int | None, str], tuple[int, ...]]:
    """For each weight of a matmul the dims, from the last, that the matmul sums over."""
    found: dict[tuple[int | None, str], tuple[int, ...]] = {}
    for op in model_graph(model).ops:
        if op.kind != "matmul" or not op.params:
            continue
        weight = next(t for t in op.contraction.operands if t.name[0].isupper())
        contracted = op.contraction.contracted
        at = tuple(i - len(weight.dims) for i, d in enumerate(weight.dims) if d in contracted)
        found[op.block, op.params[0]] = at
    return found
