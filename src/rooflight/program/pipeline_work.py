# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""What one device runs in one tick of a pipeline: F, B, W or both gradients of a stage.

    F:   x' = stage(W, x)
    B:   g  = g' * dx'/dx            from the saved x: the stage is run again
    W:   dW += g' * dx'/dW           likewise

The first stage makes its x from a microbatch, the last one ends in the loss, whose g' is 1/M.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from rooflight.errors import UsageError
from rooflight.program.pipeline_buffer import Tree, add, take
from rooflight.program.pipeline_table import Work
from rooflight.program.varying import vary

Row = dict[str, jax.Array]  # a device's row of the table: one integer of each array of `Ticks`
Moves = Mapping[str, Callable[[Tree], Tree]]  # how a device gets what each column stores
Typed = Callable[[Tree, Tree], tuple[Tree, Tree]]


def untyped(params: Tree, ends: Tree) -> tuple[Tree, Tree]:
    """Parameters are differentiated as they are."""
    return params, ends


@dataclass(frozen=True, slots=True)
class Parts:
    """The functions a pipeline is made of, and how often and over what they run."""

    stage_fn: Callable[..., Tree]
    first_fn: Callable[[Tree, Tree], Tree]
    loss_fn: Callable[[Tree, Tree, Tree], jax.Array]
    microbatches: int
    axes: tuple[str, ...]  # manual: every value differs over them
    typed: Typed = untyped  # what is differentiated instead of the params of a stage and the ends
    sums: DTypeLike = jnp.float32  # of gradients that add up


class Held(NamedTuple):
    """What a device has from the start."""

    params: Tree  # [chunk, ...]
    fixed: Tree  # [chunk, ...]
    ends: Tree
    microbatches: Tree  # [microbatch, ...]


class Sums(NamedTuple):
    """What a device adds up."""

    loss: jax.Array
    stages: Tree  # [chunk, ...]
    ends: Tree


Run = Callable[[Row, Tree, Tree, Sums], tuple[Tree, Sums]]  # row, x, g, sums -> to send, sums


def branch(work: Work, parts: Parts, held: Held) -> Run:
    """The function of one kind of work."""

    def idle(_: Row, x: Tree, g: Tree, sums: Sums) -> tuple[Tree, Sums]:
        return x, sums

    def forward(row: Row, x: Tree, _: Tree, sums: Sums) -> tuple[Tree, Sums]:
        return stage(row)(chunk(row), held.ends, x), sums

    def input_gradient(row: Row, x: Tree, g: Tree, sums: Sums) -> tuple[Tree, Sums]:
        weights = chunk(row)
        value, pull = jax.vjp(lambda x: stage(row)(weights, held.ends, x), x)
        return pull(seed(value, g))[0], sums

    def weight_gradient(row: Row, x: Tree, g: Tree, sums: Sums) -> tuple[Tree, Sums]:
        value, pull = jax.vjp(lambda w, e: stage(row)(w, e, x), chunk(row), held.ends)
        return x, added(row, sums, value, *pull(seed(value, g)))

    def both(row: Row, x: Tree, g: Tree, sums: Sums) -> tuple[Tree, Sums]:
        value, pull = jax.vjp(stage(row), chunk(row), held.ends, x)
        dw, de, dx = pull(seed(value, g))
        return vary(dx, parts.axes), added(row, sums, value, dw, de)

    def chunk(row: Row) -> Tree:
        return take(held.params, row["chunk"])

    def stage(row: Row) -> Callable[[Tree, Tree, Tree], Tree]:
        fixed = take(held.fixed, row["chunk"])
        return stage_of(work, parts, fixed, take(held.microbatches, row["microbatch"]))

    def seed(value: Tree, g: Tree) -> Tree:
        return jnp.full_like(value, 1 / parts.microbatches) if work.is_last else g

    def added(row: Row, sums: Sums, value: Tree, dw: Tree, de: Tree) -> Sums:
        loss = sums.loss + value / parts.microbatches if work.is_last else sums.loss
        at_end = work.is_first or work.is_last
        ends = jax.tree.map(jnp.add, sums.ends, de) if at_end else sums.ends
        return Sums(loss, add(sums.stages, row["chunk"], dw), ends)

    kinds: dict[str, Run] = {"F": forward, "B": input_gradient, "W": weight_gradient, "BW": both}
    return kinds.get(work.kind, idle)


def stage_of(
    work: Work, parts: Parts, fixed: Tree, microbatch: Tree
) -> Callable[[Tree, Tree, Tree], Tree]:
    """`(params, ends, x) -> x'`, or the loss if the stage is the last."""
    beside = (fixed,) if jax.tree.leaves(fixed) else ()

    def run(params: Tree, ends: Tree, x: Tree) -> Tree:
        start = parts.first_fn(ends, microbatch) if work.is_first else x
        end = parts.stage_fn(params, start, *beside)
        return parts.loss_fn(ends, end, microbatch) if work.is_last else end

    return run


def check_types(taken: Tree, returned: Tree) -> None:
    """A stage must return what it takes: its result is the next one's input."""
    trees = (taken, returned)
    wanted, got = (jax.tree.map(lambda a: (a.shape, str(a.dtype)), tree) for tree in trees)
    if wanted != got:
        raise UsageError(
            f"a pipeline stage takes {wanted} and returns {got}; the next stage cannot read it",
            hint="return the shape and dtype that came in",
        )
