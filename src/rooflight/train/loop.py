# pyright: reportMissingTypeStubs=false
# jax annotates its own functions only in part.
"""The training loop of one process: read, step, tell, save.

In: a `Run`, under `jax.distributed`. Out: events, checkpoints, an `Ending`. The loss of a step is
read while the next one runs, so the devices never wait for the host; a save is written while
later steps run. All processes stop after the same step, at the end or when one is told to.
"""

import contextlib
import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import grain
import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rooflight.compile.aot.devices import placed_mesh
from rooflight.compile.aot.flags import chosen_options
from rooflight.compile.aot.request import CompilerOption
from rooflight.compile.aot.target import make_target
from rooflight.errors import RooflightError
from rooflight.plan.file.record import Plan
from rooflight.program.checkpoint.read import import_huggingface
from rooflight.program.from_plan.train import make_program
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree, abstract_params, init_params
from rooflight.program.shardings import device_mesh
from rooflight.program.train import (
    Batch,
    LossAndNorm,
    TrainState,
    abstract_batch,
    abstract_state,
    batch_spec,
    begin_state,
    make_loss,
    make_measured_step,
)
from rooflight.train.checkpoints import Checkpoints
from rooflight.train.optimizer import make_optimizer
from rooflight.train.run import COMPILED_STEP, Run
from rooflight.train.tokens import Records, split_records

Tell = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process of a run ended: all steps done, or told to stop with the state saved."""

    kind: Literal["finished", "preempted"]
    step: int  # steps done


class _PendingStep(NamedTuple):
    """A step that was dispatched; its loss is not there yet."""

    step: int
    found: LossAndNorm
    checksum: int
    data_s: float  # that it waited for its rows


def train(run: Run, tell: Tell) -> Ending:
    """Goes on from the newest whole checkpoint, or begins."""
    program = replace(make_program(run.plan), capacity=run.capacity)
    mesh = _mesh(run.plan, program)
    optimizer = make_optimizer(run, program)
    with jax.set_mesh(mesh):
        checkpoints = Checkpoints(run, tell=tell)
        step = compiled_step(run, program, optimizer, mesh, tell)
        rows = NamedSharding(mesh, batch_spec(program))
        validation = HeldOutLoss(run, program, rows, tell) if run.validate_every else None
        state, start = _begin(run, program, optimizer, mesh, checkpoints, tell)
        _, ending = run_steps(run, rows, step, state, start, checkpoints, tell, validation)
        checkpoints.close()
    return ending


def _mesh(plan: Plan, program: Program) -> Mesh:
    """As the plan places it on TPUs; fake devices of a host are all alike."""
    devices = jax.devices()
    if len(devices) != plan.placed().slice.num_chips:
        raise RooflightError(
            f"the plan is for {plan.placed().slice.num_chips} chips, and there are {len(devices)}"
        )
    if devices[0].platform != "tpu":
        return device_mesh(program.constraints.axes)
    found = placed_mesh(make_target(plan.placed()), devices)
    explicit = (AxisType.Explicit,) * len(found.axis_names)
    return Mesh(found.devices, found.axis_names, axis_types=explicit)


def _begin(
    run: Run, program: Program, optimizer: Any, mesh: Mesh, checkpoints: Checkpoints, tell: Tell
) -> tuple[TrainState, int]:
    began = time.monotonic()
    like = jax.tree.map(partial(on_devices, mesh), abstract_state(program, optimizer, mesh))
    found = checkpoints.restore(like, program)
    if found is not None:
        tell("restored", step=found[1], seconds=time.monotonic() - began)
        return found
    tell("began", step=0, weights=run.weights)
    # On a host's CPU what runs and what compiles share threads, and what runs may wait for a peer
    # that compiles: so each is done before the next.
    params = jax.block_until_ready(_first_weights(run, program, mesh))
    return jax.block_until_ready(begin_state(program, optimizer, params)), 0


def _first_weights(run: Run, program: Program, mesh: Mesh) -> Tree:
    if run.weights is None:
        return init_params(program.specs, program.constraints, jax.random.key(run.seed))
    target = abstract_params(program.specs, program.constraints, mesh)
    return import_huggingface(run.weights, program.specs, target, program.staging).params


def on_devices(mesh: Mesh, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The same on devices that are there; counts have no sharding of their own."""
    spec = leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) else PartitionSpec()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def compiled_step(run: Run, program: Program, optimizer: Any, mesh: Mesh, tell: Tell) -> Any:
    """The step, ready to be called; programs of an attempt before are found on disk."""
    began = time.monotonic()
    step = make_measured_step(program, optimizer, microbatches=run.plan.microbatches)
    batch = abstract_batch(program, mesh, batch=run.plan.batch, seq=run.plan.seq)
    lowered = step.lower(abstract_state(program, optimizer, mesh), batch)
    found, options = with_options(lowered, chosen_options(run.plan))
    device = jax.devices()[0].device_kind
    tell("compiled", seconds=time.monotonic() - began, device=device, **options)
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):  # a full disk costs what `reconcile` reads, not the run
            (run.folder / COMPILED_STEP).write_text(found.as_text(), encoding="utf-8")
    return found


