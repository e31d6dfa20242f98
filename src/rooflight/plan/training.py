"""The training planner: the fastest layouts that fit, each with its recomputation and memory.

In: a `Question` and a recipe. Out: a `Search` whose candidates are settled: the remat policy is
the one that recomputes least among those that fit, and its extra FLOPs are in the time.
"""

from dataclasses import replace

from rooflight.errors import RooflightError, UsageError
from rooflight.plan.job import Job
from rooflight.plan.memory import memory
from rooflight.plan.recipe import Recipe
from rooflight.plan.remat import REMATS
from rooflight.plan.search import Candidate, Question, Search, search_training

_ON_CHIP = ("none", "dots", "block")  # from the least recomputed to the most


def plan_training(question: Question, *, recipe: Recipe, count: int = 8) -> Search:
    """Searches every layout of the space; raises where none divides or none fits."""

    def settle(candidate: Candidate) -> Candidate | None:
        return settled(question, candidate, recipe)

    found = search_training(question, count=count, settle=settle)
    if not found.num_dividing:
        raise _nothing_divides(question)
    if not found.candidates:
        raise RooflightError(
            f"none of the {found.num_dividing} layouts that divide fits"
            f" {question.on.chip.title}, even recomputing every layer",
            hint="use more chips or a smaller --batch; the verb fit shows what takes the memory",
        )
    return found


def settled(question: Question, candidate: Candidate, recipe: Recipe) -> Candidate | None:
    """The candidate with the policy that recomputes least and fits; None if none does."""
    job = Job(
        question.graph,
        candidate.layout,
        candidate.mesh.axes,
        question.on.chip,
        question.batch,
        question.seq,
        recipe,
    )
    for name in _ON_CHIP:
        held = memory(replace(job, remat=REMATS[name]))
        if held.fits:
            products_s = candidate.time.products_s * (1 + held.extra_flops)
            time = replace(candidate.time, products_s=products_s)
            return replace(candidate, time=time, remat=name, memory=held)
    return None


def _nothing_divides(question: Question) -> UsageError:
    """Names the nearest batch whose sequences the slice's odd factors divide."""
    odd, twos = question.on.num_chips, 1
    while odd % 2 == 0:
        odd, twos = odd // 2, twos * 2
    unit = odd
    while 2 * unit <= question.batch and unit // odd < twos:
        unit *= 2
    batch = max(1, round(question.batch / unit)) * unit
    return UsageError(
        f"no layout divides {question.batch} sequences over the"
        f" {question.on.num_chips} chips of {question.on}",
        hint=f"use a batch of {batch} sequences: --batch {batch * question.seq}",
    )
