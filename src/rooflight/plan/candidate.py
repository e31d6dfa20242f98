"""`Candidate`: one layout of the search, derived and priced for its own mesh.

In: a `Question` and a layout on a mesh with its microbatches and remat policy. Out: its time and
memory, the way `search` must find them with arrays.
"""

from dataclasses import dataclass, replace

from rooflight.algebra import ways
from rooflight.dtypes import Dtype
from rooflight.graph import Graph
from rooflight.graph.layout import Layout
from rooflight.plan.framework import FRAMEWORKS
from rooflight.plan.job import Job, Microbatching
from rooflight.plan.memory import Memory, memory
from rooflight.plan.recipe import RECIPES, Recipe
from rooflight.plan.region import EVERYWHERE, Region
from rooflight.plan.remat import Remat
from rooflight.plan.stage_time import Overlap
from rooflight.plan.step_time import StepTime, training_step
from rooflight.specs.mesh import Mesh
from rooflight.specs.slice import Slice


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout on one mesh, with its time and memory."""

    layout: Layout
    mesh: Mesh
    micro: Microbatching
    remat: Remat
    time: StepTime
    memory: Memory

    @property
    def num_stages(self) -> int:
        return ways(self.layout.stages, self.mesh.axes)

    @property
    def degrees(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What stays the same wherever the axes lie."""
        return self.layout.text, tuple(sorted(self.mesh.axes.items()))


def held_by(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Memory:
    """What the chips of a candidate hold."""
    return memory(job_of(question, layout, mesh, micro, remat))


def job_of(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Job:
    """A layout of the search as a job of Rooflight's own program, zero 1."""
    q, own = question, FRAMEWORKS["rooflight"]
    job = Job(q.graph, layout, mesh.axes, q.on.chip, q.batch, q.seq, q.recipe, remat, zero=1)
    return replace(job, micro=micro, framework=own)


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
    )


def price_one(
    question: Question, layout: Layout, mesh: Mesh, micro: Microbatching, remat: Remat
) -> Candidate:
    """One layout, derived and priced for its own mesh; raises where it does not divide."""
    time = step_of(question, layout, mesh, micro, remat)
    held = held_by(question, layout, mesh, micro, remat)
    return Candidate(layout, mesh, micro, remat, time, held)
