"""A run held against its plan as an `Answer`: planned, compiled, measured, the causes between them.

In: what `measure.reconcile` found, and a calibration fitted to several runs. Out: what terminal,
page, explorer and notebook show of it.
"""

import shlex
from collections.abc import Iterator

from rooflight.measure.published.validation import Replay
from rooflight.measure.reconcile.calibrate import RunCalibration
from rooflight.measure.reconcile.contribute import Contribution, Moved
from rooflight.measure.reconcile.gap import Cause, Gap, Witness
from rooflight.measure.reconcile.run import Reconciled
from rooflight.ui.answer import Answer, Column, Picture, Table, show_seconds
from rooflight.ui.answers.hardware import constants_table
from rooflight.ui.svg.waterfall import Waterfall, WaterfallBar, waterfall_svg
from rooflight.units import format_count, format_seconds

_SMALL = 0.005  # of a gap; smaller causes are one line
_SCOPES = 8


def run_answer(found: Reconciled, name: str = "", on: str | None = None) -> Answer:
    """One run: how far from its plan, and why; `name` is what its folder was called."""
    plan, name = found.plan, name or str(found.folder)
    places = (
        Column("where", "where"),
        Column("seconds", "took", show_seconds),
        Column("roof_s", "at the roof", show_seconds),
    )
    rows = tuple((s.name, s.seconds, s.roof_s) for s in found.scopes[:_SCOPES])
    gap = gap_answer(found.gap, f"{plan.model.title}, {plan.layout}")
    return Answer(
        sentences=(
            f"{name}: {plan.model.title} on {found.mesh.slice}, {plan.layout} with"
            f" {found.mesh}, {format_count(plan.tokens)} tokens per step",
            *gap.sentences,
            *_basis(found),
            _spent(found),
        ),
        tables=(*gap.tables, Table("scopes", "Where most is lost", places, rows)),
        pictures=gap.pictures,
        command=f"rooflight reconcile {shlex.quote(name)}" + (f" --on {on}" if on else ""),
    )


def gap_answer(gap: Gap, title: str = "") -> Answer:
    """From the planned step to the measured one, cause by cause."""
    planned, measured = format_seconds(gap.planned_s), format_seconds(gap.measured_s)
    return Answer(
        sentences=(
            f"planned {planned}, measured {measured}: {_signed(gap.seconds)}, of which"
            f" {gap.explained:.0%} is explained by causes that were measured alone",
        ),
        tables=(_terms(gap), _causes(gap)),
        pictures=(_picture(gap, f"{title}: a step" if title else "A step"),),
    )


def contribution_answer(given: Contribution, moved: Moved) -> Answer:
    """A run of one's own as a row: measured, forecast, and the constants that it moves."""
    said, row, measured = moved.said, given.row, given.row["measured"]
    placed = row["placed"]
    columns = (
        Column("constant", "constant"),
        Column("ships", "ships", lambda x: f"{x:.3g}"),
        Column("with_it", "with it", lambda x: f"{x:.3g}"),
        Column("change", "change", lambda x: f"{x:+.1%}"),
    )
    moves = [(name, old, new, new / old - 1 if old else 1.0) for name, old, new in moved.moves]
    moves.sort(key=lambda move: -abs(move[3]))
    caption = f"What it moves of {moved.place}"
    return Answer(
        sentences=(
            f"{row['id']}: {row['model']} on {placed['on']}, {placed['layout']} over"
            f" {placed['mesh']}",
            f"measured: {format_seconds(said.measured_s)} per step, 80 % of {measured['n']} steps"
            f" within {measured['spread']:.1%} ({row['note']})",
            f"forecast: {format_seconds(said.predicted_s)} ({_off(said.predicted_s, said)}),"
            f" {'inside' if said.is_inside else 'outside'} its 80 % interval",
            f"with this run in the fit of {moved.place}: {format_seconds(moved.after_s)}"
            f" ({_off(moved.after_s, said)})",
            *([f"assumed: {', '.join(said.assumed)}"] if said.assumed else []),
            *([] if moves else ["it moves no constant"]),
        ),
        tables=(Table("moves", caption, columns, tuple(moves)),) if moves else (),
    )


