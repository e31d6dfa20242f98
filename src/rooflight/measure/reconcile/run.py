"""A run reconciled: its plan, its compiled program and its traces, term by term.

In: the folder of a run, and, where it did not run on the chips it was planned for, the hardware it
ran on. Out: `Reconciled`. Compiled seconds are the FLOPs, bytes and collectives of the program at
the roofs of the chip; measured ones are means over devices and profiled steps.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rooflight.compile.hlo.groups import MeshAxes, read_groups
from rooflight.compile.hlo.instruction import Instruction
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.compile.time.step import flight
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.reconcile.gap import Compiled, Gap, Planned, Timed, Traced, explain_gap
from rooflight.measure.trace.classify import COLLECTIVES
from rooflight.measure.trace.overlap import (
    ALL,
    NOTHING,
    SHORT,
    Groups,
    host_gaps,
    overlaps,
    waits_for_last,
)
from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.record import Trace, under_roof
from rooflight.measure.trace.table import StepTable, TraceRow, step_table
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.plan.file.record import Plan
from rooflight.plan.training.forecast.basis import basis_of
from rooflight.plan.training.forecast.step import Forecast, forecast_run
from rooflight.plan.training.memory.framework import parse_framework
from rooflight.plan.training.memory.job import Microbatching, parse_recipe
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.search.candidate import Question, step_of
from rooflight.plan.training.time.parts import STORED, TrainingRun
from rooflight.train.events import Event, Goodput, goodput, read_events
from rooflight.train.run import COMPILED_STEP, FILE, Run, read_run

# What the folder of a training run says: its plan, how long steps took, its traces, its program.

_TRACES = "traces"
_FEWEST = 5  # steps of which a median says something


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run as it can be reconciled; traces are of the processes that recorded one."""

    run: Run
    quiet_s: tuple[float, ...]  # steps that nobody recorded
    profiled_s: tuple[float, ...]
    traces: tuple[Path, ...]
    compiled: Path | None
    spent: Goodput


def read_run_folder(folder: Path) -> RunFolder:
    """Reads the records of a run; what a reconciliation cannot do without is named."""
    if not (folder / FILE).is_file():
        raise UsageError(
            f"{folder} is not the folder of a run: it has no {FILE}",
            hint="give the folder that `rooflight train` or `rooflight launch` got as --out",
        )
    run = read_run(folder / FILE)
    quiet, profiled = step_seconds(folder, run)
    traces = tuple(sorted((folder / _TRACES).glob("process-*")))
    if not traces or not profiled:
        raise UsageError(
            f"no step of {folder} was profiled, so nobody knows where its time went",
            hint="train again with --profile-at 20; it goes on where it ended",
        )
    if len(quiet) < _FEWEST:
        raise UsageError(
            f"{folder} has {len(quiet)} steps that were not profiled, too few to say how long one"
            " takes",
            hint=f"train {_FEWEST} steps or more beside those that are profiled",
        )
    compiled = folder / COMPILED_STEP
    known = compiled if compiled.is_file() else None
    return RunFolder(run, quiet, profiled, traces, known, goodput(folder))


