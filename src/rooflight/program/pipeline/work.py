"""What the devices of a pipeline run in one tick: a forward, or both gradients of a stage.

    F:   x' = stage(W, x)
    BW:  g  = g' * dx'/dx,  dW = g' * dx'/dW       from the saved x: the stage is run again

The first stage makes its x from a microbatch, the last one ends in the loss, whose g' is 1/M. All
devices do all of it, with masks, each on its row of dim 0 of the arrays A[S_P,...].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from rooflight.errors import UsageError
from rooflight.program.pipeline.buffer import Tree

Row = dict[str, jax.Array]  # a lane of the table at one tick: [devices] of each column
Typed = Callable[[Tree, Tree], tuple[Tree, Tree]]


def untyped(params: Tree, ends: Tree) -> tuple[Tree, Tree]:
    """Parameters are differentiated as they are."""
    return params, ends


@dataclass(frozen=True, slots=True)
class Fns:
    """The functions a pipeline is made of, and how often they run."""

    stage_fn: Callable[..., Tree]
    first_fn: Callable[[Tree, Tree], Tree]
    loss_fn: Callable[[Tree, Tree, Tree], jax.Array]
    microbatches: int
    typed: Typed = untyped  # what is differentiated instead of the params of a stage and the ends
    sums: DTypeLike = jnp.float32  # of gradients that add up


class Inputs(NamedTuple):
    """What the devices have from the start."""

    params: Tree  # [S_P, chunk, ...]
    fixed: Tree  # [S_P, chunk, ...]
    ends: Tree
    microbatches: Tree  # [microbatch, ...]


class Now(NamedTuple):
    """What the slots of a tick read, a row for each device."""

    params: Tree
    fixed: Tree
    microbatch: Tree
    x: Tree
    g: Tree = ()


class Sums(NamedTuple):
    """What the devices add up, a row for each."""

    loss: jax.Array
    stages: Tree  # [S_P, chunk, ...]
    ends: Tree


def run_forward(parts: Fns, ends: Tree, axis: str, row: Row, now: Now) -> Tree:
    """x' of every device."""

    def one(row: Row, now: Now) -> Tree:
        return _stage(parts, row, now)(*parts.typed(now.params, ends), now.x)

    return jax.vmap(one, spmd_axis_name=axis)(row, now)


def run_backward(parts: Fns, ends: Tree, axis: str, row: Row, now: Now) -> tuple[Tree, Sums]:
    """g of every device, and what it has for the sums."""

    def one(row: Row, now: Now) -> tuple[Tree, Sums]:
        stage, is_last = _stage(parts, row, now), row["is_last"]

        def ended(weights: Tree, ends: Tree, x: Tree) -> tuple[Tree, jax.Array]:
            end = stage(weights, ends, x)
            return end, parts.loss_fn(ends, end, now.microbatch)

        (_, loss), pull = jax.vjp(ended, *parts.typed(now.params, ends), now.x)
        share = jnp.where(is_last, jnp.full_like(loss, 1 / parts.microbatches), 0)
        zeros = jax.tree.map(jnp.zeros_like, now.g)
        dw, de, dx = pull((_choose(is_last, zeros, now.g), share))
        return dx, Sums(share * loss, dw, de)

    return jax.vmap(one, spmd_axis_name=axis)(row, now)


def _stage(parts: Fns, row: Row, now: Now) -> Callable[[Tree, Tree, Tree], Tree]:
    """`(params, ends, x) -> x'`; a first stage takes no x."""
    beside = (now.fixed,) if jax.tree.leaves(now.fixed) else ()

    def run(params: Tree, ends: Tree, x: Tree) -> Tree:
        start = _choose(row["is_first"], parts.first_fn(ends, now.microbatch), x)
        end = parts.stage_fn(params, start, *beside)
        check_types(start, end)
        return end

    return run


def _choose(flag: jax.Array, yes: Tree, no: Tree) -> Tree:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def check_types(taken: Tree, returned: Tree) -> None:
    """A stage must return what it takes: its result is the next one's input."""
    trees = (taken, returned)
    wanted, got = (jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree) for tree in trees)
    if wanted != got:
        raise UsageError(
            f"a pipeline stage takes {wanted} and returns {got}; the next stage cannot read it",
            hint="return the shape and dtype that came in",
        )
