"""Matmuls, of a vector too, and every collective, on all devices of this host at once.

Runs in a child (`child.measure`). Each is done once and then several times in a row within one
program, and the difference is taken: starting a program is not part of an operation.

Seconds of a jitted function on this machine. A machine that does other things only ever adds to a
time, so the fastest of several rounds is the function's own; what is compared is run in turn, so
that a slow minute meets all alike.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any  # jitted functions of any signature

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_REPEATS = 5
_LEAST = 0.02  # of a program of several: a shorter operation was mismeasured
_AXIS, _BETWEEN = "X", "P"  # devices of a process; processes
# Rows and width of x[m,n] * W[n,n]; a vector only reads W, so it shows the rate of memory.
_MATMULS = (
    *((1, 1024), (1, 2048), (8, 2048), (64, 256)),
    *((128, 128), (256, 256), (512, 512), (1024, 512)),
)
_COLLECTIVES = (2**12, 2**16, 2**18, 2**20, 2**22)  # V
Local = Callable[[jax.Array], jax.Array]
Row = dict[str, float | str]


def host(*, rounds: int) -> dict[str, list[Row]]:
    """What `host_chip` makes a chip of: rows of size and seconds."""
    mesh = jax.make_mesh((jax.device_count(),), (_AXIS,))
    kinds = _KINDS if mesh.size > 1 else ()  # one device has nobody to talk to
    return {
        "matmuls": [_matmul(mesh, m, n, rounds) for m, n in _MATMULS],
        "collectives": [
            _collective(mesh, kind, nbytes, rounds) for kind in kinds for nbytes in _COLLECTIVES
        ],
    }


def between(*, rounds: int) -> dict[str, list[Row]]:
    """The same on several processes, joined by `jax.distributed`; and collectives between them.

    Those between processes are of one device of each, all devices at once.
    """
    count = jax.process_count()
    mesh = jax.make_mesh((count, jax.local_device_count()), (_BETWEEN, _AXIS))

    def rows(axis: str) -> list[Row]:
        return [_collective(mesh, k, v, rounds, axis) for k in _KINDS for v in _COLLECTIVES]

    matmuls = [_matmul(mesh, m, n, rounds) for m, n in _MATMULS]
    within = rows(_AXIS) if mesh.shape[_AXIS] > 1 else []
    return {"matmuls": matmuls, "collectives": within, "between": rows(_BETWEEN)}


def collective(*, kind: str, nbytes: int, rounds: int) -> float:
    """Seconds of one collective of V = `nbytes` over all devices."""
    mesh = jax.make_mesh((jax.device_count(),), (_AXIS,))
    return float(_collective(mesh, kind, nbytes, rounds)["seconds"])


def _matmul(mesh: Mesh, m: int, n: int, rounds: int) -> Row:
    x = jnp.ones((m, n), jnp.float32)
    seconds = _in_a_row(mesh, lambda weights: x @ weights, (n, n), rounds)
    return {"m": m, "k": n, "n": n, "seconds": seconds}


def _collective(mesh: Mesh, kind: str, nbytes: int, rounds: int, axis: str = _AXIS) -> Row:
    local, part = _KINDS[kind](axis, mesh.shape[axis])
    seconds = _in_a_row(mesh, local, (nbytes // 4 // part,), rounds)
    return {"kind": kind, "nbytes": nbytes, "seconds": seconds}


def _gather(axis: str, ways: int) -> tuple[Local, int]:
    return lambda x: lax.all_gather(x, axis, tiled=True), ways


def _scatter(axis: str, ways: int) -> tuple[Local, int]:
    del ways
    return lambda x: lax.psum_scatter(x, axis, tiled=True), 1


def _reduce(axis: str, ways: int) -> tuple[Local, int]:
    del ways
    return lambda x: lax.pcast(lax.psum(x, axis), axis, to="varying"), 1


def _exchange(axis: str, ways: int) -> tuple[Local, int]:
    return lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True), ways


def _shift(axis: str, ways: int) -> tuple[Local, int]:
    ring = [(i, (i + 1) % ways) for i in range(ways)]
    return lambda x: lax.ppermute(x, axis, ring), 1


# For each collective its local function, and into how many parts V is cut beforehand.
_KINDS: dict[str, Callable[[str, int], tuple[Local, int]]] = {
    "all_gather": _gather,
    "reduce_scatter": _scatter,
    "all_reduce": _reduce,
    "all_to_all": _exchange,
    "permute": _shift,
}


def _in_a_row(mesh: Mesh, local: Local, shape: tuple[int, ...], rounds: int) -> float:
    """Seconds of one operation: those of several in a program less those of one.

    Where other work hit the program of one, the start of a program stays in.
    """
    one, several = (_program(mesh, local, shape, count) for count in (1, 1 + _REPEATS))
    seconds = fastest({"one": one, "several": several}, rounds=rounds)
    each, most = (seconds["several"] - seconds["one"]) / _REPEATS, seconds["several"] / _REPEATS
    return each if each > _LEAST * most else most


def _program(mesh: Mesh, local: Local, shape: tuple[int, ...], count: int) -> Call:
    """Several operations, each on its own array, for one done twice would be done once."""

    def every(*blocks: jax.Array) -> jax.Array:
        ends: list[jax.Array] = []
        for block in blocks:
            block = lax.optimization_barrier((block[0], *ends[-1:]))[0]
            ends.append(lax.optimization_barrier(local(block)).ravel()[:1])
        return jnp.stack(ends)[None]

    spec = PartitionSpec(mesh.axis_names)
    whole, placed = (mesh.size, *shape), NamedSharding(mesh, spec)
    block = np.ones((1, *shape), np.float32)
    arrays = [jax.make_array_from_callback(whole, placed, lambda _: block) for _ in range(count)]
    mapped = jax.shard_map(every, mesh=mesh, in_specs=(spec,) * count, out_specs=spec)
    return jax.jit(mapped), tuple(arrays)


def fastest(calls: Mapping[str, Call], *, rounds: int) -> dict[str, float]:
    """The fewest seconds of each call over `rounds`, all in turn, after one that compiles."""
    seconds = {name: float("inf") for name in calls}
    for turn in range(rounds + 1):
        for name, (function, arguments) in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            if turn:
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds
