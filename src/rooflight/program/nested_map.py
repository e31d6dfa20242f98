# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""A map inside a map, such as attention inside a stage of a pipeline, with a gradient.

jax has no type for what an inner map would save for its backward pass, so this one saves nothing
but its inputs and makes the rest again: y = f(x) in one map, dx = vjp of f at x in another.
"""

from collections.abc import Callable
from typing import Any  # pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np


def nested_map(
    local: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any, axes: set[str]
) -> Callable[..., Any]:
    """`jax.shard_map` over `axes`; only operands of a float type get gradients."""

    @jax.custom_vjp
    def run(*operands: Any) -> Any:
        mapped = jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, axis_names=axes)
        return mapped(*operands)

    def forward(*operands: Any) -> tuple[Any, tuple[Any, ...]]:
        return run(*operands), operands

    def backward(operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        at = [i for i, x in enumerate(operands) if x is not None and _is_float(x)]
        flat, shape = jax.tree.flatten(cotangents)
        specs = jax.tree.leaves(out_specs)
        given = [i for i, x in enumerate(flat) if x.dtype != jax.dtypes.float0]

        def pull(operands: tuple[Any, ...], given_cotangents: list[Any]) -> list[Any]:
            def of_floats(*floats: Any) -> Any:
                every = list(operands)
                for i, x in zip(at, floats, strict=True):
                    every[i] = x
                return local(*every)

            out, back = jax.vjp(of_floats, *(operands[i] for i in at))
            whole = [np.zeros(x.shape, jax.dtypes.float0) for x in jax.tree.leaves(out)]
            for i, x in zip(given, given_cotangents, strict=True):
                whole[i] = x
            return list(back(jax.tree.unflatten(shape, whole)))

        mapped = jax.shard_map(
            pull,
            in_specs=(in_specs, [specs[i] for i in given]),
            out_specs=[in_specs[i] for i in at],
            axis_names=axes,
        )
        found = dict(zip(at, mapped(operands, [flat[i] for i in given]), strict=True))
        return tuple(found.get(i) for i in range(len(operands)))

    run.defvjp(forward, backward)
    return run


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
