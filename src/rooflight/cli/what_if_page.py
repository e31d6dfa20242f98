"""What `rooflight plan --what-if` and `--sensitivity` show."""

from collections.abc import Sequence

from rooflight.cli.candidate_page import candidate_document, compare, short_text
from rooflight.plan.training.questions.what_if import KNOBS, WhatIf
from rooflight.plan.training.search.constraint import degrees_text
from rooflight.plan.training.time.stage_time import Overlap
from rooflight.ui.text.table import table
from rooflight.units import format_seconds


def what_if_text(title: str, answer: WhatIf, overlap: Overlap) -> str:
    """The new step time, then both plans term by term."""
    factors = ", ".join(f"{name} x {factor:g}" for name, factor in answer.factors.items())
    before, after = answer.before, answer.after
    if after is None or answer.change is None:
        return (
            f"{title} with {factors}: nothing fits any more\nbefore: {short_text(before, overlap)}"
        )
    times = [format_seconds(c.step_s) for c in (before, after)]
    return "\n".join(
        [
            f"{title} with {factors}: {times[0]} -> {times[1]} per step,"
            f" {answer.change:.3f} times as long",
            f"before: {short_text(before, overlap)}",
            f"after:  {short_text(after, overlap)}",
            "",
            compare(("after", "before"), (after, before), overlap),
        ]
    )


def what_if_document(answer: WhatIf, overlap: Overlap) -> dict[str, object]:
    return {
        "question": "what-if",
        "factors": dict(answer.factors),
        "change": answer.change,
        "before": candidate_document(answer.before, overlap),
        "after": candidate_document(answer.after, overlap) if answer.after else None,
    }


def sensitivity_text(title: str, answers: Sequence[WhatIf], overlap: Overlap) -> str:
    """A row for each rate: what a tenth more of it does to the step."""
    before = answers[0].before
    moved = [a for a in answers if a.change and abs(a.change - 1) > 1e-6]
    most = next(iter(moved), None)
    binds = f"{_name(most)} moves the step most" if most else "no rate alone moves the step"
    rows = [(_name(a), KNOBS[_name(a)].help, _percent(a), _layout(a)) for a in answers]
    header = ("10 % more", "what it is", "step time", "layout")
    return "\n".join(
        [
            f"{title}: {binds}",
            f"the plan: {short_text(before, overlap)}",
            "",
            table(header, rows, align="llrl"),
            "",
            "each row is planned anew; a rate that is hidden behind another moves nothing",
        ]
    )


def _name(answer: WhatIf) -> str:
    return next(iter(answer.factors))


def _percent(answer: WhatIf) -> str:
    if answer.change is None:
        return "does not fit"
    part = answer.change - 1
    return "-" if abs(part) < 1e-6 else f"{part:+.2%}"


def _layout(answer: WhatIf) -> str:
    """The new layout, if it is another."""
    if answer.after is None or answer.after.degrees == answer.before.degrees:
        return "the same"
    return degrees_text(answer.after)


def sensitivity_document(answers: Sequence[WhatIf], overlap: Overlap) -> dict[str, object]:
    return {
        "question": "sensitivity",
        "before": candidate_document(answers[0].before, overlap),
        "rates": [
            {
                "rate": _name(a),
                "factor": a.factors[_name(a)],
                "change": a.change,
                "after": candidate_document(a.after, overlap) if a.after else None,
            }
            for a in answers
        ],
    }
