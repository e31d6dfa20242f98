# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""A pipeline in which each device runs the branch of its slot and nothing else.

    F: x' = stage(W, x)    B: g = g' * dx'/dx    W: dW += g' * dx'/dW    one `lax.switch` a tick

For stages without collectives: all axes but those of the pipeline have one device.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.pipeline_buffer import Tree, put, take
from rooflight.program.pipeline_table import Ticks, Work
from rooflight.program.pipeline_work import (
    Held,
    Moves,
    Parts,
    Row,
    Run,
    Sums,
    branch,
    check_types,
    stage_of,
)
from rooflight.program.varying import vary


def run_own(parts: Parts, ticks: Ticks, held: Held, axis: str, moves: Moves) -> Sums:
    """All ticks of one device."""
    x = parts.first_fn(held.ends, take(held.microbatches, 0))  # for its type alone
    stage = stage_of(Work("F"), parts, take(held.fixed, 0), ())
    check_types(x, jax.eval_shape(stage, take(held.params, 0), held.ends, x))
    run = _own_work(ticks.works, parts, held)

    def tick(carry: tuple[Tree, Sums], rows: Row) -> tuple[tuple[Tree, Sums], None]:
        buffer, sums = carry
        row = {name: take(column, lax.axis_index(axis)) for name, column in rows.items()}
        x, g = take(buffer, row["read_x"]), take(buffer, row["read_g"])
        result, sums = run(row, x, g, sums)
        for name, move in moves.items():
            buffer = put(buffer, row[name], move(result))
        return (buffer, sums), None

    buffer = jax.tree.map(
        lambda a: jnp.broadcast_to(jnp.zeros_like(a), (ticks.entries, *a.shape)), x
    )
    zeros = Sums(
        jnp.float32(0),
        *jax.tree.map(lambda a: jnp.zeros_like(a, dtype=parts.sums), (held.params, held.ends)),
    )
    rows = jax.tree.map(jnp.asarray, ticks.columns())
    (_, sums), _ = lax.scan(tick, vary((buffer, zeros), parts.axes), rows)
    return sums


def _own_work(works: Sequence[Work], parts: Parts, held: Held) -> Run:
    """Each device runs the branch of its slot and nothing else."""
    branches = [branch(work, parts, held) for work in works]
    return lambda row, *operands: lax.switch(row["work"], branches, row, *operands)
