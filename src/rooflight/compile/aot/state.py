"""What the program of a plan holds from step to step, and where that is not as planned.

In: a `Plan`. Out: bytes on one device, by the path in the program's state; and `StateTerm`s, as
planned and as the program is written.
"""

from dataclasses import dataclass

from rooflight.compile.expected.train import expected_optimizer, expected_weights
from rooflight.dtypes import Dtype
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.plan.file.record import Part, Plan
from rooflight.plan.training.memory.count import memory
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.memory.job import Job, Microbatching, parse_recipe
from rooflight.plan.training.memory.remat import parse_remat

_MOMENTS = ("optimizer[0].mu", "optimizer[0].nu")  # of Adam


@dataclass(frozen=True, slots=True)
class StateTerm:
    """One component; `because` says what the program holds, "" if it is as planned."""

    name: str
    planned_bytes: int
    program_bytes: int
    because: str


def expected_state(plan: Plan) -> dict[str, int]:
    """Every weight, the copy of it that the recipe keeps, and both moments, by path.

    Weights lie as the layout says, the rest where the optimizer has its part of them.
    """
    recipe = parse_recipe(plan.recipe)
    weights = {f"state.params.{name}": nbytes for name, nbytes in expected_weights(plan).items()}
    copies: dict[str, Dtype] = dict(zip(_MOMENTS, recipe.moments, strict=True))
    if recipe.master:
        copies["master"] = recipe.master
    return weights | {
        f"state.{copy}.{name}": dtype.nbytes(numbers)
        for copy, dtype in copies.items()
        for name, numbers in expected_optimizer(plan).items()
    }


def terms(plan: Plan) -> tuple[StateTerm, ...]:
    """Every component as planned and as the program is written, from the same closed form.

    They differ where a plan was made for something else than this program.
    """
    planned = {part.name: part.nbytes for part in plan.memory.parts}
    program = {part.name: part for part in memory(program_job(plan)).parts}
    found = [
        StateTerm(name, planned.get(name, 0), part.nbytes, _because(part, planned.get(name, 0)))
        for name, part in program.items()
    ]
    gone = "the program holds none of it"
    return (
        *found,
        *(StateTerm(n, size, 0, gone) for n, size in planned.items() if n not in program),
    )


def _because(part: Part, planned_bytes: int) -> str:
    return part.because if part.nbytes != planned_bytes else ""


def program_job(plan: Plan) -> Job:
    """The plan as a job of the program."""
    graph, mesh = model_graph(plan.model), plan.placed()
    schedule = plan.schedule or Microbatching().schedule
    return Job(
        graph,
        parse_layout(plan.layout),
        mesh.axes,
        mesh.slice.chip,
        plan.batch,
        plan.seq,
        parse_recipe(plan.recipe),
        parse_remat(plan.remat, graph),
        plan.zero,
        Microbatching(plan.microbatches, schedule, plan.virtual),
        FRAMEWORKS["rooflight"],
    )
