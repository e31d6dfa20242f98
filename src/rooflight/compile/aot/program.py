"""Verifies without a plan: any jitted function, compiled for a slice, and what is odd about it.

In: `package.module:build` and a mesh. Out: a `ProgramVerdict`: collectives on named axes with
their times, memory against the chip's limit, findings.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rooflight.compile.aot.arguments import Argument, read_arguments
from rooflight.compile.aot.request import CompileRequest, Stage, plain_collectives
from rooflight.compile.aot.run import (
    Compilation,
    Watch,
    compile_all,
    is_timed,
    laid_out,
    read_compilation,
)
from rooflight.compile.aot.target import device_chip
from rooflight.compile.findings.axes import find_wrong_axes
from rooflight.compile.findings.finding import (
    Finding,
    Scale,
    called,
    collective_seconds,
    located,
    merged,
    warning_finding,
)
from rooflight.compile.findings.split_dims import find_split_dims
from rooflight.compile.findings.surprises import find_surprises
from rooflight.compile.findings.waste import (
    find_host_calls,
    find_repeated_work,
    find_replicated,
    find_schedule_waste,
    find_updates,
    undonated_findings,
)
from rooflight.compile.hlo.manual import split_axes
from rooflight.compile.hlo.memory import HloMemory, OutOfMemory
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """What the compiler made of a function. Steps are None where it made nothing."""

    build: str
    mesh: Mesh
    done: tuple[Compilation, ...]
    arguments: tuple[Argument, ...]
    partitioned: CompiledStep | None
    scheduled: CompiledStep | None
    step_s: float | None  # the least time of the step: no overlap of network and matmuls
    findings: tuple[Finding, ...]
    time: CompiledTime | None = None  # None before the executable: unknown
    alike: tuple[
        str, ...
    ] = ()  # axes of devices of a chip, which the program leaves to do the same

    @property
    def failed(self) -> Compilation | None:
        """The first compile that did not get through."""
        return next((d for d in self.done if not d.is_good), None)

    @property
    def memory(self) -> HloMemory | None:
        return self.scheduled.memory if self.scheduled else None


def parse_build(text: str) -> tuple[str, str]:
    """`package.module:build` or `folder/file.py:build` as a module, and the folder it is in.

    >>> parse_build("models.gpt:train")[0]
    'models.gpt:train'
    """
    module, colon, function = text.rpartition(":")
    if not colon or not module or not function.isidentifier():
        raise UsageError(
            f"{text!r} does not name a function",
            hint="write package.module:build or path/to/file.py:build; build(mesh) returns the"
            " function and its abstract arguments",
        )
    if not module.endswith(".py"):
        return text, os.getcwd()
    file = Path(module).resolve()
    if not file.is_file():
        raise UsageError(f"there is no file {module!r}", hint="give the path from here")
    return f"{file.stem}:{function}", str(file.parent)


def verify_program(
    build: str,
    mesh: Mesh,
    *,
    until: Stage = "scheduled",
    folder: str = "",
    arguments: dict[str, object] | None = None,
    explicit: bool = False,
    python: str = "",
    cache: Path | None = None,
    watch: Watch | None = None,
) -> ProgramVerdict:
    """Compiles a function and looks for what it could do without.

    `build` (found in `folder`) takes the jax mesh, or nothing, and returns the function and a
    tuple of its abstract arguments, with the mesh set; what cannot be traced is a `UsageError`.
    Right after partitioning, collective matmuls off, the plain collectives are verified; at the
    schedule of the compiler's defaults, memory and waits.
    """
    given = arguments or {}
    plain = plain_collectives(mesh)
    first = CompileRequest(
        build, mesh, given, "partitioned", plain, folder, explicit, python=python
    )
    requests = [first]
    if until != "partitioned":
        requests.append(replace(first, until=until, options={}))
    done = compile_all(requests, cache=cache, watch=watch)
    if done[0].outcome == "not built":
        raise UsageError(
            f"{build} cannot be traced: {done[0].last_words}",
            hint="build(mesh), called with the mesh set, returns the function and its arguments",
        )
    if not done[0].is_good:
        return ProgramVerdict(
            build, mesh, tuple(done), (), None, None, None, tuple(_failures(done, None))
        )
    found, whole = read_compilation(done[0]), read_compilation(done[0], stage="given")
    scheduled = None
    if len(done) > 1:
        done[-1], scheduled = laid_out(done[-1])
    axes = done[0].axes
    asked = {a: n for a, n in axes.items() if a in mesh.axes or _is_used(a, whole)}
    device = device_chip(mesh, axes)
    of_devices = replace(mesh, slice=replace(mesh.slice, chip=device))
    known = read_arguments(whole, found, axes)
    scale = Scale(_least_seconds(found, known, of_devices), device.hbm_bytes)
    updates = find_updates(found, known, done[0].results)
    repeated = list(find_repeated_work(whole, found, device, asked))
    found_axes = find_wrong_axes(whole, found, known, mesh, repeated)
    wrong = {finding: lines for finding, lines in found_axes if scale.is_worth(finding)}
    explained = frozenset[str]().union(*wrong.values())
    moved = find_surprises(_over(asked, found), known, mesh, axes, done[0].results)
    odd = [
        *_failures(done, scheduled),
        *(warning_finding(located(text, found.module)) for text in found.warnings),
        *wrong,
        *(f for f in (*repeated, *moved) if f.where not in explained),
        *find_split_dims(_over(asked, found), mesh, axes),
        *find_host_calls(found),
        *find_replicated(known, device, asked),
        *undonated_findings(updates, known),
        *(
            find_schedule_waste(
                _over(asked, scheduled),
                of_devices,
                scale.step_s,
                {*updates.values(), ""} if updates else (),
            )
            if scheduled
            else ()
        ),
    ]
    time = compiled_time(scheduled, of_devices) if scheduled and is_timed(done[-1]) else None
    return ProgramVerdict(
        build=build,
        mesh=mesh,
        done=tuple(done),
        arguments=tuple(known),
        partitioned=found,
        scheduled=scheduled,
        step_s=scale.step_s,
        findings=tuple(called(filter(scale.is_worth, merged(odd)), found.module)),
        time=time,
        alike=tuple(axis for axis in axes if axis not in asked),
    )


def _is_used(axis: str, given: CompiledStep) -> bool:
    """Whether a program splits anything over an axis, such as that of the devices of a chip."""
    computations = given.module.computations.values()
    attributes = (i.attributes for c in computations for i in c.instructions)
    return any(axis in split_axes(text) for text in attributes if axis in text)


def _over(asked: Mapping[str, int], step: CompiledStep) -> CompiledStep:
    """A step without the collectives of axes that nobody asked for: they are the compiler's."""
    kept = (c for c in step.collectives if asked.keys() >= set(c.axes or ()))
    return replace(step, collectives=tuple(kept))


