"""The gap of a run as a picture: from the planned step to the measured one, cause by cause."""

from collections.abc import Iterator

from rooflight.measure.reconcile.gap import Cause, Gap, Witness
from rooflight.measure.reconcile.run import Reconciled
from rooflight.ui.svg.waterfall import Waterfall, WaterfallBar, waterfall_svg

_SMALL = 0.005  # of a gap; smaller causes are one line


def merged(gap: Gap) -> Iterator[Cause]:
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


def gap_picture(found: Reconciled) -> str:
    """Both totals, and every change between them."""
    gap = found.gap
    changes = [WaterfallBar(cause.name, cause.seconds, cause.witness) for cause in merged(gap)]
    return waterfall_svg(
        Waterfall(
            f"{found.plan.model.title}, {found.plan.layout}: a step, planned to measured",
            "planned",
            gap.planned_s,
            (*changes, WaterfallBar("unattributed", gap.unattributed_s, "")),
            "measured",
            gap.measured_s,
        )
    )
