"""What would make a job fit, and the largest job that fits: `memory` asked again and again.

In: a `Job`. Out: a `Fit`: its memory, and `Fix`es with what each saves and costs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.algebra.shapes import ways
from rooflight.errors import ShardingError, UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.models.layout.rules import parse_layout
from rooflight.plan.training.memory.count import Memory, memory, memory_by_stage
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.memory.remat import REMATS
from rooflight.units import format_seconds

Unknown = Literal["batch", "seq", "chips"]
UNKNOWNS: tuple[Unknown, ...] = ("batch", "seq", "chips")


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of one thing, and the job that it leads to."""

    change: str
    cost: str
    job: Job
    memory: Memory
    saves_bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The job that was asked about or solved for, its memory, and what would help."""

    mesh: Mesh  # as asked: solving for chips may find other sizes
    solve: Unknown | None
    job: Job
    stages: tuple[Memory, ...]
    fixes: tuple[Fix, ...]  # none where it fits
    together: tuple[Fix, ...]  # none where a fix on these chips is enough alone

    @property
    def memory(self) -> Memory:
        """Of the stage that needs most."""
        return max(self.stages, key=lambda found: found.total_bytes)

    @property
    def fits(self) -> bool:
        return self.memory.fits


def fit_job(job: Job, mesh: Mesh, unknown: Unknown | None = None) -> Fit:
    """Counts a job, or the largest of its kind that fits."""
    if unknown:
        job = solve(job, unknown) or (job if unknown == "chips" else sized(job, unknown, 1))
    found = memory_by_stage(job)
    fits = all(stage.fits for stage in found)
    helps = () if fits else fixes(job)
    alone = fits or any(f.memory.fits for f in helps if f.job.axes == job.axes)
    return Fit(mesh, unknown, job, found, helps, () if alone else together(job))


def fixes(job: Job) -> tuple[Fix, ...]:
    """Every change that saves memory: those that suffice, cheapest first, then the rest."""
    now = memory(job)
    found: list[Fix] = []
    for change, cost, other in (*_remats(job, now), *_splits(job), *_sizes(job)):
        try:
            after = memory(other)
        except UsageError:  # a dim may not divide, or layers not fill the stages
            continue
        saves = now.total_bytes - after.total_bytes
        if saves > 0:
            found.append(Fix(change, cost, other, after, saves))
    enough = sorted((f for f in found if f.memory.fits), key=_price)
    rest = sorted((f for f in found if not f.memory.fits), key=lambda f: -f.saves_bytes)
    return (*enough, *rest)


def together(job: Job) -> tuple[Fix, ...]:
    """Changes to make one after the other on the same chips, each the largest; empty if too few."""
    done: list[Fix] = []
    while not (done and done[-1].memory.fits):
        here = [f for f in fixes(done[-1].job if done else job) if f.job.axes == job.axes]
        if not here:
            return ()
        done.append(max(here, key=lambda f: f.saves_bytes))
    return tuple(done)


def _price(fix: Fix) -> tuple[float, ...]:
    """More chips are the dearest, then a smaller batch, then PCIe, then FLOPs."""
    chips = math.prod(fix.job.axes.values())
    return (chips, -fix.job.tokens, fix.memory.host_bytes, fix.memory.extra_flops, -fix.saves_bytes)


_Change = tuple[str, str, Job]


def _remats(job: Job, now: Memory) -> Iterator[_Change]:
    for remat in REMATS.values():
        other = replace(job, remat=remat)
        after = memory(other)
        more = after.extra_flops - now.extra_flops
        cost = f"{more:+.0%} FLOPs" if round(more, 2) else "no more FLOPs"
        if remat.on_host:
            seconds = "unknown time" if after.offload_s is None else format_seconds(after.offload_s)
            cost += f", {seconds} of PCIe per step"
        yield f"remat {remat.name}", cost, other


def _splits(job: Job) -> Iterator[_Change]:
    """Weights or optimizer over the data axes; twice the chips, along an old axis or a new one."""
    names = job.layout.text.split(",")
    if any(name.startswith("dp=") for name in names):
        text = ",".join("fs" + name if name.startswith("dp=") else name for name in names)
        cost = "weights are gathered twice a step"
        yield f"layout {text}", cost, replace(job, layout=parse_layout(text))
    # The all-reduce of gradients becomes a reduce-scatter and an all-gather: the same bytes.
    if job.zero < 1:
        yield "zero 1", "no more traffic", replace(job, zero=1)
    if job.zero < 2 and job.recipe.gradients:
        yield "zero 2", "no more traffic", replace(job, zero=2)
    for axis, size in job.axes.items():
        axes = {**job.axes, axis: 2 * size}
        yield f"mesh {axis}={2 * size}", "2x chips", replace(job, axes=axes)
    spare = next((name for name in "YZWV" if name not in job.axes), None)
    for scheme in ("cp", "tp") if spare else ():
        layout = parse_layout(f"{job.layout.text},{scheme}={spare}")
        other = replace(job, layout=layout, axes={**job.axes, str(spare): 2})
        yield f"layout {layout.text}, mesh {spare}=2 more", "2x chips, more collectives", other


def _sizes(job: Job) -> Iterator[_Change]:
    if job.microbatch % 2 == 0:
        micro = replace(job.micro, count=2 * job.micro.count)
        cost = "smaller matmuls, weights read again"
        yield f"microbatches {micro.count}", cost, replace(job, micro=micro)
    if job.batch % 2 == 0:
        half = replace(job, batch=job.batch // 2)
        yield f"batch {half.tokens}", "half the tokens per step", half


def solve(job: Job, unknown: Unknown) -> Job | None:
    """The largest batch, longest sequence or fewest chips that fit; None if nothing does.

    What is not asked for is held: `batch` adds whole sequences, `seq` lengthens those of the job,
    `chips` grows the axis that splits sequences. Memory never falls as batch or sequence grow, so
    doubling and halving the interval find the edge.
    """
    if unknown == "chips":
        return _fewest_chips(job)
    if not memory(sized(job, unknown, 1)).fits:
        return None
    low, high = 1, 2
    while memory(sized(job, unknown, high)).fits:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = memory(sized(job, unknown, middle)).fits
        low, high = (middle, high) if fits else (low, middle)
    return sized(job, unknown, low)


def _fewest_chips(job: Job) -> Job | None:
    """The smallest data axis that divides the sequences of a microbatch and fits."""
    axis = data_axis(job)
    rest = ways([a for a in job.layout.inner["B"] if a != axis], job.axes)
    most = job.microbatch // rest
    for size in _divisors(most):
        other = replace(job, axes={**job.axes, axis: size})
        try:
            if memory(other).fits:
                return other
        except ShardingError:  # a weight's dim may not split that many ways
            continue
    return None


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def data_axis(job: Job) -> str:
    """The axis that more chips go to: the first that splits sequences."""
    axes = job.layout.inner.get("B", ())
    if not axes:
        raise UsageError(
            f"layout {job.layout.text} splits no sequences, so more chips have no place",
            hint=f"add data parallelism: {job.layout.text},fsdp=X",
        )
    return axes[0]


def sized(job: Job, unknown: Unknown, times: int) -> Job:
    """The job at a multiple of the smallest size that every rule of its layout divides."""
    if unknown == "chips":
        return replace(job, axes={**job.axes, data_axis(job): times})
    dim = "B" if unknown == "batch" else "T"
    axes = (*job.layout.stream.get(dim, ()), *job.layout.inner.get(dim, ()))
    size = times * ways(tuple(dict.fromkeys(axes)), job.axes)
    if unknown == "batch":
        return replace(job, batch=size * job.micro.count)
    return replace(job, seq=size)
