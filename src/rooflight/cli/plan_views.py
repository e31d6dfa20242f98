"""The pictures of a plan's report, as records: time against batch, roofline, memory, pipeline."""

from collections.abc import Sequence

from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.plan.training.derive.matmuls import MatmulGroup, matmuls_of
from rooflight.plan.training.questions.curves import SchemeCurve, time_by_batch
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.run import Search
from rooflight.ui.browser.plan_pictures import (
    drawn_pipeline,
    memory_stacks,
    pipeline_chart,
    time_plot,
)
from rooflight.ui.html.page import Grid
from rooflight.ui.html.plan import MemoryView, PipelineView, RoofView, TimeView
from rooflight.ui.svg.roofline import PlotPoint, RoofLine
from rooflight.ui.svg.time import TimeLine
from rooflight.units import format_count, format_seconds, format_si

_MOST_MATMULS = 6


def time_view(question: Question, best: Candidate) -> TimeView:
    """Time against batch for families of schemes, the plan's own layout last."""
    curves = time_by_batch(question, best)
    plot = time_plot(question, curves)
    return TimeView(
        plot,
        _summary(question, curves),
        _numbers(plot.lines),
        "Where a scheme's line is below the matmuls, its collectives hide behind them; where the"
        " matmuls' own line bends, HBM binds them. Each scheme"
        " has the best of its meshes that divide, in one microbatch, and memory is not asked; this"
        " plan keeps its own mesh and the size of its microbatches. Source: spec, uncalibrated.",
    )


def _summary(question: Question, curves: Sequence[SchemeCurve]) -> Grid:
    header = ("scheme", "layout", "divides from", "matmuls bind from", "step at the asked batch")
    rows = tuple(_summary_row(question, curve) for curve in curves)
    return Grid("Batches in tokens per step", (*header, "mesh there"), rows, "llrrrl")


def _summary_row(question: Question, curve: SchemeCurve) -> tuple[str, ...]:
    there = curve.at(question.batch * question.seq)
    bind = curve.matmuls_bind_from(question.overlap)
    return (
        curve.name,
        curve.layout,
        format_count(curve.points[0].tokens) if curve.points else "nowhere",
        format_count(bind) if bind else "-",
        format_seconds(there.time.expected_s(question.overlap)) if there else "-",
        str(there.mesh) if there else "-",
    )


def _numbers(lines: Sequence[TimeLine]) -> Grid:
    shown = [line for line in lines if line.points]
    rows = [
        (format_count(tokens), *(_at(line, tokens) for line in shown))
        for tokens, _ in lines[0].points
    ]
    header = ("tokens per step", *(line.label for line in shown))
    caption = "Seconds of matmuls, and of the collectives of each scheme"
    return Grid(caption, header, tuple(rows), "r" * len(header))


def _at(line: TimeLine, tokens: int) -> str:
    seconds = dict(line.points).get(tokens)
    return "-" if seconds is None else format_seconds(seconds)


def roof_view(question: Question, best: Candidate) -> RoofView:
    """The matmuls of a step under the roof of the chip."""
    chip = question.on.chip
    compute = chip.matmul_dtype(question.dtype.name)
    matmuls = matmuls_of(question, best)
    roof = RoofLine(f"{chip.title} {compute}", chip.peak_flops(compute), memory_bytes_per_s(chip))
    main = enumerate(matmuls[:_MOST_MATMULS], 1)
    points = [PlotPoint(str(i), p.intensity, p.flops_per_s) for i, p in main]
    # Labels are placed in this order, on the right first: so neighbours do not swap theirs.
    points.sort(key=lambda p: -p.intensity)
    return RoofView(
        f"Matmuls of one chip, {compute}",
        roof,
        tuple(points),
        _matmul_table(matmuls, best),
        "Numbers are those of the table. Left of the ridge HBM binds, right of it the matrix unit."
        " Forward and backward together;"
        " what is recomputed is left out. Source: spec, uncalibrated.",
    )


def _short(ops: Sequence[str]) -> str:
    """Parts of one layer named once: `mlp: gate, in, out`."""
    parts: dict[str, list[str]] = {}
    for op in ops:
        part, _, name = op.partition(".")
        parts.setdefault(part, []).append(name)
    return "; ".join(f"{part}: {', '.join(names)}" for part, names in parts.items())


def _matmul_table(matmuls: Sequence[MatmulGroup], best: Candidate) -> Grid:
    whole = sum(p.seconds for p in matmuls)
    rows = tuple(
        (
            str(i),
            _short(p.ops),
            format_seconds(p.seconds),
            f"{p.seconds / whole:.1%}",
            format_si(p.flops, "FLOP"),
            format_si(p.nbytes, "B"),
            format_si(p.intensity, "FLOP/B"),
            p.binds,
        )
        for i, p in enumerate(matmuls, 1)
    )
    stage = ", of an average stage" if best.num_stages > 1 else ""
    header = ("#", "matmul", "time", "share", "FLOPs", "HBM traffic", "intensity", "bound by")
    return Grid(f"A step on one chip{stage}, what takes longest first", header, rows, "rlrrrrrl")


def memory_view(found: Search) -> MemoryView:
    """Bars of the best candidates, and every part of the first."""
    held = found.candidates[0].memory
    rows = tuple((p.name, format_si(p.nbytes, "B"), p.because) for p in held.parts)
    total = (
        "total",
        format_si(held.total_bytes, "B"),
        f"{held.total_bytes / held.hbm_bytes:.1%} of what a program may use",
    )
    return MemoryView(
        memory_stacks(found.candidates),
        Grid("The first candidate, part by part", ("part", "a chip", "why"), (*rows, total), "lrw"),
        "On the fullest stage, as a closed form: a compiler adds padding, fragments and buffers of"
        " its own. The dashed line is what a program may use. Source: spec, uncalibrated.",
    )


def pipeline_view(question: Question, best: Candidate) -> PipelineView | None:
    """The schedule on a clock, shortened where a step has many microbatches."""
    run = drawn_pipeline(question, best)
    if run is None:
        return None
    drawn, count = run.schedule.microbatches, best.micro.count
    fewer = f"Drawn with {drawn} of its {count} microbatches; its bubble is as long. "
    return PipelineView(
        pipeline_chart(run),
        f"{fewer if drawn < count else ''}All stages run in step, padding and the head on each,"
        " their collectives and transfers overlapped with their matmuls. Source: spec,"
        " uncalibrated.",
    )
