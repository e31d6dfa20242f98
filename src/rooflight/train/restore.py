# pyright: reportMissingTypeStubs=false
# orbax and jax annotate their own functions only in part.
"""A checkpoint read to another mesh, layout or number of hosts, shard by shard.

In: a checkpoint's folder and what stands for the state there should be. Out: the state. A pipeline
stacks layers by its stages, with padding between; where that differs from the checkpoint, the rows
of each stack are picked anew, one array at a time, so that little more is held than is kept.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from rooflight.errors import ParseError, UsageError
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.codec import decode
from rooflight.plan.file.record import plan_hash
from rooflight.plan.training.time.stages import schedule_table
from rooflight.program.model.forward import Program
from rooflight.program.pipeline.layers import PADDING, Staging, staging_of, whole
from rooflight.program.train import TrainState
from rooflight.train.run import IDENTITY, Run, identity

STATE, ABOUT = "state", "about"
STACKED = re.compile(r"(.*)layers/(\d+)/(\d+)/(.*)")
Read = Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, jax.Array]]
_GROUPS, _LEAST_GROUP = 10, 64 << 20  # reads of a state, and bytes that are not worth one


@dataclass(frozen=True, slots=True)
class About:
    """What a checkpoint says of itself."""

    step: int
    model: str
    layout: str
    mesh: str
    slice: str
    processes: int
    plan: str  # hash
    run: str  # identity
    schedule: str | None
    stages: int
    microbatches: int
    virtual: int


def about(run: Run, step: int) -> About:
    plan = run.plan
    return About(
        step,
        plan.model.name,
        plan.layout,
        plan.mesh,
        plan.slice,
        jax.process_count(),
        plan_hash(plan),
        identity(run),
        plan.schedule,
        plan.stages,
        plan.microbatches,
        plan.virtual,
    )


def read_about(folder: Path) -> About:
    path = folder / ABOUT / "metadata"
    try:
        return decode(About, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ParseError(f"{path}: {error}", hint="give one step of a run's checkpoints") from None


def check_same_run(run: Run, folder: Path) -> None:
    """Refuses the state of another run: another model, other data, another optimizer."""
    if read_about(folder).run != identity(run):
        raise UsageError(
            f"{folder} is of another run: its {IDENTITY} differ",
            hint="give another folder with --out, or the run as it was",
        )


def named(state: Any) -> dict[str, Any]:
    """Leaves by plain names, so that a reader needs none of our classes."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_name(path): leaf for path, leaf in flat}


def _name(path: tuple[Any, ...]) -> str:
    parts = [str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k)))) for k in path]
    return "/".join(parts).replace(".", "-")


def read_state(folder: Path, like: TrainState, program: Program) -> TrainState:
    """The state of a checkpoint, laid out as `like` says. Call it under the mesh."""
    there = saved_staging(program.model, read_about(folder))
    here = program.staging or whole(program.model)
    read, names = partial(_read, folder / STATE), named(like)
    if there == here:
        found = {name: leaf for group in _groups(names) for name, leaf in read(group).items()}
    else:
        found = {n: _restacked(n, leaf, there, here, read) for n, leaf in names.items()}
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in names])


def _groups(like: Mapping[str, jax.ShapeDtypeStruct]) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Arrays to be read together: what is read is held twice until it is on its device."""
    sizes = {name: _local_bytes(leaf) for name, leaf in like.items()}
    most = max(_LEAST_GROUP, sum(sizes.values()) // _GROUPS)
    found: list[dict[str, jax.ShapeDtypeStruct]] = [{}]
    held = 0
    for name, leaf in like.items():
        if found[-1] and held + sizes[name] > most:
            found.append({})
            held = 0
        found[-1][name] = leaf
        held += sizes[name]
    return found


def _local_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    assert leaf.sharding is not None
    shard = math.prod(leaf.sharding.shard_shape(leaf.shape))
    return shard * leaf.dtype.itemsize * len(leaf.sharding.addressable_devices)


def _read(folder: Path, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    handler = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    item = dict(like)
    arguments = ocp.checkpoint_utils.construct_restore_args(item)
    try:
        return handler.restore(
            folder,
            args=ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=True),
        )
    except ValueError as error:
        raise UsageError(
            f"{folder.parent} does not hold this state: {str(error).splitlines()[0]}",
            hint="`rooflight ckpt show` prints what it holds",
        ) from None
    finally:
        handler.close()


def saved_staging(model: ModelSpec, told: About) -> Staging:
    """How a checkpoint stacks its layers."""
    if told.schedule is None:
        return whole(model)
    schedule = schedule_table(
        told.schedule, stages=told.stages, microbatches=told.microbatches, virtual=told.virtual
    )
    return staging_of(model, schedule)


def _restacked(
    name: str, like: jax.ShapeDtypeStruct, there: Staging, here: Staging, read: Read
) -> jax.Array:
    """One array of the state, its rows picked from the stacks of the checkpoint."""
    match = STACKED.fullmatch(name)
    if match is None:
        return read({name: like})[name]
    before, run, block, after = match[1], int(match[2]), int(match[3]), match[4]
    assert isinstance(like.sharding, NamedSharding)
    rest = PartitionSpec(None, *like.sharding.spec[1:])
    flat = NamedSharding(like.sharding.mesh, rest)
    stacks = {(p.run, p.block): there.stored[p.run].times for _, p in there.places()}
    rows, sources = _rows(there, here, run, block)

    def stack(source: tuple[int, int]) -> jax.Array:
        old = f"{before}layers/{source[0]}/{source[1]}/{after}"
        shape = (stacks[source], *like.shape[1:])
        return read({old: jax.ShapeDtypeStruct(shape, like.dtype, sharding=flat)})[old]

    picked = partial(_picked, rows=rows, flat=rest, spec=like.sharding.spec)
    return jax.jit(picked, donate_argnums=0)([stack(source) for source in sources])


def _rows(
    there: Staging, here: Staging, run: int, block: int
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """For each row of a new stack its place among the joined old stacks, and which those are.

    The row after all of them is zeros: padding.
    """
    home = dict(there.places())
    layers = [layer for layer, at in here.places() if (at.run, at.block) == (run, block)]
    found = [None if layer == PADDING else home[layer] for layer in layers]
    sources = sorted({(p.run, p.block) for p in found if p is not None})
    starts = dict(zip(sources, _starts(there, sources), strict=True))
    end = sum(there.stored[r].times for r, _ in sources)
    return tuple(end if p is None else starts[p.run, p.block] + p.row for p in found), sources


def _starts(staging: Staging, sources: Sequence[tuple[int, int]]) -> list[int]:
    lengths = [staging.stored[run].times for run, _ in sources]
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _picked(
    stacks: list[jax.Array], *, rows: tuple[int, ...], flat: PartitionSpec, spec: PartitionSpec
) -> jax.Array:
    joined = jnp.concatenate([*stacks, jnp.zeros_like(stacks[0][:1])])
    return jax.reshard(joined.at[np.array(rows)].get(out_sharding=flat), spec)
