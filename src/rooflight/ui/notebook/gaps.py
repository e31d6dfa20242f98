"""The gap between a plan and a run as HTML: a waterfall of causes, terms in three columns."""

from rooflight.measure.reconcile.gap import Gap
from rooflight.ui.html.page import Grid, figure, grid
from rooflight.ui.notebook.frame import framed
from rooflight.ui.svg.waterfall import Change, Waterfall, waterfall_svg
from rooflight.units import format_seconds


def gap_html(gap: Gap) -> str:
    """From the planned step to the measured one."""
    planned, measured = format_seconds(gap.planned_s), format_seconds(gap.measured_s)
    changes = tuple(Change(one.name, one.seconds, one.witness) for one in gap.causes)
    rest = Change("unattributed", gap.unattributed_s, "")
    title = "A step, planned to measured"
    picture = waterfall_svg(
        Waterfall(title, "planned", gap.planned_s, (*changes, rest), "measured", gap.measured_s)
    )
    words = "; ".join(f"{one.name} {format_seconds(one.seconds)}" for one in (*changes, rest))
    rows = tuple(
        (term.name, *map(_seconds, (term.planned_s, term.compiled_s, term.measured_s)))
        for term in gap.terms
    )
    table = Grid("a step", ("term", "planned", "compiled", "measured"), rows, "lrrr")
    drawn = figure(picture, caption=title, describe=words)
    return framed(f"planned {planned}, measured {measured}", drawn, grid(table))


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
