# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""A pipeline in which every device runs the same ops in a tick, whatever its slot.

    x', loss, pull = vjp of the stage at the saved x      a map over dim 0 of arrays A[S_P,...]
    F sends x'; B sends pull(g')[x]; W adds pull(g')[W]; the rest is left out by masks

A collective inside a stage is then joined by all devices at once. With one branch for each kind
it is not, and a permute, which the compiler writes as one op for the whole mesh, waits for ever
for the devices in another branch. The price: a tick whose slot is F, or nothing, lasts as long as
one with both gradients and the loss: 6 for the 4 units of a microbatch (F 1; again 1, B and W 2).

Stages are a dim of plain arrays, split over P, so axes other than P keep all their types: a sum
over data axes may stay pending, dW[S_P,...]{U_X}, from the first tick to the last.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.pipeline_buffer import Tree, put, take
from rooflight.program.pipeline_sums import Flags, add_terms, entries_of, flags_of, zero_sums
from rooflight.program.pipeline_table import Ticks, Work
from rooflight.program.pipeline_work import Held, Moves, Parts, Row, Sums, check_types, stage_of


class Now(NamedTuple):
    """What the slots of a tick read, a row for each device."""

    params: Tree
    fixed: Tree
    microbatch: Tree
    x: Tree
    g: Tree


def run_in_step(parts: Parts, ticks: Ticks, held: Held, axis: str, moves: Moves) -> Sums:
    """All ticks; `held` is of all devices: params and fixed [S_P,chunk,...], the rest whole."""
    rows, flags = _placed(ticks.columns(), axis), _placed(flags_of(ticks), axis)
    buffer = _buffer(parts, held, ticks.entries, axis)
    run, read = work(parts, held, axis), partial(_read, axis=axis)

    def tick(carry: tuple[Tree, Sums], now: tuple[Row, Flags]) -> tuple[tuple[Tree, Sums], None]:
        (buffer, sums), (row, flags) = carry, now
        result, terms = run(flags, read(row, buffer, held))
        return (_store(row, buffer, result, moves=moves), add_terms(sums, terms, flags)), None

    at = jax.eval_shape(read, take(rows, 0), buffer, held)
    _, terms = jax.eval_shape(run, take(flags, 0), at)
    start = buffer, zero_sums(parts, terms, flags["adds"].shape[2])
    (_, sums), _ = lax.scan(tick, start, (rows, flags))
    return sums


def _read(row: Row, buffer: Tree, held: Held, *, axis: str) -> Now:
    """Each device looks up what its row of the table says."""

    def local(row: Row, buffer: Tree, own: Tree, microbatches: Tree) -> Now:
        row, buffer, own = _only((row, buffer, own))
        params, fixed = take(own, row["chunk"])
        found = Now(
            params,
            fixed,
            take(microbatches, row["microbatch"]),
            take(buffer, row["read_x"]),
            take(buffer, row["read_g"]),
        )
        return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), found)

    def of_entry(a: jax.Array) -> PartitionSpec:
        return PartitionSpec(axis, *entries_of(a)[2:])

    def of_microbatch(a: jax.Array) -> PartitionSpec:
        return PartitionSpec(axis, *entries_of(a)[1:])

    own, x = (held.params, held.fixed), jax.tree.map(of_entry, buffer)
    params, fixed = jax.tree.map(of_entry, own)
    found = Now(params, fixed, jax.tree.map(of_microbatch, held.microbatches), x, x)
    return jax.shard_map(local, out_specs=found)(row, buffer, own, held.microbatches)


def _store(row: Row, buffer: Tree, result: Tree, *, moves: Moves) -> Tree:
    """Each device keeps what its neighbours send, where its row of the table says."""

    def local(row: Row, buffer: Tree, result: Tree) -> Tree:
        row, buffer, result = _only((row, buffer, result))
        for name, move in moves.items():
            buffer = put(buffer, row[name], move(result))
        return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), buffer)

    found = jax.tree.map(lambda a: PartitionSpec(*entries_of(a)), buffer)
    return jax.shard_map(local, out_specs=found)(row, buffer, result)


def work(parts: Parts, held: Held, axis: str) -> Callable[[Flags, Now], tuple[Tree, Sums]]:
    """One function for all kinds of work, the kind as data: what to send, and what to add up."""

    def one(flags: Flags, now: Now) -> tuple[Tree, Sums]:
        weights, ends = parts.typed(now.params, held.ends)

        def stage(weights: Tree, ends: Tree, x: Tree) -> tuple[Tree, jax.Array]:
            start = choose(flags["is_first"], parts.first_fn(ends, now.microbatch), x)
            end = stage_of(Work("F"), parts, now.fixed, now.microbatch)(weights, ends, start)
            check_types(start, end)
            return end, parts.loss_fn(ends, end, now.microbatch)

        (end, loss), pull = jax.vjp(stage, weights, ends, now.x)
        is_last = flags["is_last"]
        share = jnp.where(is_last, jnp.full_like(loss, 1 / parts.microbatches), 0)
        zeros = jax.tree.map(jnp.zeros_like, now.g)
        dw, de, dx = pull((choose(is_last, zeros, now.g), share))
        return choose(flags["does_f"], end, dx), Sums(share * loss, dw, de)

    return jax.vmap(one, spmd_axis_name=axis)


def choose(flag: jax.Array, yes: Tree, no: Tree) -> Tree:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def _buffer(parts: Parts, held: Held, entries: int, axis: str) -> Tree:
    """Zeros for what arrives: [S_P,entry,...] of what a stage takes."""
    x = jax.eval_shape(parts.first_fn, held.ends, take(held.microbatches, 0))
    devices = jax.sharding.get_abstract_mesh().shape[axis]

    def zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
        spec = PartitionSpec(axis, None, *entries_of(like))
        return jnp.zeros((devices, entries, *like.shape), like.dtype, out_sharding=spec)

    return jax.tree.map(zeros, x)


def _placed(columns: dict[str, npt.NDArray[Any]], axis: str) -> dict[str, jax.Array]:
    """Tables [tick, device, ...], every device its own column."""
    spec = PartitionSpec(None, axis)
    return {name: jax.reshard(jnp.asarray(a), spec) for name, a in columns.items()}


def _only(tree: Tree) -> Tree:
    """The one row that a device has."""
    return jax.tree.map(lambda a: lax.squeeze(a, (0,)), tree)
