"""A plan as a person reads it: the answer, the runners-up, the reasons."""

from collections.abc import Sequence

from rooflight.plan.search import Candidate, Question, Search
from rooflight.plan.training import schedule_text
from rooflight.records import Choice
from rooflight.report.table import table
from rooflight.units import format_count, format_seconds, format_si


def plan_text(title: str, question: Question, found: Search, choices: Sequence[Choice] = ()) -> str:
    """The whole page."""
    notes = [f"{c.what} {c.value}: {c.because}" for c in choices]
    return "\n".join(
        [
            _answer(title, question, found.candidates[0]),
            *notes,
            _counts(found),
            "",
            _table(question, found),
            "",
            _why(question, found.candidates[0]),
            "uncalibrated: what the roofs allow, without overheads; a thousandth is a tie",
            "HBM: a closed form; the program as compiled holds more (`rooflight verify --help`)",
        ]
    )


def _answer(title: str, question: Question, best: Candidate) -> str:
    time, overlap = best.time, question.overlap
    tokens = format_count(question.batch * question.seq)
    pieces = schedule_text(best)
    return (
        f"{title} on {question.on}, {tokens} tokens a step: {best.layout.text} with {best.mesh},"
        f" {pieces + ', ' if pieces else ''}{format_seconds(time.expected_s(overlap))},"
        f" bound by {time.binds(overlap)}"
    )


def _counts(found: Search) -> str:
    skipped = f", {format_count(found.num_too_slow)} meshes left out: FLOPs and bubble alone take"
    return (
        f"{format_count(found.num_priced)} layouts that divide were priced,"
        f" {format_count(found.num_too_large)} of them cannot fit"
        f"{skipped + ' longer' if found.num_too_slow else ''}"
    )


def _table(question: Question, found: Search) -> str:
    header = ("", "layout", "mesh", "in pieces", "step", "bound by", "collectives", "bubble")
    header += ("remat", "HBM", "MFU")
    rows = [[str(i), *_row(c, question)] for i, c in enumerate(found.candidates, 1)]
    return table(header, rows, align="rlllrlrrlrr")


def _row(candidate: Candidate, question: Question) -> list[str]:
    time, overlap = candidate.time, question.overlap
    return [
        candidate.layout.text,
        str(candidate.mesh),
        schedule_text(candidate) or "-",
        format_seconds(time.expected_s(overlap)),
        time.binds(overlap),
        format_seconds(time.collectives_s(overlap)),
        format_seconds(time.bubble_s) if time.bubble_s else "-",
        candidate.remat.name,
        format_si(candidate.memory.total_bytes, "B"),
        f"{time.mfu(overlap):.1%}",
    ]


def _why(question: Question, best: Candidate) -> str:
    time, overlap = best.time, question.overlap
    products = format_seconds(time.products_s)
    again = f" ({format_seconds(time.again_s)} done again)" if time.again_s else ""
    collectives = format_seconds(time.collectives_s(overlap))
    bubble = f", then {format_seconds(time.bubble_s)} of bubble" if time.bubble_s else ""
    return (
        f"why: {products} of products{again} against {collectives} of collectives,"
        f" which overlap{bubble}; nothing overlapped it takes {format_seconds(time.upper_s)}"
    )
