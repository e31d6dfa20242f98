"""Loss and gradients of a program whose layers are cut into pipeline stages.

    W[L_P,D_X,F_Y] -> W[S_P,L/S,D_X,F_Y]     a reshape: each device has the layers of its stages
    run the slots of a schedule (`pipeline`); inside a stage constraints hold as without a pipeline

The embedding, the head and the loss belong to the first and last stage; their weights are whole
along P. Gradients over data axes are sums that pend until the last slot is done.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rooflight.errors import UsageError
from rooflight.models.layout.slots import Schedule
from rooflight.program.model.forward import (
    Program,
    embed,
    finish,
    forward_run,
    with_pending_gradients,
)
from rooflight.program.model.loss import head_loss
from rooflight.program.model.params import JAX_DTYPES, Tree
from rooflight.program.pipeline.layers import Staging
from rooflight.program.pipeline.run import run_schedule
from rooflight.program.varying import axes_by_dim

Frame = dict[str, jax.Array]
Layers = tuple[tuple[dict[str, jax.Array], ...], ...]  # [run][block of its pattern][name]
IsReal = tuple[jax.Array | None, ...]  # by run: [stage, layer, block of the pattern]


class Microbatches(NamedTuple):
    """What a step reads, in microbatches."""

    tokens: jax.Array  # [M,B/M,T]
    targets: jax.Array
    weights: jax.Array


def pipelined(program: Program, params: Tree, rows: Microbatches) -> tuple[jax.Array, Tree]:
    """The mean loss of a token and the gradients of all weights, by the slots of the schedule."""
    schedule, staging = program.schedule, program.staging
    assert schedule and staging
    axis = _axis(program, schedule)
    totals = jnp.broadcast_to(rows.weights.sum(), (schedule.microbatches,))
    loss, gradients = run_schedule(
        schedule,
        partial(_stage, program),
        jax.tree.map(partial(_by_stage, stages=len(staging.layers)), params.layers),
        (rows, totals),
        partial(_last, program),
        axis=axis,
        first_fn=partial(_first, program),
        ends=params.frame,
        fixed=_is_real(staging, axis),
        typed=partial(_typed, program),
        sums=JAX_DTYPES[program.gradients],
    )
    return loss, Tree(gradients.ends, jax.tree.map(_joined, gradients.stages))


def _first(program: Program, frame: Frame, part: tuple[Microbatches, jax.Array]) -> jax.Array:
    return embed(program, Tree(frame, ()), part[0].tokens)


def _stage(
    program: Program, layers: Layers, x: jax.Array, is_real: IsReal | None = None
) -> jax.Array:
    for run, weights in enumerate(layers):
        x = forward_run(program, run, weights, x, None if is_real is None else is_real[run])
    return x


def _last(
    program: Program, frame: Frame, x: jax.Array, part: tuple[Microbatches, jax.Array]
) -> jax.Array:
    """A microbatch's share of the mean over all tokens, times the number of microbatches."""
    (_, targets, weights), total = part
    assert program.schedule
    ends = Tree(frame, ())
    loss = head_loss(program, ends, finish(program, ends, x), targets, weights)
    return loss / total * program.schedule.microbatches


def _typed(program: Program, layers: Layers, frame: Frame) -> tuple[Layers, Frame]:
    """The weights of a stage and of both ends, so that sums over data axes may pend."""
    marked = with_pending_gradients(program, Tree(frame, layers), stacked=())
    return marked.layers, marked.frame


def _by_stage(weight: jax.Array, *, stages: int) -> jax.Array:
    return weight.reshape(stages, weight.shape[0] // stages, *weight.shape[1:])


def _joined(gradient: jax.Array) -> jax.Array:
    """[stage, layer, ...] as weights are stacked, sums pending still."""
    spec = jax.typeof(gradient).sharding.spec
    first, _, *rest = axes_by_dim(spec)
    kept = PartitionSpec(first, *rest, unreduced=spec.unreduced)
    return gradient.reshape(-1, *gradient.shape[2:], out_sharding=kept)


def _is_real(staging: Staging, axis: str) -> IsReal:
    found = (staging.is_real(run) for run in range(len(staging.runs)))
    split = PartitionSpec(axis)
    return tuple(None if a is None else jax.reshard(jnp.asarray(a), split) for a in found)


def _axis(program: Program, schedule: Schedule) -> str:
    """The one axis over which the stages are split."""
    stages, axes = program.constraints.layout.stages, program.constraints.axes
    if len(stages) != 1 or axes[stages[0]] != schedule.stages:
        raise UsageError(
            f"a schedule for {schedule.stages} devices does not fit layout "
            f"{program.constraints.layout.text} on {dict(axes)}",
            hint="give one pipeline axis as many devices as the schedule has",
        )
    return stages[0]
