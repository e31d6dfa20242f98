# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Loss and gradients of a program whose layers are cut into pipeline stages.

    W[L_P,D_X,F_Y] -> W[S_P,L/S,D_X,F_Y]     a reshape: each device of P has the layers of its stage
    run the slots of a schedule (`pipeline`); inside a stage the pins hold as without a pipeline

The embedding, the head and the loss belong to the first and last stage; their weights are whole
along P.
"""

import jax

from rooflight.errors import UsageError
from rooflight.graph import Schedule
from rooflight.program.loss import head_loss
from rooflight.program.model import Program, embed, finish, forward_run
from rooflight.program.params import Tree
from rooflight.program.pipeline import run_schedule

Rows = tuple[jax.Array, ...]  # tokens, targets and weights, each [M,B/M,T]


def pipelined(
    program: Program, params: Tree, rows: Rows, schedule: Schedule
) -> tuple[jax.Array, Tree]:
    """The mean loss of a token and the gradients of all weights, by the slots of `schedule`."""
    _check(program, schedule)
    total, ways = rows[2].sum(), schedule.microbatches

    def first(frame: dict[str, jax.Array], part: Rows) -> jax.Array:
        return embed(program, Tree(frame, ()), part[0])

    def stage(weights: tuple[dict[str, jax.Array], ...], x: jax.Array) -> jax.Array:
        return forward_run(program, 0, weights, x)

    def last(frame: dict[str, jax.Array], x: jax.Array, part: Rows) -> jax.Array:
        ends = Tree(frame, ())
        h = finish(program, ends, x)
        return head_loss(program, ends, h, part[1], part[2]) / part[3] * ways

    def cut(weight: jax.Array) -> jax.Array:
        stages = schedule.num_stages
        return weight.reshape(stages, weight.shape[0] // stages, *weight.shape[1:])

    def joined(gradient: jax.Array, weight: jax.Array) -> jax.Array:
        return gradient.reshape(weight.shape).astype(weight.dtype)

    totals = jax.numpy.broadcast_to(total, (ways,))
    loss, gradients = run_schedule(
        schedule,
        stage,
        jax.tree.map(cut, params.layers[0]),
        (*rows, totals),
        last,
        axis=program.pins.layout.stages[0],
        first_fn=first,
        ends=params.frame,
    )
    layers = jax.tree.map(joined, gradients.stages, params.layers[0])
    frame = jax.tree.map(joined, gradients.ends, params.frame)
    return loss, Tree(frame, (layers,))


def _check(program: Program, schedule: Schedule) -> None:
    """One stage a device, all stages alike: the weights then lie where the layout stores them."""
    runs, stages = program.model.layers, program.pins.layout.stages
    size = program.pins.axes[stages[0]] if len(stages) == 1 else 0
    if size != schedule.num_stages:
        raise UsageError(
            f"a schedule of {schedule.num_stages} stages does not fit layout "
            f"{program.pins.layout.text} on {dict(program.pins.axes)}",
            hint="give one pipeline axis as many devices as the schedule has stages (1f1b, gpipe)",
        )
    if len(runs) != 1 or runs[0].times % size:
        raise UsageError(
            f"the layers of {program.model.name} do not cut into {size} equal stages",
            hint="use a number of stages that divides one run of equal layers",
        )