def with_options(lowered: Any, options: dict[str, CompilerOption]) -> tuple[Any, dict[str, object]]:
    """A step by the options of its plan; a compiler that does not know them goes without."""
    if not options:
        return lowered.compile(), {}
    try:
        return lowered.compile(compiler_options=options), {"options": options}
    except jax.errors.JaxRuntimeError as error:
        if "compile option" not in str(error):
            raise
        return lowered.compile(), {"options": {}, "refused": str(error)}


def run_steps(
    run: Run,
    rows: NamedSharding,
    step_function: Any,
    state: TrainState,
    start: int,
    checkpoints: Checkpoints,
    tell: Tell,
    validation: "HeldOutLoss | None" = None,
) -> tuple[TrainState, Ending]:
    """Steps from `start` on, with a save at the end; gives back the state and how it ended."""
    given = batches(run, rows, start)
    window = ProfileWindow(run, tell)
    before: _PendingStep | None = None
    if validation is not None and start == 0:
        validation.tell(0, state.params)
    clock = time.monotonic()
    for step in range(start, run.steps):
        if window.turns(step):
            before, clock = _settled(before, state, clock, tell)
            window.turn(step)
            clock = time.monotonic()
        asked = time.monotonic()
        with _doing("waits for the rows of a step"):
            batch, checksum = next(given)
        data_s = time.monotonic() - asked
        state, found = step_function(state, batch)
        if before is not None:
            with _doing("reads and tells the loss of the step before"):
                clock = _tell_step(before, clock, tell)
        before = _PendingStep(step, found, checksum, data_s)
        with _doing("asks whether to stop"):
            told_to_stop = multihost_utils.reached_preemption_sync_point(step)
        if validation is not None and validation.is_due(step + 1):  # told before it is saved
            before, clock = _settled(before, state, clock, tell)
            validation.tell(step + 1, state.params)
            clock = time.monotonic()
        if told_to_stop or (step + 1) % run.save_every == 0 or step + 1 == run.steps:
            before, clock = _settled(before, state, clock, tell)
            checkpoints.save(step + 1, state)
            clock = time.monotonic()
        if told_to_stop:
            return state, Ending("preempted", step + 1)
        with _doing("looks after a save"):
            checkpoints.poll()
    return state, Ending("finished", max(start, run.steps))


def _doing(what: str) -> jax.profiler.TraceAnnotation:
    """Names what the host does, for traces: `rooflight profile` says it of the gaps."""
    return jax.profiler.TraceAnnotation(f"the trainer {what}")


def _settled(
    before: _PendingStep | None, state: TrainState, clock: float, tell: Tell
) -> tuple[None, float]:
    """Waits for the step that is under way, so that neither counts as the time of the other.

    Its loss is there before its last update.
    """
    jax.block_until_ready(state)
    return None, clock if before is None else _tell_step(before, clock, tell)


def _tell_step(done: _PendingStep, clock: float, tell: Tell) -> float:
    """Waits for the loss of a step and tells it; the time until now was the step's."""
    loss = float(done.found.loss)
    now = time.monotonic()
    tell(
        "step",
        step=done.step,
        loss=loss,
        gradient_norm=float(done.found.norm),
        seconds=now - clock,
        data_s=done.data_s,
        rows=done.checksum,
    )
    return now