def _failures(done: Sequence[Compilation], step: CompiledStep | None) -> Iterator[Finding]:
    for one in done:
        if one.is_good:
            continue
        if one.out_of_memory:
            yield _too_large(one.out_of_memory, step)
            continue
        yield Finding(
            one.outcome.replace(" ", "_"),
            f"the compiler: {one.outcome}. {one.last_words}",
            "run the function that builds it, or ask for less until the compiler gets through",
        )


def _too_large(over: OutOfMemory, step: CompiledStep | None) -> Finding:
    """Names the largest array at the peak that the step itself makes."""
    peak = step.memory.peak if step and step.memory else ()
    made = [b for b in peak if b.memory == "HBM" and b.source]
    largest = f"; at the peak {made[0].shape} is the largest that it makes" if made else ""
    return Finding(
        "out_of_memory",
        f"the step needs {format_si(over.needed_bytes, 'B')}, a device has"
        f" {format_si(over.limit_bytes, 'B')}{largest}",
        "keep less for the backward pass (jax.checkpoint), take fewer rows at a time, or split it"
        " over more devices",
        nbytes=over.needed_bytes - over.limit_bytes,
        where=made[0].source if made else "",
    )


def _least_seconds(step: CompiledStep, arguments: list[Argument], mesh: Mesh) -> float:
    """Matmuls at the peak rate, or reading the arguments once, and every collective alone."""
    chip = mesh.slice.chip
    peak = chip.peak_flops(chip.matmul_dtype("bf16"))
    read = sum(a.device_bytes for a in arguments)
    read_s = read / chip.hbm_bytes_per_s if chip.hbm_bytes_per_s else 0.0
    network = [collective_seconds(c, mesh) or 0.0 for c in step.collectives]
    return max(step.known_flops / peak, read_s) + math.fsum(network)
