"""The pictures of a training plan, as records of `report`: time against batch, memory, pipeline.

In: what `plan` found. Out: a `TimePlot`, `MemoryStacks`, a `Gantt`, an SVG. The explorer and the
report of `rooflight plan --html` draw the same ones.
"""

from collections.abc import Sequence
from dataclasses import replace

from rooflight.plan.training.questions.curves import SchemeCurve
from rooflight.plan.training.questions.scaling import BENDS, Scaling, ScalingPoint
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.constraint import placed_text
from rooflight.plan.training.time.candidate_pipeline import run_pipeline
from rooflight.plan.training.time.pipeline import PipelineRun
from rooflight.ui.browser.pipeline_chart import chart_of
from rooflight.ui.svg.gantt import Bar, Gantt
from rooflight.ui.svg.memory import MemoryStacks, Stack
from rooflight.ui.svg.scaling import Mark, scaling_svg
from rooflight.ui.svg.time import TimeLine, TimePlot
from rooflight.units import format_seconds

_MOST_STACKS = 5
_DRAWN = 4  # microbatches for each stage: filling, the steady state and draining all show


def time_plot(question: Question, curves: Sequence[SchemeCurve]) -> TimePlot:
    """Seconds of matmuls, and of the collectives of each scheme, the plan's own last."""
    lines = [TimeLine("matmuls (compute)", least_matmuls(curves), "matmuls")]
    for curve in curves:
        points = tuple((p.tokens, p.time.collectives_s(question.overlap)) for p in curve.points)
        lines.append(TimeLine(curve.name, points, "chosen" if curve is curves[-1] else "scheme"))
    asked = question.batch * question.seq
    return TimePlot("Seconds of collectives and of matmuls", tuple(lines), asked)


def least_matmuls(curves: Sequence[SchemeCurve]) -> tuple[tuple[int, float], ...]:
    """At each batch, the scheme whose matmuls take least."""
    found: dict[int, float] = {}
    for point in (p for curve in curves for p in curve.points):
        seconds = point.time.matmuls_s
        found[point.tokens] = min(seconds, found.get(point.tokens, seconds))
    return tuple(sorted(found.items()))


def memory_stacks(candidates: Sequence[Candidate]) -> MemoryStacks:
    """Bars of the best candidates."""
    shown = candidates[:_MOST_STACKS]
    held = shown[0].memory
    stacks = tuple(
        Stack(
            f"{i}. {placed_text(c)}, remat {c.remat.name}", tuple(p.nbytes for p in c.memory.parts)
        )
        for i, c in enumerate(shown, 1)
    )
    names = tuple(part.name for part in held.parts)
    return MemoryStacks("What a chip holds at its fullest", names, stacks, held.hbm_bytes)


def drawn_pipeline(question: Question, best: Candidate) -> PipelineRun | None:
    """The schedule, shortened where a step has many microbatches."""
    return run_pipeline(question, best, most_microbatches=_DRAWN * best.num_stages)


def pipeline_chart(run: PipelineRun) -> Gantt:
    """The schedule on a clock in seconds."""
    idle_s = run.makespan_s - run.schedule.microbatches * run.times.total_s
    idle, whole = format_seconds(idle_s), format_seconds(run.makespan_s)
    chart = chart_of(run)
    return replace(
        chart,
        caption=f"{idle} of bubble in {whole}, {idle_s / run.makespan_s:.1%} of what is drawn",
        rows=tuple(replace(row, bars=tuple(map(_in_seconds, row.bars))) for row in chart.rows),
        is_in_seconds=True,
    )


def _in_seconds(bar: Bar) -> Bar:
    span = f"{format_seconds(bar.start)} to {format_seconds(bar.end)}"
    return replace(bar, tooltip=f"{bar.label}: {span}")


def scaling_picture(title: str, curve: Scaling) -> str:
    """The curve as SVG."""
    bend = curve.bend
    marks = [
        Mark(p.on.num_chips, p.tokens_per_s, curve.efficiency(p), str(p.on), lost(p) or p.binds)
        for p in curve.points
        if p.best
    ]
    at = next((m for m in marks if bend and m.num_chips == bend.on.num_chips), None)
    return scaling_svg(marks, title=f"{title}: {curve.kind} scaling", bend=at, threshold=BENDS)


def lost(point: ScalingPoint) -> str:
    """What costs a slice most beside the model's own FLOPs."""
    return f"{point.lost_to[0]}, {point.lost_to[1]:.0%}" if point.lost_to else ""