class HeldOutLoss:
    """The loss on records that no step reads, at the steps that `Run` names."""

    def __init__(self, run: Run, program: Program, rows: NamedSharding, tell: Tell) -> None:
        self._run, self._rows, self._tell = run, rows, tell
        plan, mesh = run.plan, rows.mesh
        assert isinstance(mesh, Mesh)
        weights = abstract_params(program.specs, program.constraints, mesh)
        batch = abstract_batch(program, mesh, batch=plan.batch, seq=plan.seq)
        # Now, and not between steps: a host that compiles is silent, and its peers wait.
        loss = make_loss(program, microbatches=plan.microbatches)
        self._loss = loss.lower(weights, batch).compile()

    def is_due(self, step: int) -> bool:
        """Is it told after so many steps?"""
        assert self._run.validate_every is not None
        return step % self._run.validate_every == 0 or step == self._run.steps

    def tell(self, step: int, params: Tree) -> None:
        self._tell("validates", step=step)
        began = time.monotonic()
        given = held_out_batches(self._run, self._rows)
        losses = [float(self._loss(params, batch)) for batch, _ in given]
        mean = math.fsum(losses) / len(losses)
        self._tell("validated", step=step, loss=mean, seconds=time.monotonic() - began)


# The steps of a run that the profiler records: `traces/process-I`, read by `rooflight profile`.

FOLDER = "traces"


class ProfileWindow:
    """Opens and closes the profiler at the steps that `Run` names."""

    def __init__(self, run: Run, tell: Callable[..., None]) -> None:
        self._run, self._tell = run, tell
        self._open = False

    def turns(self, step: int) -> bool:
        """Does it open or close before this step?"""
        first = self._run.profile_at
        if first is None:
            return False
        return step == first + self._run.profile_steps if self._open else step == first

    def turn(self, step: int) -> None:
        folder = self._run.folder / FOLDER / f"process-{jax.process_index()}"
        if self._open:
            jax.profiler.stop_trace()
            self._tell("profiled", step=step, folder=str(folder))
        else:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # each call of Python: slow, and names no gap better
            jax.profiler.start_trace(str(folder), profiler_options=options)
        self._open = not self._open


# Batches: which records a step reads, and the rows of them that this process needs.

Row = npt.NDArray[np.int32]
_AHEAD = 4  # steps that are read before they are needed


class Given(NamedTuple):
    """A batch, and a checksum of the rows that this process read for it."""

    batch: Batch
    checksum: int


@dataclass(frozen=True, slots=True)
class _BatchRows:
    """Element s is what this process reads for batch s; grain reads several ahead."""

    records: Any  # of grain, or an array of records
    count: int
    size: int
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        first = index * self.size
        return np.stack([cast(Row, self.records[first + int(row)]) for row in self.rows])


def batches(run: Run, sharding: NamedSharding, start: int) -> Iterator[Given]:
    """The batches of steps from `start` on, laid out as `sharding` says."""
    records, _ = split_records(Records(Path(run.data), run.plan.seq), run.held_out)
    shuffled = grain.MapDataset.source(records).seed(run.seed).shuffle().repeat()
    return _batches(run, sharding, shuffled, start, run.steps)


def held_out_batches(run: Run, sharding: NamedSharding) -> Iterator[Given]:
    """The batches to validate on: all records that no step reads, in order."""
    _, records = split_records(Records(Path(run.data), run.plan.seq), run.held_out)
    return _batches(run, sharding, records, 0, run.validate_batches)


def _batches(
    run: Run, sharding: NamedSharding, records: Any, start: int, stop: int
) -> Iterator[Given]:
    shape = (run.plan.batch, run.plan.seq)
    mine = sorted({r for at in _local_rows(sharding, shape) for r in range(at.start, at.stop)})
    rows = np.array(mine, np.int64)
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    found = _BatchRows(records, stop, run.plan.batch, rows)
    read = iter(grain.MapDataset.source(found).to_iter_dataset(ahead))
    read.set_state({"next_index": start})
    for found in read:
        yield Given(_laid_out(found, rows, sharding, shape), zlib.crc32(found.tobytes()))


def _local_rows(sharding: NamedSharding, shape: tuple[int, int]) -> Iterator[slice]:
    for at in sharding.addressable_devices_indices_map(shape).values():
        assert at is not None
        yield slice(*at[0].indices(shape[0]))


def _laid_out(
    found: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
    sharding: NamedSharding,
    shape: tuple[int, int],
) -> Batch:
    def array(values: npt.NDArray[Any]) -> jax.Array:
        def part(at: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert at is not None
            first, stop, _ = at[0].indices(shape[0])
            begin = int(np.searchsorted(rows, first))
            return values[begin : begin + stop - first]

        return jax.make_array_from_callback(shape, sharding, part)

    ones = np.ones((len(found), shape[1]), np.float32)
    return Batch(array(found[:, :-1]), array(found[:, 1:]), array(ones))
