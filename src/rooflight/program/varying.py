"""Over which mesh axes a value may differ inside `jax.shard_map`, and making operands agree.

A rule of differentiation written by hand must return gradients of the types of its inputs.
It can when all inputs vary over the same axes; the sum of a replicated operand's gradient over the
axes it did not vary over is then the transpose of the cast made here, once, outside the rule.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
from jax import lax
from jax.sharding import PartitionSpec

Tree = TypeVar("Tree")


def varying_axes(value: jax.Array) -> frozenset[str]:
    """The mesh axes over which the type of `value` lets it differ; none outside `shard_map`."""
    return frozenset(str(axis) for axis in jax.typeof(value).manual_axis_type.varying)


def vary(values: Tree, axes: Iterable[str]) -> Tree:
    """The same tree, every array typed as different on each device of `axes`."""

    def cast(value: jax.Array) -> jax.Array:
        missing = tuple(sorted(set(axes) - varying_axes(value)))
        return lax.pcast(value, missing, to="varying") if missing else value

    return jax.tree.map(cast, values)


def align(values: Tree) -> Tree:
    """The same tree, every array typed as varying over all axes that any of them varies over."""
    return vary(values, frozenset[str]().union(*map(varying_axes, jax.tree.leaves(values))))


def unchecked(local: Callable[..., Tree]) -> Callable[..., Tree]:
    """`local` of arrays that all vary over the same axes, as its results then do.

    What a Pallas kernel returns does not say over which axes it varies. So it runs in a map over
    no further axis that does not check, and its results are typed here, which is right as long as
    it sums over no axis. A cast has a gradient, of a sum: call it inside rules written by hand.
    """

    def run(*operands: Any) -> Tree:
        axes = frozenset[str]().union(*map(varying_axes, jax.tree.leaves(operands)))
        if not axes:
            return local(*operands)
        same = PartitionSpec()
        mapped = jax.shard_map(local, in_specs=same, out_specs=same, check_vma=False)
        return vary(mapped(*operands), axes)

    return run


def axes_by_dim(spec: PartitionSpec) -> tuple[Any, ...]:
    """The axes of each dim; before jax 0.10.2 a spec has no other word for them than itself."""
    return spec.partitions if hasattr(spec, "partitions") else tuple(spec)
