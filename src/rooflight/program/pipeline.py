# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""Pipeline parallelism: any table of `graph.schedules`, run inside one jit.

    W[L_P,D,F]                       each device of axis P keeps the layers of its own stages
    x[b,T,D]  --F--> ppermute        to the device of the next stage
    g[b,T,D]  --B--> ppermute        to the device of the stage before
    dW[L_P,D,F] += g * x             stays where it is: no collective over P

One `lax.scan` over ticks. In a tick every device looks up its slot (`pipeline_table`), runs that
branch of one `lax.switch` (`pipeline_work`), and hands its single result to both neighbours, who
store it or not, as their table says. A stage keeps only its input; B and W run the stage again
from it, so memory is the number of inputs in flight, which is what a schedule is about. Where B
and W are apart (zero bubble) the stage is run again in both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.graph.pipeline import Schedule
from rooflight.program.pipeline_buffer import Tree, put, take, vary
from rooflight.program.pipeline_in_step import every_work
from rooflight.program.pipeline_table import NOTHING, Ticks, Work, encode
from rooflight.program.pipeline_work import Held, Parts, Row, Run, Sums, branch, check_types


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of the stages, as they are stacked, and of both ends; in float32 or better."""

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
        in_step: every device runs all kinds of work and keeps its own (`pipeline_in_step`).
            Left out: if a stage may contain collectives, that is, if other axes split the mesh.
    """
    parts = Parts(stage_fn, first_fn, loss_fn, table.microbatches, (axis, *batch_axes))
    ticks = encode(table)
    sizes = jax.sharding.get_abstract_mesh().shape
    if in_step is None:
        in_step = any(size > 1 for name, size in sizes.items() if name not in parts.axes)

    def local(*arrays: Tree) -> tuple[Tree, Tree, Tree]:
        held = Held(*vary(arrays, parts.axes))
        sums = _scan(parts, ticks, held, axis, in_step=in_step)
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


def _scan(parts: Parts, ticks: Ticks, held: Held, axis: str, *, in_step: bool) -> Sums:
    """One device, all ticks."""
    x = parts.first_fn(held.ends, take(held.microbatches, 0))  # for its type alone
    check_types(parts, held, x)
    run = every_work(ticks.works, parts, held) if in_step else _own_work(ticks.works, parts, held)
    moves = [move for move in _moves(axis) if np.any(getattr(ticks, move) != NOTHING)]

    def tick(carry: tuple[Tree, Sums], rows: Row) -> tuple[tuple[Tree, Sums], None]:
        buffer, sums = carry
        row = {name: take(column, lax.axis_index(axis)) for name, column in rows.items()}
        x, g = take(buffer, row["read_x"]), take(buffer, row["read_g"])
        result, sums = run(row, x, g, sums)
        for move in moves:
            buffer = put(buffer, row[move], _moves(axis)[move](result))
        return (buffer, sums), None

    buffer = jax.tree.map(
        lambda a: jnp.broadcast_to(jnp.zeros_like(a), (ticks.entries, *a.shape)), x
    )
    zeros = Sums(jnp.float32(0), *jax.tree.map(_zeros, (held.params, held.ends)))
    (_, sums), _ = lax.scan(tick, vary((buffer, zeros), parts.axes), _rows(ticks))
    return sums


def _own_work(works: Sequence[Work], parts: Parts, held: Held) -> Run:
    """Each device runs the branch of its slot and nothing else."""
    branches = [branch(work, parts, held) for work in works]
    return lambda row, *operands: lax.switch(row["work"], branches, row, *operands)


def _moves(axis: str) -> dict[str, Callable[[Tree], Tree]]:
    """How a device gets what each column of the table stores."""
    size = lax.axis_size(axis)
    down = [(i, (i + 1) % size) for i in range(size)]
    up = [(i, (i - 1) % size) for i in range(size)]
    return {
        "from_before": lambda tree: lax.ppermute(tree, axis, down),
        "from_after": lambda tree: lax.ppermute(tree, axis, up),
        "from_here": lambda tree: tree,
    }


def _zeros(a: jax.Array) -> jax.Array:
    return jnp.zeros_like(a, dtype=jnp.promote_types(a.dtype, jnp.float32))


def _rows(ticks: Ticks) -> dict[str, jax.Array]:
    columns = (f.name for f in fields(ticks) if f.name not in ("works", "entries"))
    return {name: jnp.asarray(getattr(ticks, name)) for name in columns}
