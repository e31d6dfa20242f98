"""Pipeline parallelism: any table of `models.layout.schedules`, run inside one jit.

    W[L_P,D,F]                       each device of axis P keeps the layers of its own stages
    x[b,T,D]  --F--> ppermute        to the device of the next stage
    g[b,T,D]  --B--> ppermute        to the device of the stage before
    dW[L_P,D,F] += g * x             stays where it is: no collective over P

In a tick every device looks up its slots (`pipeline_table`), runs a forward, a backward or both
(`pipeline_in_step`), and hands the results to its neighbours, who store them or not, as their
table says. A stage keeps only its input; a backward runs the stage again from it, so memory is
the number of inputs in flight, which is what a schedule is about.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from rooflight.models.layout.slots import Schedule
from rooflight.program.pipeline.buffer import Tree
from rooflight.program.pipeline.in_step import run_in_step
from rooflight.program.pipeline.table import encode
from rooflight.program.pipeline.work import Fns, Inputs, Typed, untyped
from rooflight.program.varying import axes_by_dim


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the stages, as they are stacked, and of both ends."""

    stages: Tree
    ends: Tree


def run_schedule(
    table: Schedule,
    stage_fn: Callable[..., Tree],
    stage_params: Tree,
    microbatches: Tree,
    loss_fn: Callable[[Tree, Tree, Tree], jax.Array],
    *,
    axis: str,
    first_fn: Callable[[Tree, Tree], Tree] = lambda _, microbatch: microbatch,
    ends: Tree = (),
    fixed: Tree = (),
    typed: Typed = untyped,
    sums: DTypeLike = jnp.float32,
) -> tuple[jax.Array, Gradients]:
    """The mean loss of the microbatches and its gradients, by the slots of `table`.

    Args:
        stage_fn: `(params of a stage, x[, fixed of the stage]) -> x'`, of the same type as x.
        stage_params: stages stacked in dim 0 in the order of `stage_order(table)`, split over P.
        microbatches: what `first_fn` and `loss_fn` read, stacked in dim 0, not split over P.
        loss_fn: `(ends, x of the last stage, microbatch) -> loss`.
        first_fn: `(ends, microbatch) -> x` of the first stage, such as an embedding.
        ends: parameters outside the stages, whole over P; both functions may use any of them.
        fixed: stacked like `stage_params`, but without gradient: masks or windows of layers.
        typed: `(params of a stage, ends)` as they are differentiated; marked as reduced over data
            axes, their gradients come back as sums that are pending over them.
        sums: the dtype in which gradients of microbatches add up.
    """
    parts = Fns(stage_fn, first_fn, loss_fn, table.microbatches, typed, sums)
    ticks = encode(table)

    def by_chunk(a: jax.Array) -> jax.Array:
        return a.reshape(a.shape[0] // ticks.chunks, ticks.chunks, *a.shape[1:])

    def joined(a: jax.Array) -> jax.Array:
        spec = jax.typeof(a).sharding.spec
        kept = PartitionSpec(axis, *axes_by_dim(spec)[2:], unreduced=spec.unreduced)
        return a.reshape(a.shape[0] * ticks.chunks, *a.shape[2:], out_sharding=kept)

    params, beside = jax.tree.map(by_chunk, (stage_params, fixed))
    found = run_in_step(parts, ticks, Inputs(params, beside, ends, microbatches), axis)
    around = jax.tree.map(lambda a: lax.reduce_sum(a, (0,)), found.ends)
    return found.loss.sum(), Gradients(jax.tree.map(joined, found.stages), around)
