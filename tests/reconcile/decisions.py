"""What the planner would have chosen for a measured run, beside the layout that ran.

In: a `ReplayQuestion` of `reconcile`. Out: a `Decision`. The layout that ran is one that the search
itself reaches: narrowed to its degrees and to what else its source says, with all of the HBM. What
no search of its framework reaches, or finds room for, is a miss, and says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooflight.errors import RooflightError
from rooflight.measure.published.question import ReplayQuestion
from rooflight.measure.published.replay import measured_seconds
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.evidence import degrees_of, nearest_runs
from rooflight.plan.training.memory.remat import Remat, parse_remat
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.constraint import LayoutConstraint, degrees_text, region_of
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.plan.training.search.run import search_training
from rooflight.units import format_seconds, format_si

# The framework whose layouts, memory and schedules are nearest to those of a row's software.
FRAMEWORK_OF: Mapping[str, str] = {
    "deepspeed": "deepspeed",
    "levanter": "maxtext",
    "llm-foundry": "llm-foundry",
    "maxtext": "maxtext",
    "maxtext-int8": "maxtext",
    "meta": "megatron",
    "megatron": "megatron",
    "megatron-2021": "megatron",
    "megatron-mamba": "megatron",
    "megatron-simumax": "megatron",
    "nanotron": "nanotron",
    "t5x": "rooflight",
    "torchtitan": "torchtitan",
}
ADAPTERS = "adapters only: the planner trains every weight"
BF16_GRADIENTS = ("16",)
_SCHEMES = ("fsdp", "dp", "tp", "cp", "ep", "pp")
_PARTS = {
    "matmuls": "matmuls and recomputation",
    "memory": "memory passes",
    "exposed": "exposed communication",
    "bubble": "bubble",
    "update": "update",
    "fixed": "fixed",
}
_OFFLOADED = "qkv_proj_offloaded"


@dataclass(frozen=True, slots=True)
class Decision:
    """A run, its layout and the planner's, each with its forecast; without one, what is missed."""

    id: str
    source: str
    model: str
    slice: str
    framework: str
    published: str
    measured_s: float
    published_s: float | None
    missed: str
    pick: str
    pick_s: float | None
    nearest: str  # the measured run most like the pick
    differs: str = ""  # what the pick takes more and less time for

    @property
    def ratio(self) -> float | None:
        """The pick's forecast over that of the layout that ran."""
        if self.published_s is None or self.pick_s is None:
            return None
        return self.pick_s / self.published_s


def framework_of(question: ReplayQuestion) -> str:
    """By the engine, whatever its release; ours where nobody named it."""
    default = "maxtext" if question.run.mesh.slice.chip.torus else "megatron"
    return FRAMEWORK_OF.get(question.engine.partition("@")[0], default)


def planned_question(question: ReplayQuestion, recipe: str | None = None) -> Question:
    """The model, chips, framework, batch and sequence of a row, and all of the HBM."""
    run = question.run
    return train_question(
        *(run.graph, run.mesh.slice, run.batch, run.seq, run.compute),
        framework=framework_of(question),
        recipe=recipe,
        hbm_margin=0.0,
    )


def published_layout(question: ReplayQuestion) -> LayoutConstraint:
    """What a source says of a layout; recomputation that it does not mention is free."""
    run = question.run
    degrees = dict.fromkeys(_SCHEMES, 1) | degrees_of(run.layout, run.mesh)
    text = ",".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1)
    micro, is_staged = run.micro, degrees["pp"] > 1
    if is_staged and micro.virtual > 1:
        text += f",vp={micro.virtual}"
    return LayoutConstraint(
        text or "one chip",
        degrees,
        _stated_remat(question),
        micro.count,
        micro.schedule if is_staged else None,
        micro.virtual if is_staged else None,
    )


def _stated_remat(question: ReplayQuestion) -> Remat | None:
    row, run = question.row, question.run
    stated = row.fields.get("remat")
    if stated is None:
        return None
    policy = row.table("remat")
    if policy.get("host_offload") or _OFFLOADED in (stated, policy.get("policy")):
        name = run.remat.name
        return parse_remat("offload" if name == "block" else f"{name}@host", run.graph)
    return run.remat


def decide(question: ReplayQuestion) -> Decision:
    """Searches twice: what ran, and everything."""
    planned, wanted = planned_question(question), published_layout(question)
    published = pick = None
    missed = ADAPTERS
    if not question.run.freezes_weights:
        planned, published, missed = reached(question)
        try:
            pick = plan_training(planned).candidates[0]
        except RooflightError as error:
            missed = missed or str(error)
    return Decision(
        question.row.id,
        question.row.source,
        question.row.model,
        str(planned.on),
        planned.framework.name,
        wanted.text,
        measured_seconds(question)[0],
        published.step_s if published else None,
        missed,
        degrees_text(pick) if pick else "",
        pick.step_s if pick else None,
        _nearest(pick, planned) if pick else "",
        difference(published, pick) if published and pick else "",
    )


def difference(published: Candidate, pick: Candidate) -> str:
    """The parts of a step that a pick makes longer or shorter by more than 1 % of what ran."""
    if published.degrees == pick.degrees and published.micro == pick.micro:
        same = published.remat.name == pick.remat.name
        return "" if same else f"remat {pick.remat.name} for {published.remat.name}"
    before, after = published.forecast.breakdown, pick.forecast.breakdown
    changes = {name: getattr(after, f"{name}_s") - getattr(before, f"{name}_s") for name in _PARTS}
    told = [
        f"{_PARTS[name]} {'-' if change < 0 else '+'}{format_seconds(abs(change))}"
        for name, change in sorted(changes.items(), key=lambda item: item[1])
        if abs(change) > 0.01 * published.step_s
    ]
    return ", ".join(told) or "no part by more than 1%"


def reached(question: ReplayQuestion) -> tuple[Question, Candidate | None, str]:
    """What ran, with gradients stored as its framework does, or else in bf16 if it may.

    Rows do not say in what gradients are added up. Megatron-LM has an option for it, and NVIDIA's
    own recipes for speed switch it on (`grad_reduce_in_fp32 = False`); `--recipe 16` is that.
    """
    wanted, missed = published_layout(question), ""
    planned = planned_question(question)
    for recipe in (None, *(BF16_GRADIENTS if planned.framework.name == "megatron" else ())):
        planned = planned_question(question, recipe)
        found, why = _reached(planned, wanted)
        if found:
            return planned, found, ""
        missed = missed or why
    return planned_question(question), None, missed


def _reached(planned: Question, wanted: LayoutConstraint) -> tuple[Candidate | None, str]:
    """The fastest of the layouts that have what ran, or why there is none."""
    try:
        region, outside = region_of(wanted, planned)
        found = search_training(replace(planned, region=region))
    except RooflightError as error:
        return None, str(error)
    if outside:
        return None, "; ".join(outside)
    if not found.num_priced:
        return None, "no placement of these degrees is searched"
    if not found.candidates:
        return None, _too_large(replace(planned, region=replace(region, must_fit=False)))
    return min(found.candidates, key=lambda candidate: candidate.step_s), ""


def _too_large(planned: Question) -> str:
    held = search_training(planned, count=1).candidates[0].memory
    total, hbm = (format_si(n, "B") for n in (held.total_bytes, held.hbm_bytes))
    most = " and ".join(part.name for part in held.largest(2))
    return f"{total} do not fit {hbm}, mostly {most}"


def _nearest(pick: Candidate, planned: Question) -> str:
    found = nearest_runs(pick.layout, pick.mesh, blocks_of(planned.graph), count=1)
    return found[0].id if found else ""
