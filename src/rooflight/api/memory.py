"""What a chip holds of a training step, whether it fits, and what would help."""

from dataclasses import replace

from rooflight.api.training import best_with, has_degrees, with_options
from rooflight.api.values import Count, parse_seq, slice_of, whole_sequences
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import mesh_of
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.memory.framework import parse_framework
from rooflight.plan.training.memory.job import Job, Microbatching, Zero, parse_recipe
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.fixes import Fit, Unknown, fit_job
from rooflight.plan.training.search.candidate import Question, job_of
from rooflight.plan.training.search.plan import plan_training, train_question


def fit(
    model: str | ModelSpec,
    *,
    on: str | Slice,
    seq: Count,
    batch: Count | None = None,
    layout: str | None = None,
    mesh: str | None = None,
    recipe: str | None = None,
    remat: str | None = None,
    zero: Zero | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    virtual: int | None = None,
    framework: str | None = None,
    solve: Unknown | None = None,
) -> Fit:
    """Bytes on one chip, part by part, and what would make them fit.

    A layout has degrees, and what they leave open is the planner's choice, or axes of `mesh`, and
    then it is the book's closed form; without one it is the best plan's, with its options.
    `solve` finds the largest batch, the longest sequences or the fewest chips that fit.

    >>> held = fit("llama3-70b", on="h100:8", layout="tp=8", batch="64Ki", seq=8192)
    >>> held.fits, held.memory.largest(1)[0].name
    (False, 'optimizer moments')
    """
    if (batch is None) != (solve == "batch"):
        raise UsageError(
            "the batch is missing" if batch is None else "--solve batch finds the batch itself",
            hint="give either --batch, such as 4Mi tokens, or --solve batch",
        )
    graph, chips, length = model_graph(load_model(model)), slice_of(on), parse_seq(seq)
    count = 1 if microbatches is None else microbatches
    sequences = count if batch is None else whole_sequences(batch, length)
    if layout is not None and not has_degrees(layout):
        placed = mesh_of(mesh, chips)
        job = Job(
            graph,
            parse_layout(layout),
            placed.axes,
            placed.slice.chip,
            batch=sequences,
            seq=length,
            recipe=parse_recipe(recipe or "10"),
            remat=parse_remat(remat or "block", graph),
            zero=zero or 0,
            micro=_micro(count, schedule, virtual),
            framework=parse_framework(framework or "none"),
        )
        return fit_job(job, placed, solve)
    question = _question(graph, chips, (sequences, length), recipe, framework)
    own = {"remat": remat, "microbatches": microbatches, "schedule": schedule, "virtual": virtual}
    if layout is None:
        _refuse(mesh=mesh, zero=zero, solve=solve, **own)
        best = plan_training(question, count=1).candidates[0]
    elif solve:  # a place for the degrees is found by one sequence per chip; options are as asked
        many = sequences * chips.num_chips if batch is None else sequences
        best = best_with(replace(question, batch=many), layout, mesh=mesh)
        policy = parse_remat(remat or "block", graph)
        best = replace(best, micro=_micro(count, schedule, virtual), remat=policy)
    else:
        best = best_with(question, with_options(layout, own), mesh=mesh)
    job = job_of(question, best.layout, best.mesh, best.micro, best.remat)
    closed = {"framework": parse_framework("none")} if framework == "none" else {}
    job = replace(job, hbm_margin=0.0, zero=job.zero if zero is None else zero, **closed)
    return fit_job(job, best.mesh, solve)


def _question(
    graph: Graph, on: Slice, sizes: tuple[int, int], recipe: str | None, framework: str | None
) -> Question:
    """What a layout is chosen by; the closed form has no constants of time, so it takes others'."""
    if framework == "none":
        framework, recipe = None, recipe or "10"
    return train_question(graph, on, *sizes, DTYPES["bf16"], recipe=recipe, framework=framework)


def _refuse(**own: object) -> None:
    given = [name for name, value in own.items() if value is not None]
    if given:
        raise UsageError(f"--{given[0]} belongs to a --layout", hint="add --layout tp=8,dp=8")


def _micro(count: int, schedule: str | None, virtual: int | None) -> Microbatching:
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    return Microbatching(count, schedule or "1f1b", chunks if virtual is None else virtual)
