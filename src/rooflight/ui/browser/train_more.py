"""Train, what takes longer: one further look at the plan, and why not another layout."""

from collections.abc import Callable, Iterator, Mapping

from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.plan.training.derive.matmuls import matmuls_of
from rooflight.plan.training.questions.curves import SchemeCurve, time_by_batch
from rooflight.plan.training.questions.flips import Flip, Side, flips
from rooflight.plan.training.questions.scaling import Scaling, scale
from rooflight.plan.training.questions.why_not import WhyNot, why_not
from rooflight.plan.training.search.constraint import degrees_text, parse_constraint
from rooflight.ui.browser.answer import (
    Answer,
    Column,
    Picture,
    Table,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.browser.plan_pictures import (
    drawn_pipeline,
    lost,
    pipeline_chart,
    scaling_picture,
    time_plot,
)
from rooflight.ui.browser.train import FIELDS, TrainAnswer, answer, ask, command
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.gantt import gantt_svg
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.ui.svg.time import time_svg
from rooflight.units import format_count, format_si

_MOST_MATMULS = 6
_MOST_DRAWN = 64  # devices of a pipeline


def more(question: ViewQuery) -> Answer:
    """The look that was chosen, the pipeline if there is one, and the layout that was asked for."""
    planned = ask(question, count=1)
    parts = [_LOOKS[question.text("look")](question, planned), *_pipeline(planned)]
    if question.text("why_not"):
        parts.append(_why_not(question, planned))
    return Answer(
        sentences=tuple(s for part in parts for s in part.sentences),
        pictures=tuple(p for part in parts for p in part.pictures),
        tables=tuple(t for part in parts for t in part.tables),
        command=parts[-1].command,
    )


def _time(question: ViewQuery, planned: TrainAnswer) -> Answer:
    asked = planned.asked
    curves = time_by_batch(asked, planned.best)
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
        sentences=(f"{_binding(planned, curves[-1])}{none}",),
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
        command=f"{command(question)} --html plan.html",
    )


def _binding(planned: TrainAnswer, own: SchemeCurve) -> str:
    bind = own.matmuls_bind_from(planned.asked.overlap)
    if bind is None:
        return "At no batch here do the collectives of this plan hide behind its matmuls."
    return f"The collectives of this plan hide behind its matmuls from {format_count(bind)} tokens."


def _roofline(question: ViewQuery, planned: TrainAnswer) -> Answer:
    chip = planned.asked.on.chip
    compute = chip.matmul_dtype(planned.asked.dtype.name)
    matmuls = matmuls_of(planned.asked, planned.best)
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
        command=f"{command(question)} --html plan.html",
    )


def _scaling(question: ViewQuery, planned: TrainAnswer) -> Answer:
    curve = scale(planned.asked, "strong")
    rows = tuple(
        (
            *(str(p.on), p.on.num_chips, p.step_s, p.tokens_per_s if p.best else None),
            *(curve.efficiency(p) if p.best else None, p.binds, lost(p) or None),
            degrees_text(p.best) if p.best else None,
        )
        for p in curve.points
    )
    columns = (
        Column("on", "slice"),
        Column("num_chips", "chips", show_count),
        Column("step_s", "step", show_seconds),
        Column("tokens_per_s", "tokens/s", lambda v: format_si(v, "").strip()),
        Column("efficiency", "efficiency", lambda v: f"{v:.0%}"),
        Column("binds", "bound by"),
        Column("lost_to", "lost most to"),
        Column("degrees", "layout"),
    )
    picture = Picture(
        "scaling",
        scaling_picture(planned.model.title, curve),
        "Tokens per second beside perfect scaling, and what a chip does as a part of its best.",
    )
    return Answer(
        sentences=(_bend(curve),),
        pictures=(picture,) if curve.has_points else (),
        tables=(Table("scaling", "The same batch on ever more chips", columns, rows),),
        command=f"{command(question)} --scaling strong",
    )


