# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""The train step of a program: loss, gradients, optimizer, in one donated jit.

In: a `Program`, an optax optimizer, a number of microbatches. Out: `step(state, batch)`. Gradients
of microbatches add up in place, sums over data axes pending, and are reduced once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rooflight.errors import UsageError
from rooflight.graph import Schedule
from rooflight.program.loss import cross_entropy
from rooflight.program.model import Program, with_pending_gradients
from rooflight.program.params import Tree, abstract_params, init_params, map_specs
from rooflight.program.train_pipeline import pipelined


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences and what should follow each token; a weight of zero leaves a token out."""

    tokens: jax.Array  # [B,T]
    targets: jax.Array  # [B,T]
    weights: jax.Array  # [B,T]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class State:
    """What a step takes and gives back."""

    step: jax.Array
    params: Tree
    master: Tree | None  # the weights in fp32 where they are stored in less
    optimizer: Any  # optax's own tree


Step = Any  # `jax.jit` of (State, Batch) -> (State, loss): called, lowered or traced
_KEEPS_MASTER = ("bf16", "f16")


def make_train_step(
    program: Program,
    optimizer: optax.GradientTransformation,
    *,
    microbatches: int = 1,
    schedule: Schedule | None = None,
) -> Step:
    """The jitted step; the state it is given is used up.

    A layout with pipeline stages needs a `schedule`, which says how many microbatches there are.

    Call it under `jax.set_mesh`, or lower it from `abstract_state` and `abstract_batch`.
    """
    step = partial(_step, program, optimizer, microbatches, schedule)
    return jax.jit(step, donate_argnums=0)


def _step(
    program: Program,
    optimizer: optax.GradientTransformation,
    microbatches: int,
    schedule: Schedule | None,
    state: State,
    batch: Batch,
) -> tuple[State, jax.Array]:
    if schedule is None:
        _check_no_stages(program)
        found = loss_and_gradients(program, state.params, batch, microbatches=microbatches)
    else:
        parts = jax.tree.map(partial(_cut, ways=schedule.microbatches), batch)
        found = pipelined(program, state.params, tuple(jax.tree.leaves(parts)), schedule)
    loss, gradients = found
    with jax.named_scope("optimizer"):
        held = state.params if state.master is None else state.master
        updates, inner = optimizer.update(gradients, state.optimizer, held)
        held = cast(Tree, optax.apply_updates(held, updates))
        params = jax.tree.map(_as_stored, held, state.params)
        master = None if state.master is None else held
    return State(state.step + 1, params, master, inner), loss


def loss_and_gradients(
    program: Program, params: Tree, batch: Batch, *, microbatches: int = 1
) -> tuple[jax.Array, Tree]:
    """The mean loss of a token, and its gradients where the weights are; fp32 where added up."""
    typed = with_pending_gradients(program, params)
    total = batch.weights.sum()
    wide = microbatches > 1 and program.weights in _KEEPS_MASTER

    def one(part: Batch) -> tuple[jax.Array, Tree]:
        def mean(typed: Tree) -> jax.Array:
            rows = (part.tokens, part.targets, part.weights)
            return cross_entropy(program, typed, *rows) / total

        loss, gradients = jax.value_and_grad(mean)(typed)
        return loss, jax.tree.map(_widened, gradients) if wide else gradients

    parts = jax.tree.map(partial(_cut, ways=microbatches), batch)
    loss, gradients = _added(one, parts) if microbatches > 1 else one(batch)
    stored = map_specs(lambda s: s.spec(program.pins), program.specs)
    with jax.named_scope("gradients"):
        return loss, jax.tree.map(jax.reshard, gradients, stored)


def _check_no_stages(program: Program) -> None:
    if program.pins.layout.stages:
        raise UsageError(
            f"layout {program.pins.layout.text} has pipeline stages and no schedule to run them",
            hint='pass schedule=make_schedule("1f1b", stages=4, microbatches=8)',
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
    plain = PartitionSpec(*like.sharding.spec.partitions)
    zeros = jnp.zeros(like.shape, like.dtype, out_sharding=plain)
    return jax.reshard(zeros, like.sharding.spec)


def init_state(program: Program, optimizer: optax.GradientTransformation, key: jax.Array) -> State:
    """The state before the first step, made on the mesh that is set."""
    return begin_state(program, optimizer, init_params(program.specs, program.pins, key))


def begin_state(program: Program, optimizer: optax.GradientTransformation, params: Tree) -> State:
    """The state before the first step from given weights, which are used up."""
    return jax.jit(partial(_begin, program, optimizer), donate_argnums=0)(params)


def _begin(program: Program, optimizer: optax.GradientTransformation, params: Tree) -> State:
    master = jax.tree.map(_widened, params) if program.weights in _KEEPS_MASTER else None
    inner = optimizer.init(params if master is None else master)
    return State(jnp.zeros((), jnp.int32), params, master, inner)


def abstract_state(
    program: Program, optimizer: optax.GradientTransformation, mesh: Mesh | AbstractMesh
) -> State:
    """Shapes, dtypes and shardings of a state: to lower a step, or to restore a checkpoint to.

    Call it under the mesh, `jax.set_mesh` or `jax.sharding.use_abstract_mesh`.
    """
    params = abstract_params(program.specs, program.pins, mesh)
    return jax.eval_shape(partial(_begin, program, optimizer), params)


def abstract_batch(program: Program, mesh: Mesh | AbstractMesh, *, batch: int, seq: int) -> Batch:
    """What stands for a batch: sequences split as the layout splits them."""
    sharding = NamedSharding(mesh, batch_spec(program))
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32, sharding=sharding)
    weights = jax.ShapeDtypeStruct((batch, seq), jnp.float32, sharding=sharding)
    return Batch(*cast(tuple[jax.Array, jax.Array, jax.Array], (ids, ids, weights)))


def batch_spec(program: Program) -> PartitionSpec:
    """Rows of a batch go to the devices that read them; all of a row to each."""
    return PartitionSpec(program.pins.layout.stream.get("B", ()) or None, None)
