"""A pipeline in lock step: in a tick all devices run the same ops, whatever their slots.

    F F F          one scan: forwards alone, while the pipeline fills
    FB FB ... FB   one scan: a forward and a backward of another microbatch in each tick
    B B B B        one scan: backwards alone, while it drains

A collective inside a stage is then joined by all devices at once. With one branch for each kind
it is not, and a permute, which the compiler writes as one op for the whole mesh, waits for ever
for the devices in another branch. What it costs: on a device without a slot the work is left
out by a mask, so all of them wait as long as those that have one, which they do in any case for
the slowest stage (`layout.in_step` has the count); and every stage runs the head as the last does.

Stages are a dim of plain arrays, split over P, so axes other than P keep all their types: a sum
over data axes may stay pending, dW[S_P,...]{U_X}, from the first tick to the last.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.program.pipeline.buffer import Tree, put, take
from rooflight.program.pipeline.sums import add_terms, adds_of, entries_of, zero_sums
from rooflight.program.pipeline.table import PLACES, Lane, Ticks
from rooflight.program.pipeline.work import Fns, Inputs, Now, Row, Sums, run_backward, run_forward

Rows = dict[str, Row]  # by lane
Buffers = dict[str, Tree]  # by the lane that fills them: inputs of stages, and gradients
Carry = tuple[Buffers, Sums]


def run_in_step(parts: Fns, ticks: Ticks, held: Inputs, axis: str) -> Sums:
    """All ticks; `held` is of all devices: params and fixed [S_P,chunk,...], the rest whole."""
    rows = {name: _placed(lane, axis) for name, lane in ticks.lanes.items()}
    rows["backward"] |= _placed({"adds": adds_of(ticks)}, axis)
    buffers = {lane: _buffer(parts, held, n, axis) for lane, n in ticks.entries.items()}
    tick = partial(_tick, parts, held, axis)

    def terms(buffers: Buffers, row: Row) -> Sums:
        return run_backward(parts, held.ends, axis, row, _read(row, buffers, held, axis=axis))[1]

    found = jax.eval_shape(terms, buffers, take(rows["backward"], 0))
    carry = buffers, zero_sums(parts, found, ticks.chunks)
    for phase in ticks.phases:
        at = slice(phase.start, phase.stop)
        cut = {lane: {name: a[at] for name, a in rows[lane].items()} for lane in phase.lanes}
        carry, _ = lax.scan(tick, carry, cut)
    return carry[1]


def _tick(parts: Fns, held: Inputs, axis: str, carry: Carry, rows: Rows) -> tuple[Carry, None]:
    """Both lanes read what came in earlier ticks, then run, then hand on."""
    buffers, sums = carry
    results: dict[str, Tree] = {}
    for lane, row in rows.items():
        now = _read(row, buffers, held, axis=axis)
        if lane == "forward":
            results[lane] = run_forward(parts, held.ends, axis, row, now)
        else:
            results[lane], terms = run_backward(parts, held.ends, axis, row, now)
            sums = add_terms(sums, terms, row["adds"])
    for lane, result in results.items():
        stored = _store(rows[lane], buffers[lane], result, axis=axis)
        buffers = {**buffers, lane: stored}
    return (buffers, sums), None


def _read(row: Row, buffers: Buffers, held: Inputs, *, axis: str) -> Now:
    """Each device looks up what its row of the table says."""

    def local(row: Row, buffers: Buffers, own: Tree, microbatches: Tree) -> Now:
        row, buffers, own = _only((row, buffers, own))
        params, fixed = take(own, row["chunk"])
        found = Now(
            params,
            fixed,
            take(microbatches, row["microbatch"]),
            take(buffers["forward"], row["read_x"]),
            take(buffers["backward"], row["read_g"]),
        )
        return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), found)

    def of_entry(a: jax.Array) -> PartitionSpec:
        return PartitionSpec(axis, *entries_of(a)[2:])

    def of_microbatch(a: jax.Array) -> PartitionSpec:
        return PartitionSpec(axis, *entries_of(a)[1:])

    own, x = (held.params, held.fixed), jax.tree.map(of_entry, buffers["forward"])
    params, fixed = jax.tree.map(of_entry, own)
    found = Now(params, fixed, jax.tree.map(of_microbatch, held.microbatches), x, x)
    return jax.shard_map(local, out_specs=found)(row, buffers, own, held.microbatches)


def _store(row: Row, buffer: Tree, result: Tree, *, axis: str) -> Tree:
    """Each device keeps what its neighbours send, where its row of the table says."""

    def local(row: Row, buffer: Tree, result: Tree) -> Tree:
        row, buffer, result = _only((row, buffer, result))
        for name, move in _moves(axis).items():
            if name in row:
                buffer = put(buffer, row[name], move(result))
        return jax.tree.map(lambda a: lax.expand_dims(a, (0,)), buffer)

    found = jax.tree.map(lambda a: PartitionSpec(*entries_of(a)), buffer)
    return jax.shard_map(local, out_specs=found)(row, buffer, result)


def _moves(axis: str) -> Mapping[str, Callable[[Tree], Tree]]:
    """How a device gets what each column of the table stores."""
    size = lax.axis_size(axis)
    down = [(i, (i + 1) % size) for i in range(size)]
    up = [(i, (i - 1) % size) for i in range(size)]
    before, after, here = PLACES
    return {
        before: lambda tree: lax.ppermute(tree, axis, down),
        after: lambda tree: lax.ppermute(tree, axis, up),
        here: lambda tree: tree,
    }


def _buffer(parts: Fns, held: Inputs, entries: int, axis: str) -> Tree:
    """Zeros for what arrives: [S_P,entry,...] of what a stage takes."""
    x = jax.eval_shape(parts.first_fn, held.ends, take(held.microbatches, 0))
    devices = jax.sharding.get_abstract_mesh().shape[axis]

    def zeros(like: jax.ShapeDtypeStruct) -> jax.Array:
        spec = PartitionSpec(axis, None, *entries_of(like))
        return jnp.zeros((devices, entries, *like.shape), like.dtype, out_sharding=spec)

    return jax.tree.map(zeros, x)


def _placed(lane: Lane, axis: str) -> Row:
    """Tables [tick, device, ...], every device its own column."""
    spec = PartitionSpec(None, axis)
    return {name: jax.reshard(jnp.asarray(a), spec) for name, a in lane.items()}


def _only(tree: Tree) -> Tree:
    """The one row that a device has."""
    return jax.tree.map(lambda a: lax.squeeze(a, (0,)), tree)