def step_seconds(folder: Path, run: Run) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of the steps of a run that nobody recorded, and of those that were profiled."""
    quiet: dict[int, float] = {}
    profiled: dict[int, float] = {}
    begun: set[object] = set()
    for event in read_events(folder):
        if event["event"] != "step":
            continue
        is_first = event["attempt"] not in begun
        begun.add(event["attempt"])
        step = int(cast(int, event["step"]))
        if _is_profiled(run, step):
            profiled[step] = _seconds(event)
        elif not is_first:
            quiet[step] = _seconds(event)
    return tuple(quiet.values()), tuple(profiled.values())


def _is_profiled(run: Run, step: int) -> bool:
    first = run.profile_at
    return first is not None and first <= step < first + run.profile_steps


def _seconds(event: Event) -> float:
    return float(cast(float, event["seconds"]))


_MATMULS = ("matmul", "attention kernel")
_PASSES = ("vector", "copy", "kernel")
_MOST_TRACES = 8  # of a run with thousands of processes: all do the same


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer of the program: how long it took, and the least that its ops take."""

    name: str
    seconds: float
    roof_s: float


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A run, the hardware it is held against, and the gap."""

    folder: Path
    plan: Plan
    mesh: Mesh
    gap: Gap
    compiled: Compiled
    traced: Traced
    scopes: tuple[LayerTime, ...]  # where most is lost first
    expected: Forecast
    found: RunFolder

    @property
    def training_run(self) -> TrainingRun:
        return training_run(self.plan, self.mesh)


def reconcile_run(folder: Path, on: Slice | None = None) -> Reconciled:
    """Reads everything that a run left and explains its gap."""
    found = read_run_folder(folder)
    plan = found.run.plan
    mesh = _mesh(plan, on)
    chip = mesh.slice.chip
    traces = [
        under_roof(read_trace(path), chip, dtype=plan.dtype) for path in found.traces[:_MOST_TRACES]
    ]
    _same_hardware(traces, mesh)
    tables = [step_table(trace) for trace in traces]
    step = _compiled_step(found.compiled, mesh)
    compiled = Compiled(
        _roof_s(tables, _MATMULS), _roof_s(tables, _PASSES), _collectives_s(step, mesh)
    )
    traced = _traced(traces, tables, step)
    timed = Timed(statistics.median(found.quiet_s), statistics.fmean(found.profiled_s))
    gap = explain_gap(_planned(plan, mesh, on), compiled, traced, timed)
    run = training_run(plan, mesh)
    experts = bool(run.graph.per_token)
    expected = forecast_run(run, basis_of(chip, plan.framework, experts=experts))
    return Reconciled(folder, plan, mesh, gap, compiled, traced, _scopes(traces), expected, found)


def training_run(plan: Plan, mesh: Mesh) -> TrainingRun:
    """A plan on a mesh, as calibrations price it."""
    dtype = parse_dtype(plan.dtype)
    return TrainingRun(
        model_graph(plan.model),
        parse_layout(plan.layout),
        mesh,
        plan.batch,
        plan.seq,
        dtype,
        _micro(plan),
        REMATS[plan.remat],
        stored=max(STORED, dtype, key=lambda one: one.bits),
        in_step=parse_framework(plan.framework).in_step,
    )


def _micro(plan: Plan) -> Microbatching:
    return Microbatching(plan.microbatches, plan.schedule or "1f1b", plan.virtual)


def _mesh(plan: Plan, on: Slice | None) -> Mesh:
    """The plan's own, or its axes on other hardware, where they lie as they come."""
    planned = plan.placed()
    if on is None:
        return planned
    if on.num_chips != planned.slice.num_chips:
        raise UsageError(
            f"the run had {planned.slice.num_chips} chips, and {on} has {on.num_chips}",
            hint=f"name hardware with {planned.slice.num_chips} chips after --on",
        )
    return parse_mesh(",".join(f"{axis}={size}" for axis, size in planned.axes.items()), on=on)


def _planned(plan: Plan, mesh: Mesh, on: Slice | None) -> Planned:
    time = plan.time
    if on is None:
        sent = sum(time.collectives_s.values())
        return Planned(time.roofline_s, time.matmuls_s, sent, time.bubble_s)
    question = Question(
        model_graph(plan.model),
        on,
        plan.batch,
        plan.seq,
        parse_dtype(plan.dtype),
        plan.overlap,
        parse_recipe(plan.recipe),
        framework=parse_framework(plan.framework),
    )
    layout, remat = parse_layout(plan.layout), REMATS[plan.remat]
    step = step_of(question, layout, mesh, _micro(plan), remat)
    sent = step.collectives_s(plan.overlap)
    return Planned(step.expected_s(plan.overlap), step.matmuls_s, sent, step.bubble_s)


