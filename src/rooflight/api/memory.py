"""What a chip holds of a training step, whether it fits, and what would help."""

import re
from dataclasses import replace

from rooflight.api.values import Count, parse_seq, slice_of, whole_sequences
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, mesh_of
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout, parse_layout
from rooflight.models.presets import load_model
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.memory.framework import parse_framework
from rooflight.plan.training.memory.job import Job, Microbatching, Zero, parse_recipe
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.fixes import Fit, Unknown, fit_job
from rooflight.plan.training.search.candidate import job_of
from rooflight.plan.training.search.constraint import parse_constraint, region_of
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.plan.training.search.run import search_training

_DEGREES = re.compile(r"=\s*\d")


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

    A layout has degrees, or axes of `mesh`; without one it is the best plan's, with its options.
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
    if layout is None:
        own = {"mesh": mesh, "remat": remat, "zero": zero, "microbatches": microbatches}
        own |= {"schedule": schedule, "virtual": virtual, "solve": solve}
        given = [name for name, value in own.items() if value is not None]
        if given:
            raise UsageError(f"--{given[0]} belongs to a --layout", hint="add --layout tp=8,dp=8")
        return fit_job(*_best(graph, chips, sequences, length, recipe, framework))
    split, placed = _placed(layout, mesh, graph, chips, (sequences, length), framework)
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    job = Job(
        graph,
        split,
        placed.axes,
        placed.slice.chip,
        batch=sequences,
        seq=length,
        recipe=parse_recipe(recipe or "10"),
        remat=parse_remat(remat or "block", graph),
        zero=zero or 0,
        micro=Microbatching(count, schedule or "1f1b", chunks if virtual is None else virtual),
        framework=parse_framework(framework or "none"),
    )
    return fit_job(job, placed, solve)


def _placed(
    layout: str,
    mesh: str | None,
    graph: Graph,
    on: Slice,
    sizes: tuple[int, int],
    framework: str | None,
) -> tuple[Layout, Mesh]:
    """A layout over the axes of a mesh; or one that has the degrees, wherever its axes lie."""
    if not _DEGREES.search(layout):
        return parse_layout(layout), mesh_of(mesh, on)
    if mesh is not None:
        raise UsageError(
            "degrees make their own mesh", hint="leave --mesh out, or name its axes in --layout"
        )
    name = framework if framework not in (None, "none") else None
    question = train_question(graph, on, *sizes, DTYPES["bf16"], framework=name)
    region, _ = region_of(parse_constraint(layout, graph), question)
    best = search_training(replace(question, region=region), count=1).candidates
    if best:
        return best[0].layout, best[0].mesh
    for split in region.layouts or ():
        meshes = region.placements(split, on)
        if meshes.count:
            return split, meshes.mesh(0)
    raise UsageError(
        f"the layout must fill the {on.num_chips} chips of {on}, got {layout}",
        hint="degrees multiply to the chips; those that are left over go to dp or fsdp",
    )


def _best(
    graph: Graph, on: Slice, batch: int, seq: int, recipe: str | None, framework: str | None
) -> tuple[Job, Mesh]:
    """The best plan as a job: its layout, microbatches, schedule and remat policy."""
    question = train_question(
        *(graph, on, batch, seq, DTYPES["bf16"]), recipe=recipe, framework=framework
    )
    best = plan_training(question, count=1).candidates[0]
    job = job_of(question, best.layout, best.mesh, best.micro, best.remat)
    return replace(job, hbm_margin=0.0), best.mesh
