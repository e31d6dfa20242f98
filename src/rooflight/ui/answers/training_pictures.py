"""A training plan as `Answer`s beyond its table: pictures of it, and a plan as it was saved."""

from collections.abc import Iterator

from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.plan.file.record import Plan
from rooflight.plan.training.derive.matmuls import matmuls_of
from rooflight.plan.training.questions.curves import SchemeCurve, time_by_batch
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.ui.answer import Answer, Column, Picture, Table, show_bytes, show_count, show_seconds
from rooflight.ui.browser.plan_pictures import drawn_pipeline, pipeline_chart, time_plot
from rooflight.ui.svg.gantt import gantt_svg
from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.ui.svg.time import time_svg
from rooflight.units import format_count, format_seconds, format_si

_MOST_MATMULS = 6
_MOST_DRAWN = 64  # devices of a pipeline


def time_answer(asked: Question, best: Candidate) -> Answer:
    """Time against batch, for families of schemes and for the plan."""
    curves = time_by_batch(asked, best)
    plot = time_plot(asked, curves)
    missing = [line.label for line in plot.lines if not line.points]
    none = f" No batch here divides: {', '.join(missing)}." if missing else ""
    rows = tuple(
        (tokens, *(dict(line.points).get(tokens) for line in plot.lines))
        for tokens, _ in plot.lines[0].points
    )
    columns = (
        Column("tokens", "tokens per step", show_count),
        *(Column(f"{line.label}_s", line.label, show_seconds) for line in plot.lines),
    )
    return Answer(
        sentences=(f"{_binding(asked, curves[-1])}{none}",),
        pictures=(
            Picture(
                "time",
                time_svg(plot),
                "Where a scheme's line is below the matmuls, its collectives hide behind them."
                " Each scheme has the best of its meshes that divide, in one microbatch; memory is"
                " not asked.",
            ),
        ),
        tables=(
            Table(
                *("time", "Seconds of matmuls, and of the collectives of each scheme", columns),
                rows,
                is_folded=True,
            ),
        ),
    )


def _binding(asked: Question, own: SchemeCurve) -> str:
    bind = own.matmuls_bind_from(asked.overlap)
    if bind is None:
        return "At no batch here do the collectives of this plan hide behind its matmuls."
    return f"The collectives of this plan hide behind its matmuls from {format_count(bind)} tokens."


def roofline_answer(asked: Question, best: Candidate) -> Answer:
    """The matmuls of a step under the roof of the chip."""
    chip = asked.on.chip
    compute = chip.matmul_dtype(asked.dtype.name)
    matmuls = matmuls_of(asked, best)
    roof = RoofLine(f"{chip.title} {compute}", chip.peak_flops(compute), memory_bytes_per_s(chip))
    shown = sorted(enumerate(matmuls[:_MOST_MATMULS], 1), key=lambda p: -p[1].intensity)
    points = [PlotPoint(str(i), p.intensity, p.flops_per_s) for i, p in shown]
    columns = (
        Column("number", "#"),
        Column("ops", "matmul"),
        Column("seconds", "time", show_seconds),
        Column("flops", "FLOPs", lambda v: format_si(v, "FLOP")),
        Column("bytes", "HBM traffic", show_bytes),
        Column("intensity_flops_per_byte", "intensity", lambda v: format_si(v, "FLOP/B")),
        Column("binds", "bound by"),
    )
    rows = tuple(
        (i, ", ".join(p.ops), p.seconds, p.flops, p.nbytes, p.intensity, p.binds)
        for i, p in enumerate(matmuls, 1)
    )
    first = matmuls[0]
    return Answer(
        sentences=(f"{', '.join(first.ops)} take longest, bound by {first.binds}.",),
        pictures=(
            Picture(
                "matmuls",
                roofline_svg([roof], points, title=f"Matmuls of one chip, {compute}"),
                "The matmuls of a step under the roof of the chip, numbered as in the table.",
            ),
        ),
        tables=(Table("matmuls", "The matmuls of a step on one chip", columns, rows),),
    )


def pipeline_answer(asked: Question, best: Candidate) -> Iterator[Answer]:
    """The schedule on a clock, if there are stages and they can be drawn."""
    run = drawn_pipeline(asked, best)
    if run is None or run.schedule.stages > _MOST_DRAWN:
        return
    drawn, count = run.schedule.microbatches, best.micro.count
    fewer = f" Drawn with {drawn} of its {count} microbatches." if drawn < count else ""
    chart = pipeline_chart(run)
    caption = f"{chart.caption}. All stages run in step.{fewer}"
    yield Answer((), pictures=(Picture("pipeline", gantt_svg(chart), caption, least=900),))


_WHY = Column("because", "why", is_wide=True)


def plan_file_answer(plan: Plan) -> Answer:
    """The first lines are the answer, as on the terminal."""
    tokens = format_count(plan.batch * plan.seq)
    return Answer(
        sentences=(
            f"{plan.model.title} on {plan.slice}, {tokens} tokens per step: {plan.layout}",
            f"{format_seconds(plan.time.step_s)} per step, bound by {plan.binds};"
            f" {plan.mfu.value:.1%} MFU ({plan.mfu.convention}), mesh {plan.mesh}",
        ),
        pictures=(_memory(plan),),
        tables=(_time(plan), *reasons_tables(plan)),
    )


def _time(plan: Plan) -> Table:
    time = plan.time
    rows = (
        ("forecast" if time.forecast else "roofline", time.step_s),
        ("lower: everything overlaps", time.lower_s),
        ("upper: nothing does", time.upper_s),
        ("matmuls", time.matmuls_s),
        ("of these recomputed", time.recompute_s),
        ("bubble", time.bubble_s),
        *((f"collectives over {a}", s) for a, s in time.collectives_s.items()),
    )
    columns = Column("what", "what"), Column("seconds", "seconds", show_seconds)
    return Table("time", "Time of a step", columns, rows)


def _memory(plan: Plan) -> Picture:
    held = plan.memory
    parts = tuple(part.name for part in held.parts)
    stack = Stack(f"stage {held.stage}", tuple(part.nbytes for part in held.parts))
    total, room = (format_si(n, "B") for n in (held.total_bytes, held.capacity_bytes))
    title = f"A chip holds {total} of {room}"
    words = "; ".join(f"{part.name} {format_si(part.nbytes, 'B')}" for part in held.parts)
    drawn = memory_svg(MemoryStacks(title, parts, (stack,), held.capacity_bytes))
    return Picture("memory", drawn, f"{title}: {words}")


def reasons_tables(plan: Plan) -> Iterator[Table]:
    """What was chosen, and why not the others."""
    chosen = tuple((c.what, c.value, c.because) for c in plan.choices)
    columns = (Column("what", "what"), Column("value", "chosen"), _WHY)
    yield Table("choices", "What was chosen", columns, chosen)
    others = tuple((a.layout, a.mesh, a.step_s, a.hbm_bytes, a.because) for a in plan.alternatives)
    columns = (
        *(Column("layout", "layout"), Column("mesh", "mesh")),
        *(Column("step_s", "step", show_seconds), Column("hbm_bytes", "HBM", show_bytes), _WHY),
    )
    if others:
        yield Table("others", "Why not the others", columns, others)