def _off(seconds: float, said: Replay) -> str:
    return f"{seconds / said.measured_s - 1:+.1%}"


def _basis(found: Reconciled) -> Iterator[str]:
    one = found.expected
    known = one.basis.calibration
    if known.rows:
        yield (
            f"the calibration of {known.chip} expected {format_seconds(one.seconds)} (80 % between"
            f" {format_seconds(one.low_s)} and {format_seconds(one.high_s)})"
        )
    if found.compiled.collectives_s is None:
        yield "the compiled collectives are unknown: the run kept no program, or one not understood"


def _spent(found: Reconciled) -> str:
    spent = found.found.spent
    return (
        f"of {format_seconds(spent.wall_s)} since the run began {spent.share:.0%} went into steps"
        f" that count; {format_seconds(spent.repeated_s)} into repeated steps,"
        f" {format_seconds(spent.saving_s)} into waiting for saves, {spent.attempts}"
        f" attempt{'s' * (spent.attempts > 1)}"
    )


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + format_seconds(abs(seconds))


def _terms(gap: Gap) -> Table:
    columns = (
        Column("term", "term"),
        *(Column(f"{n}_s", n, show_seconds) for n in ("planned", "compiled", "measured")),
    )
    rows = tuple((t.name, t.planned_s, t.compiled_s, t.measured_s) for t in gap.terms)
    return Table("terms", "Planned, compiled, measured", columns, rows)


def _causes(gap: Gap) -> Table:
    columns = (
        Column("cause", "from planned to measured"),
        Column("seconds", "seconds", _signed),
        Column("share", "of the gap", lambda v: f"{v:.0%}"),
        Column("witness", "measured by", unknown=""),
    )
    rows = (*((c.name, c.seconds, c.witness) for c in _merged(gap)), _left(gap))
    return Table(
        *("causes", "The causes of the gap", columns),
        tuple((name, s, s / gap.seconds if gap.seconds else None, by) for name, s, by in rows),
    )


def _left(gap: Gap) -> tuple[str, float, str | None]:
    return "unattributed", gap.unattributed_s, None


def _merged(gap: Gap) -> Iterator[Cause]:
    """The causes, the largest first, those that matter little as one for each witness."""
    least = _SMALL * abs(gap.seconds)
    small = [one for one in gap.causes if abs(one.seconds) < least]
    large = [one for one in gap.causes if abs(one.seconds) >= least]
    yield from sorted(large, key=lambda one: -abs(one.seconds))
    witnesses: dict[Witness, None] = {one.witness: None for one in small}
    for witness in witnesses:
        ones = [one for one in small if one.witness == witness]
        name = ones[0].name if len(ones) == 1 else f"{len(ones)} smaller ones"
        yield Cause(name, sum(one.seconds for one in ones), witness)


def _picture(gap: Gap, title: str) -> Picture:
    """Both totals, and every change between them."""
    rows = (*((c.name, c.seconds, c.witness) for c in _merged(gap)), _left(gap))
    bars = tuple(WaterfallBar(name, seconds, by or "") for name, seconds, by in rows)
    whole = ("planned", gap.planned_s, bars, "measured", gap.measured_s)
    drawn = waterfall_svg(Waterfall(f"{title}, planned to measured", *whole))
    caption = "From the planned step to the measured one; hatched is what nobody explains."
    return Picture("waterfall", drawn, caption)


def fitted_answer(fitted: RunCalibration) -> Answer:
    """The constants, and how far a fit to the other runs was off for each."""
    one = fitted.calibration
    rows = tuple(
        (str(folder), measured, said, said / measured - 1)
        for folder, measured, said in zip(
            fitted.folders, fitted.measured_s, fitted.predicted_s, strict=True
        )
    )
    columns = (
        Column("run", "run"),
        Column("measured_s", "measured", show_seconds),
        Column("predicted_s", "by the others", show_seconds),
        Column("off", "off", lambda v: f"{v:+.1%}"),
    )
    return Answer(
        sentences=(
            f"a calibration of {one.chip}, {one.blocks}, from {one.rows} runs; each predicted by"
            f" the others: median error {one.median_error:.1%}, mean {one.mean_error:.1%}",
        ),
        tables=(Table("runs", "Runs", columns, rows), constants_table(one.values)),
    )
