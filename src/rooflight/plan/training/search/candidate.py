"""`Candidate`: one layout of the search, derived and priced for its own mesh.

In: a `Question` and a layout on a mesh with its microbatches and remat policy. Out: its time and
memory, the way `search` must find them with arrays.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.algebra.shapes import ways
from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import Slice
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.forecast.basis import Basis, basis_of, blocks_of
from rooflight.plan.training.forecast.evidence import evidence, unseen_of
from rooflight.plan.training.forecast.step import Forecast, forecast_run
from rooflight.plan.training.memory.count import Memory, memory, usable_hbm_bytes
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework
from rooflight.plan.training.memory.job import RECIPES, Job, Microbatching, Recipe
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.search.region import EVERYWHERE, Region
from rooflight.plan.training.time.parts import STORED, TrainingRun
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.plan.training.time.step_time import StepTime, training_step

Rank = Literal["forecast", "roofline"]
RANKS: tuple[Rank, ...] = ("forecast", "roofline")
# Of matmuls; master weights and optimizer are the recipe's.
TRAINED_IN = ("f32", "tf32", "bf16", "f16", "fp8", "mxfp8", "int8", "mxfp4", "nvfp4")


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be trained on what; `region` narrows the layouts that are searched."""

    graph: Graph
    on: Slice
    batch: int  # sequences
    seq: int
    dtype: Dtype
    overlap: Overlap = "sum"
    recipe: Recipe = RECIPES["10"]
    region: Region = EVERYWHERE
    framework: Framework = FRAMEWORKS["rooflight"]
    rank: Rank = "forecast"
    hbm_margin: float = 0.0

    def __post_init__(self) -> None:
        if self.dtype.name not in TRAINED_IN:
            raise UsageError(
                f"nobody trains in {self.dtype.name}", hint=f"choose one of {', '.join(TRAINED_IN)}"
            )

    @property
    def stored(self) -> Dtype:
        """Activations and gathered weights: 16 bits, or what matmuls take where that is more."""
        return max(STORED, self.dtype, key=lambda dtype: dtype.bits)

    @property
    def usable_bytes(self) -> int:
        """HBM of a chip less the margin."""
        return usable_hbm_bytes(self.on.chip, self.hbm_margin)


def evidence_key(question: Question) -> tuple[str, str, str]:
    """The measured runs that a question's layouts are held against."""
    return question.on.chip.kind, question.framework.name, blocks_of(question.graph)


def extrapolation_of(question: Question) -> float:
    """How far off, in logs, a forecast is where no run is of the same kind."""
    return evidence().extrapolated[blocks_of(question.graph)]


def counted_seconds(question: Question, candidate: "Candidate") -> float:
    """What a step counts for in the ranking: more where no measured run is like its layout."""
    doubt = math.exp(extrapolation_of(question)) if candidate.unseen else 1.0
    return candidate.step_s * doubt


def question_basis(question: Question) -> Basis:
    """The constants that forecasts of a question rest on."""
    chip, name = question.on.chip, question.framework.name
    return basis_of(chip, name, experts=bool(question.graph.per_token))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout on one mesh, with its time and memory."""

    layout: Layout
    mesh: Mesh
    micro: Microbatching
    remat: Remat
    time: StepTime  # at the roofline
    memory: Memory
    forecast: Forecast
    rank: Rank = "forecast"
    overlap: Overlap = "sum"
    unseen: tuple[str, ...] = ()  # reaches that no measured run had: tp@far

    @property
    def step_s(self) -> float:
        """What it is ranked by: the forecast, unless the roofline was asked for."""
        is_roofline = self.rank == "roofline"
        return self.time.expected_s(self.overlap) if is_roofline else self.forecast.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs over what the chips could do in a step; rounding may not lift it above 1."""
        is_roofline = self.rank == "roofline"
        return min(1.0, self.time.mfu(self.overlap)) if is_roofline else self.forecast.mfu

    @property
    def binds(self) -> str:
        """What a step takes longest for."""
        is_roofline = self.rank == "roofline"
        return self.time.binds(self.overlap) if is_roofline else self.forecast.breakdown.binds

    @property
    def num_stages(self) -> int:
        return ways(self.layout.stages, self.mesh.axes)

    @property
    def degrees(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What stays the same wherever the axes lie; tp and sp, which move the same, are one."""
        return self.layout.text.replace("tp=", "sp="), tuple(sorted(self.mesh.axes.items()))


def held_by(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Memory:
    """What the chips of a candidate hold."""
    return memory(job_of(question, layout, mesh, micro, remat))


def job_of(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Job:
    """A layout of the search as a job of the framework, zero 1."""
    q = question
    job = Job(q.graph, layout, mesh.axes, q.on.chip, q.batch, q.seq, q.recipe, remat, zero=1)
    return replace(job, micro=micro, framework=q.framework, hbm_margin=q.hbm_margin)


def run_of(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> TrainingRun:
    """A layout of the search as a run to forecast."""
    q = question
    return TrainingRun(
        *(q.graph, layout, mesh, q.batch, q.seq, q.dtype, micro, remat),
        stored=q.stored,
        in_step=q.framework.in_step,
    )


def step_of(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> StepTime:
    """The time of a step under one layout; raises where it does not divide."""
    q = question
    return training_step(
        q.graph,
        layout,
        mesh=mesh,
        batch=q.batch,
        seq=q.seq,
        dtype=q.dtype,
        micro=micro,
        remat=remat,
        overlap=q.overlap,
        in_step=q.framework.in_step or q.rank == "roofline",
    )


def price_one(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Candidate:
    """One layout, derived and priced for its own mesh; raises where it does not divide."""
    time = step_of(question, layout, mesh, micro, remat)
    held = held_by(question, layout, mesh, micro, remat)
    said = forecast_run(run_of(question, layout, mesh, micro, remat), question_basis(question))
    q = question
    unseen = unseen_of(layout, mesh, q.seq, evidence_key(q)) if q.rank == "forecast" else ()
    said = said.widened(extrapolation_of(q)) if unseen else said
    return Candidate(layout, mesh, micro, remat, time, held, said, q.rank, q.overlap, unseen)
