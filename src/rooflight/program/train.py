"""The train step of a program: loss, gradients, optimizer, in one donated jit.

In: a `Program`, an optax optimizer, a number of microbatches. Out: `step(state, batch)`. Gradients
of microbatches add up in place, sums over data axes pending, and are reduced once. The optimizer
works in fp32 on its own part of every weight; with zero 1 that part is split over the data axes,
so gradients are scattered to it, and the new weights are gathered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from rooflight.algebra.reshard import reshard
from rooflight.errors import UsageError
from rooflight.program.model.forward import Program, with_pending_gradients
from rooflight.program.model.loss import cross_entropy
from rooflight.program.model.params import (
    JAX_DTYPES,
    TensorSpec,
    Tree,
    abstract_params,
    init_params,
    map_specs,
)
from rooflight.program.pipeline.train import Microbatches, pipelined
from rooflight.program.varying import axes_by_dim


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences and what should follow each token; a weight of zero leaves a token out."""

    tokens: jax.Array  # [B,T]
    targets: jax.Array  # [B,T]
    weights: jax.Array  # [B,T]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """What a step takes and gives back."""

    step: jax.Array
    params: Tree
    master: Tree | None  # the copy that the optimizer updates, if the program keeps one
    optimizer: Any  # optax's own tree


Step = Any  # `jax.jit` of (State, Batch) -> (State, loss): called, lowered or traced


class LossAndNorm(NamedTuple):
    """The loss of a step and the norm of all its gradients together, before they are clipped."""

    loss: jax.Array
    norm: jax.Array


def make_train_step(
    program: Program, optimizer: optax.GradientTransformation, *, microbatches: int = 1
) -> Step:
    """The jitted step; the state it is given is used up.

    A program with a `schedule` runs as many microbatches as that says.

    Call it under `jax.set_mesh`, or lower it from `abstract_state` and `abstract_batch`.
    """
    step = partial(_step, program, optimizer, microbatches)
    return jax.jit(step, donate_argnums=0)


def _step(
    program: Program,
    optimizer: optax.GradientTransformation,
    microbatches: int,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, jax.Array]:
    loss, gradients = _gradients(program, microbatches, state.params, batch)
    return _updated(program, optimizer, state, gradients), loss