def _bend(curve: Scaling) -> str:
    bend = curve.bend
    if bend is None:
        return f"Strong scaling does not bend up to {curve.points[-1].on}."
    part = f"{curve.efficiency(bend):.0%}"
    return f"Strong scaling bends at {bend.on}: {part} of its best, bound by {bend.binds}."


def _flips(question: ViewQuery, planned: TrainAnswer) -> Answer:
    found = flips(planned.asked, planned.best)
    columns = (
        Column("tokens", "tokens per step", show_count),
        Column("side", "where"),
        Column("wins", "wins there"),
        Column("ratio", "the plan takes", lambda v: f"{v:.3f} times as long"),
        Column("verdict", "because"),
    )
    rows = tuple(
        (f.lost.tokens, "above" if f.is_above else "below", _winner(f.lost), f.ratio, _why(f))
        for f in found.found
    )
    return Answer(
        sentences=(
            f"{degrees_text(planned.best)} was tried from {format_count(found.least)} to"
            f" {format_count(found.most)} sequences: another layout wins at {len(rows)} places.",
        ),
        tables=(Table("flips", "Where another layout wins", columns, rows),) if rows else (),
        command=f"{command(question)} --flips",
    )


def _winner(side: Side) -> str:
    if side.best is None:
        return "nothing fits" if side.divides else "no layout divides"
    return degrees_text(side.best)


def _why(flip: Flip) -> str:
    return "the old one is slower" if flip.ratio is not None else f"the old one {flip.verdict}"


def _pipeline(planned: TrainAnswer) -> Iterator[Answer]:
    run = drawn_pipeline(planned.asked, planned.best)
    if run is None or run.schedule.stages > _MOST_DRAWN:
        return
    drawn, count = run.schedule.microbatches, planned.best.micro.count
    fewer = f" Drawn with {drawn} of its {count} microbatches." if drawn < count else ""
    chart = pipeline_chart(run)
    caption = f"{chart.caption}. All stages run in step.{fewer}"
    yield Answer((), pictures=(Picture("pipeline", gantt_svg(chart), caption, least=900),))


def _why_not(question: ViewQuery, planned: TrainAnswer) -> Answer:
    wanted = parse_constraint(question.text("why_not"), planned.asked.graph)
    found = why_not(planned.asked, wanted, planned.best)
    columns = (
        Column("name", "of a step"),
        Column("seconds", wanted.text, show_seconds),
        Column("best_s", "the plan", show_seconds),
    )
    rows = tuple((t.name, t.seconds, t.best_s) for t in found.terms)
    return Answer(
        sentences=tuple(_verdict(found)),
        tables=(Table("why_not", f"Why not {wanted.text}", columns, rows),) if rows else (),
        command=f"{command(question)} --why-not {question.text('why_not')}",
    )


def _verdict(found: WhyNot) -> Iterator[str]:
    because = "" if found.verdict == "wins" else f": {found.because}"
    yield f"{found.wanted.text} {_VERDICTS[found.verdict]}{because}"
    yield from (f"Outside the space: {reason}" for reason in found.outside)
    for fix in found.fixes:
        yield f"What would fit: {fix.change} (saves {show_bytes(fix.saves_bytes)}, {fix.cost})"


_VERDICTS = {
    "wins": "is the plan",
    "ties": "ties with the plan",
    "faster": "is faster than the plan",
    "slower": "is slower than the plan",
    "does not fit": "does not fit",
    "does not divide": "does not divide",
}
_LOOKS: Mapping[str, Callable[[ViewQuery, TrainAnswer], Answer]] = {
    "time against batch": _time,
    "matmuls under the roof": _roofline,
    "strong scaling": _scaling,
    "flip points": _flips,
}

VIEW = View(
    "train",
    "Train",
    "The fastest layouts of a model on a slice: ranked, with their memory and what binds them.",
    (
        *FIELDS,
        Field(
            *("look", "And then", "choice", "time against batch", "the second, slower answer"),
            choices=tuple(_LOOKS),
        ),
        Field(
            *("why_not", "Why not", "text", "", "tp=16, fsdp=64,tp=8, pp=4 or remat=none"),
            is_optional=True,
        ),
    ),
    answer,
    more,
)
