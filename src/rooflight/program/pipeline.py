# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""Pipeline parallelism: any table of `graph.schedules`, run inside one jit.

    W[L_P,D,F]                       each device of axis P keeps the layers of its own stages
    x[b,T,D]  --F--> ppermute        to the device of the next stage
    g[b,T,D]  --B--> ppermute        to the device of the stage before
    dW[L_P,D,F] += g * x             stays where it is: no collective over P

One `lax.scan` over ticks. In a tick every device looks up its slot (`pipeline_table`), runs it
(`pipeline_own`, `pipeline_in_step`), and hands its single result to both neighbours, who store it
or not, as their table says. A stage keeps only its input; B and W run the stage again
from it, so memory is the number of inputs in flight, which is what a schedule is about. Where B
and W are apart (zero bubble) the stage is run again in both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from rooflight.graph.pipeline import Schedule
from rooflight.program.pipeline_buffer import Tree
from rooflight.program.pipeline_in_step import run_in_step
from rooflight.program.pipeline_own import run_own
from rooflight.program.pipeline_table import NOTHING, Ticks, encode
from rooflight.program.pipeline_work import Held, Moves, Parts, Typed, untyped
from rooflight.program.varying import vary


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
    batch_axes: tuple[str, ...] = (),
    typed: Typed = untyped,
    sums: DTypeLike = jnp.float32,
    in_step: bool | None = None,
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
        batch_axes: axes that split dim 1 of `microbatches`, manual here, so that gradients are
            summed over them once, after the last tick. Other axes keep the types they have.
        typed: `(params of a stage, ends)` as they are differentiated; marked as reduced over data
            axes, their gradients come back as sums that are pending over them.
        sums: the dtype in which gradients of microbatches add up.
        in_step: every device runs all kinds of work and keeps its own (`pipeline_in_step`).
            Left out: if a stage may contain collectives, that is, if other axes split the mesh.
            False: each device runs its own slot and nothing more.
    """
    parts = Parts(stage_fn, first_fn, loss_fn, table.microbatches, (axis, *batch_axes), typed, sums)
    ticks = encode(table)
    sizes = jax.sharding.get_abstract_mesh().shape
    moves = {
        name: move
        for name, move in _moves(axis, sizes[axis]).items()
        if np.any(getattr(ticks, name) != NOTHING)
    }
    if in_step is None:
        in_step = any(size > 1 for name, size in sizes.items() if name not in parts.axes)
    if in_step:
        return _in_step(parts, ticks, Held(stage_params, fixed, ends, microbatches), axis, moves)

    def local(*arrays: Tree) -> tuple[Tree, Tree, Tree]:
        sums = run_own(parts, ticks, Held(*vary(arrays, parts.axes)), axis, moves)
        found = lax.psum(sums.loss, axis), sums.stages, lax.psum(sums.ends, axis)
        return lax.pmean(found, batch_axes) if batch_axes else found

    split, whole = PartitionSpec(axis), PartitionSpec()
    batch = PartitionSpec(None, batch_axes) if batch_axes else whole
    loss, stages, around = jax.shard_map(
        local,
        in_specs=(split, split, whole, batch),
        out_specs=(whole, split, whole),
        axis_names=set(parts.axes),
    )(stage_params, fixed, ends, microbatches)
    return loss, Gradients(stages, around)


def _in_step(
    parts: Parts, ticks: Ticks, held: Held, axis: str, moves: Moves
) -> tuple[jax.Array, Gradients]:
    """Stages as [device, chunk, ...] and back."""
    chunks = 1 + int(ticks.chunk.max())

    def by_chunk(a: jax.Array) -> jax.Array:
        return a.reshape(a.shape[0] // chunks, chunks, *a.shape[1:])

    def joined(a: jax.Array) -> jax.Array:
        spec = jax.typeof(a).sharding.spec
        kept = PartitionSpec(axis, *spec.partitions[2:], unreduced=spec.unreduced)
        return a.reshape(a.shape[0] * chunks, *a.shape[2:], out_sharding=kept)

    params, fixed = jax.tree.map(by_chunk, (held.params, held.fixed))
    placed = held._replace(params=params, fixed=fixed)
    sums = run_in_step(parts, ticks, placed, axis, moves)
    ends = jax.tree.map(lambda a: lax.reduce_sum(a, (0,)), sums.ends)
    return sums.loss.sum(), Gradients(jax.tree.map(joined, sums.stages), ends)


def _moves(axis: str, size: int) -> Moves:
    """How a device gets what each column of the table stores."""
    down = [(i, (i + 1) % size) for i in range(size)]
    up = [(i, (i - 1) % size) for i in range(size)]
    return {
        "from_before": lambda tree: lax.ppermute(tree, axis, down),
        "from_after": lambda tree: lax.ppermute(tree, axis, up),
        "from_here": lambda tree: tree,
    }