def make_measured_step(
    program: Program, optimizer: optax.GradientTransformation, *, microbatches: int = 1
) -> Step:
    """The same step, which gives back a `LossAndNorm`.

    An optimizer that clips by the norm has it already; another one pays for its sums.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, LossAndNorm]:
        loss, gradients = _gradients(program, microbatches, state.params, batch)
        with jax.named_scope("optimizer"):
            norm = optax.global_norm(jax.tree.map(_widened, gradients))
        return _updated(program, optimizer, state, gradients), LossAndNorm(loss, norm)

    return jax.jit(step, donate_argnums=0)


def make_loss(program: Program, *, microbatches: int = 1) -> Any:
    """The jitted mean loss of a token, (weights, batch) -> loss; the weights stay.

    A program with a `schedule` runs all its slots, those of the gradients too.
    """
    return jax.jit(partial(_loss, program, microbatches))


def _loss(program: Program, microbatches: int, params: Tree, batch: Batch) -> jax.Array:
    if program.schedule is not None:
        return _gradients(program, microbatches, params, batch)[0]
    _check_no_stages(program)

    def one(part: Batch) -> jax.Array:
        return cross_entropy(program, params, part.tokens, part.targets, part.weights)

    parts = jax.tree.map(partial(_cut, ways=microbatches), batch)
    return lax.map(one, parts).sum() / batch.weights.sum()


def _gradients(
    program: Program, microbatches: int, params: Tree, batch: Batch
) -> tuple[jax.Array, Tree]:
    """The loss, and the gradients where the optimizer has its part of the weights."""
    if program.schedule is None:
        _check_no_stages(program)
        loss, gradients = loss_and_gradients(program, params, batch, microbatches=microbatches)
    else:
        ways = program.schedule.microbatches
        rows = Microbatches(*(_cut(x, ways) for x in (batch.tokens, batch.targets, batch.weights)))
        loss, gradients = pipelined(program, params, rows)
    with jax.named_scope("gradients"):
        return loss, _mapped(_to_optimizer, program, gradients)


def _updated(
    program: Program, optimizer: optax.GradientTransformation, state: TrainState, gradients: Tree
) -> TrainState:
    with jax.named_scope("optimizer"):
        held = (
            _mapped(_to_optimizer, program, state.params) if state.master is None else state.master
        )
        wide = jax.tree.map(_widened, held)
        updates, inner = optimizer.update(jax.tree.map(_widened, gradients), state.optimizer, wide)
        held = cast(Tree, optax.apply_updates(held, updates))
    with jax.named_scope("weights"):
        narrow = jax.tree.map(_as_stored, held, state.params)
        params = _mapped(_to_weights, program, narrow)
        master = None if state.master is None else held
    return TrainState(state.step + 1, params, master, inner)


def _mapped(
    move: Callable[[Program, TensorSpec, jax.Array], jax.Array], program: Program, values: Tree
) -> Tree:
    def moved(spec: TensorSpec, value: jax.Array) -> jax.Array:
        return move(program, spec, value)

    return jax.tree.map(moved, map_specs(_itself, program.specs), values)


def _itself(spec: TensorSpec) -> TensorSpec:
    return spec


def _to_optimizer(program: Program, spec: TensorSpec, value: jax.Array) -> jax.Array:
    """A gradient, its sum pending or not, or a weight to where the optimizer has its part."""
    constraints, pending = program.constraints, jax.typeof(value).sharding.spec.unreduced
    source = constraints.layout.of_weight(spec.tensor).with_unreduced(tuple(sorted(pending)))
    return spec.moved(
        value, reshard(source, spec.state(constraints, program.zero), constraints.axes), constraints
    )


def _to_weights(program: Program, spec: TensorSpec, value: jax.Array) -> jax.Array:
    constraints, home = program.constraints, program.constraints.layout.of_weight(spec.tensor)
    return spec.moved(
        value, reshard(spec.state(constraints, program.zero), home, constraints.axes), constraints
    )


def loss_and_gradients(
    program: Program, params: Tree, batch: Batch, *, microbatches: int = 1
) -> tuple[jax.Array, Tree]:
    """The mean loss of a token, and its gradients where the weights are, sums pending."""
    typed = with_pending_gradients(program, params)
    total = batch.weights.sum()
    dtype = JAX_DTYPES[program.gradients]

    def summed(gradient: jax.Array) -> jax.Array:
        return gradient.astype(dtype)

    def one(part: Batch) -> tuple[jax.Array, Tree]:
        def mean(typed: Tree) -> jax.Array:
            rows = (part.tokens, part.targets, part.weights)
            return cross_entropy(program, typed, *rows) / total

        loss, gradients = jax.value_and_grad(mean)(typed)
        return loss, jax.tree.map(summed, gradients) if microbatches > 1 else gradients

    if microbatches == 1:
        return one(batch)
    return _added(one, jax.tree.map(partial(_cut, ways=microbatches), batch))


def _check_no_stages(program: Program) -> None:
    if program.constraints.layout.stages:
        raise UsageError(
            f"layout {program.constraints.layout.text} has pipeline stages but no schedule",
            hint='Program(..., schedule=make_schedule("1f1b", stages=4, microbatches=8))',
        )


def _as_stored(new: jax.Array, old: jax.Array) -> jax.Array:
    return new.astype(old.dtype)


def _first(rows: jax.Array) -> jax.Array:
    return rows[0]


def _widened(gradient: jax.Array) -> jax.Array:
    return gradient.astype(jnp.float32)


def _cut(rows: jax.Array, ways: int) -> jax.Array:
    """[B,T] -> [M,B/M,T]: each device cuts its own rows, so none moves."""
    if rows.shape[0] % ways:
        raise UsageError(
            f"a batch of {rows.shape[0]} sequences does not cut into {ways} microbatches",
            hint="give a number of microbatches that divides the batch",
        )
    return jnp.moveaxis(rows.reshape(rows.shape[0] // ways, ways, *rows.shape[1:]), 1, 0)


def _added(one: Callable[[Batch], tuple[jax.Array, Tree]], parts: Batch) -> tuple[jax.Array, Tree]:
    """Loss and gradients of every microbatch, added up one after the other."""
    first = jax.eval_shape(one, jax.tree.map(_first, parts))
    zeros = jax.tree.map(_zeros, first)

    def add(sums: tuple[jax.Array, Tree], part: Batch) -> tuple[tuple[jax.Array, Tree], None]:
        return jax.tree.map(jnp.add, sums, one(part)), None

    return lax.scan(add, zeros, parts)[0]


def _zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros of the same type, sums pending and all."""
    assert isinstance(like.sharding, NamedSharding)
    plain = PartitionSpec(*axes_by_dim(like.sharding.spec))
    zeros = jnp.zeros(like.shape, like.dtype, out_sharding=plain)
    return jax.reshard(zeros, like.sharding.spec)


def init_state(
    program: Program, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    """The state before the first step, made on the mesh that is set."""
    return begin_state(program, optimizer, init_params(program.specs, program.constraints, key))


def begin_state(
    program: Program, optimizer: optax.GradientTransformation, params: Tree
) -> TrainState:
    """The state before the first step from given weights, which are used up."""
    return jax.jit(partial(_begin, program, optimizer), donate_argnums=0)(params)


def _begin(program: Program, optimizer: optax.GradientTransformation, params: Tree) -> TrainState:
    held = _mapped(_to_optimizer, program, params)
    inner = optimizer.init(jax.tree.map(_widened, held))
    if program.master is None:
        return TrainState(jnp.zeros((), jnp.int32), params, None, inner)
    copied = partial(_copied, dtype=JAX_DTYPES[program.master])
    return TrainState(jnp.zeros((), jnp.int32), params, jax.tree.map(copied, held), inner)


def _copied(weight: jax.Array, *, dtype: DTypeLike) -> jax.Array:
    return weight.astype(dtype)


def abstract_state(
    program: Program, optimizer: optax.GradientTransformation, mesh: Mesh | AbstractMesh
) -> TrainState:
    """Shapes, dtypes and shardings of a state: to lower a step, or to restore a checkpoint to.

    Call it under the mesh, `jax.set_mesh` or `jax.sharding.use_abstract_mesh`.
    """
    params = abstract_params(program.specs, program.constraints, mesh)
    return jax.eval_shape(partial(_begin, program, optimizer), params)


def abstract_batch(program: Program, mesh: Mesh | AbstractMesh, *, batch: int, seq: int) -> Batch:
    """What stands for a batch: sequences split as the layout splits them."""
    sharding = NamedSharding(mesh, batch_spec(program))
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32, sharding=sharding)
    weights = jax.ShapeDtypeStruct((batch, seq), jnp.float32, sharding=sharding)
    return Batch(*cast(tuple[jax.Array, jax.Array, jax.Array], (ids, ids, weights)))


def batch_spec(program: Program) -> PartitionSpec:
    """Rows of a batch go to the devices that read them; all of a row to each."""
    return PartitionSpec(program.constraints.layout.stream.get("B", ()) or None, None)