def _same_hardware(traces: Sequence[Trace], mesh: Mesh) -> None:
    """A plan for a TPU says nothing about the time of fake devices."""
    kinds = {device.kind or "CPU" for trace in traces for device in trace.devices}
    on_cpu = all(kind.upper().startswith("CPU") for kind in kinds)
    if on_cpu != (mesh.slice.chip.kind == "cpu"):
        chips = mesh.slice.num_chips
        hint = f"it ran on {', '.join(sorted(kinds))}: name that slice, such as --on v5e:4x4"
        if on_cpu:
            hint = (
                f"`rooflight measure --devices {chips} --write this-host.toml`, then"
                f" ROOFLIGHT_CHIPS=this-host.toml and --on this-host:{chips}"
            )
        raise UsageError(
            f"the plan is for {mesh.slice}, and the run was not: its times cannot be compared",
            hint=hint,
        )


def _compiled_step(path: Path | None, mesh: Mesh) -> CompiledStep | None:
    if path is None:
        return None
    module = parse_module(path.read_text(encoding="utf-8"))
    return read_step(module, axes=MeshAxes(mesh.axes, {}))


def _roof_s(tables: Sequence[StepTable], classes: Sequence[str]) -> float | None:
    """The least that ops of some classes take, a mean over traces; None where one does not say."""
    rows = [row for table in tables for row in table.rows if row.key in classes]
    if any(row.roof_s is None for row in rows):
        return None
    return sum(row.roof_s or 0.0 for row in rows) / len(tables)


def _collectives_s(step: CompiledStep | None, mesh: Mesh) -> float | None:
    """What the compiled collectives take by the network model; None if one is not understood."""
    if step is None:
        return None
    total = 0.0
    for one in step.collectives:
        if one.group_size == 1 or one.axes == ():
            continue
        found = flight(one, _instruction(step, one.name), mesh)
        if found is None or one.count is None:
            return None
        total += found.seconds * one.count
    return total


def _instruction(step: CompiledStep, name: str) -> Instruction:
    found = step.module.find(name)
    assert found is not None, name  # the reader of collectives found it there
    return found[1]


def _traced(
    traces: Sequence[Trace], tables: Sequence[StepTable], step: CompiledStep | None
) -> Traced:
    """Means over the traces: every process does the same on as many devices."""
    mean = statistics.fmean
    gaps: dict[str, float] = {}
    unknown = 0.0
    for trace in traces:
        for gap in host_gaps(trace):
            if gap.doing in (NOTHING, SHORT):
                unknown += gap.seconds / len(traces)
            else:
                gaps[gap.doing] = gaps.get(gap.doing, 0.0) + gap.seconds / len(traces)
    hidden = [f.hidden_s for trace in traces for f in overlaps(trace) if f.kind == ALL]
    groups: Mapping[str, Groups] = _groups(step) if step else {}
    placed = [
        waits_for_last(trace, groups, first=at * len(trace.devices))
        for at, trace in enumerate(traces)
    ]
    return Traced(
        mean(_spent(table, _MATMULS) for table in tables),
        mean(_spent(table, _PASSES) for table in tables),
        mean(_spent(table, COLLECTIVES) for table in tables),
        mean(_spent(table, ("control",)) for table in tables),
        {**gaps, "infeed and outfeed": mean(_spent(table, ("host",)) for table in tables)},
        unknown,
        sum(hidden) / len(traces),
        mean(placed),
    )


def _spent(table: StepTable, classes: Sequence[str]) -> float:
    return math.fsum(table.seconds_of(key) for key in classes)


def _groups(step: CompiledStep) -> Mapping[str, Groups]:
    found: dict[str, Groups] = {}
    for one in step.collectives:
        groups = read_groups(_instruction(step, one.name).attributes)
        if groups and one.kind != "permute":  # its pairs are senders and receivers, no groups
            found[one.name] = groups
    return found


def _scopes(traces: Sequence[Trace]) -> tuple[LayerTime, ...]:
    tables = [step_table(trace, by="layer") for trace in traces]
    rows: dict[str, list[TraceRow]] = {}
    for table in tables:
        for row in table.rows:
            rows.setdefault(row.key, []).append(row)
    found = [
        LayerTime(
            key,
            sum(row.seconds for row in ones) / len(tables),
            sum(row.roof_s or 0.0 for row in ones) / len(tables),
        )
        for key, ones in rows.items()
    ]
    return tuple(sorted(found, key=lambda one: one.roof_s - one.seconds))
