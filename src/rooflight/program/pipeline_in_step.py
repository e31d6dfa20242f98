# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""A tick of a pipeline in which every device runs the same ops, whatever its slot.

    x', loss, pull = vjp of the stage at the saved x
    F sends x'; B sends pull(g')[x]; W adds pull(g')[W]; the rest is left out by masks

A collective inside a stage is then joined by all devices at once. With one branch for each kind
it is not, and a permute, which the compiler writes as one op for the whole mesh, waits for ever
for the devices in another branch. The price: a tick whose slot is F, or nothing, lasts as long as
one with both gradients and the loss: 6 for the 4 units of a microbatch (F 1; again 1, B and W 2).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rooflight.program.pipeline_buffer import Tree, add, take
from rooflight.program.pipeline_table import Work
from rooflight.program.pipeline_work import Held, Parts, Row, Run, Sums, stage_of


def every_work(works: Sequence[Work], parts: Parts, held: Held) -> Run:
    """One function for all kinds of work, the kind looked up as data."""

    def run(row: Row, x: Tree, g: Tree, sums: Sums) -> tuple[Tree, Sums]:
        def now(flags: Sequence[bool]) -> jax.Array:
            return take(jnp.asarray(np.array(flags)), row["work"])

        is_first, is_last = (
            now(flags) for flags in zip(*(work[1:] for work in works), strict=True)
        )
        does_f, does_w = now([w.kind == "F" for w in works]), now(["W" in w.kind for w in works])
        microbatch = take(held.microbatches, row["microbatch"])

        def stage(weights: Tree, ends: Tree, x: Tree) -> tuple[Tree, jax.Array]:
            start = choose(is_first, parts.first_fn(ends, microbatch), x)
            end = stage_of(Work("F"), parts, held, row)(weights, ends, start)
            return end, parts.loss_fn(ends, end, microbatch)

        (end, loss), pull = jax.vjp(stage, take(held.params, row["chunk"]), held.ends, x)
        share = jnp.where(is_last, jnp.full_like(loss, 1 / parts.microbatches), 0)
        dw, de, dx = pull((choose(is_last, zeros(g), g), share))
        dw, de = choose(does_w, (dw, de), zeros((dw, de)))
        total = sums.loss + jnp.where(does_w, share * loss, 0)
        ends = jax.tree.map(jnp.add, sums.ends, de)
        return choose(does_f, end, dx), Sums(total, add(sums.stages, row["chunk"], dw), ends)

    return run


def choose(flag: jax.Array, yes: Tree, no: Tree) -> Tree:
    """One of two trees; what is left out may even be NaN."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def zeros(tree: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, tree)
