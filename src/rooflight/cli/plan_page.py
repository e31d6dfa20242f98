"""A plan as a person reads it: the answer, the runners-up, the reasons."""

from collections.abc import Sequence

from rooflight.plan.candidate import Candidate, Question
from rooflight.plan.search import Search
from rooflight.plan.training import candidate_run, schedule_text
from rooflight.reconcile.expected import Expected, expected_step
from rooflight.records import Choice
from rooflight.report.table import table
from rooflight.units import format_count, format_seconds, format_si


def plan_text(
    title: str,
    question: Question,
    found: Search,
    choices: Sequence[Choice] = (),
    compiled: Sequence[str] = (),
    num_refuted: int = 0,
) -> str:
    """The whole page; `compiled` is a word of the compiler for each layout, if it was asked.

    The last `num_refuted` layouts cannot be had, so nothing is expected of them.
    """
    possible = found.candidates[: len(found.candidates) - num_refuted] or found.candidates
    said = [expected_step(candidate_run(question, c)) for c in possible]
    notes = [f"{c.what} {c.value}: {c.because}" for c in choices]
    return "\n".join(
        [
            _answer(title, question, found.candidates[0]),
            *notes,
            _counts(found),
            "",
            _table(question, found, compiled, standings(said)),
            "",
            _why(question, found.candidates[0]),
            expectation(said),
            _room(found.candidates[0]),
        ]
    )


def _room(best: Candidate) -> str:
    left, most = best.memory.headroom_bytes, best.memory.hbm_bytes
    return (
        f"HBM: the first leaves {format_si(left, 'B')} of {format_si(most, 'B')}, a closed form of"
        " what our program holds; the compiler has the last word (`rooflight verify --help`)"
    )


def expectation(said: Sequence[Expected | None]) -> str:
    """What the steps will take by measured runs of the chip, or that nobody measured it."""
    first = said[0]
    if first is None:
        return "uncalibrated: what the roofs allow, without overheads; a thousandth is a tie"
    one = first.calibration
    return (
        f"expected: {format_seconds(first.seconds)}, 80 % between {format_seconds(first.low_s)}"
        f" and {format_seconds(first.high_s)} ({one.engine} on {one.chip}: {one.rows} runs, median"
        f" error {one.median_error:.1%}); step is what the roofs allow, a thousandth is a tie;"
        " tied: the interval meets that of the layout expected to be fastest"
    )


def standings(said: Sequence[Expected | None]) -> list[list[str]]:
    """Expected seconds of each layout and its standing: two whose intervals meet are tied."""
    known = [e for e in said if e]
    if not known:
        return []
    best = min(known, key=lambda e: e.seconds)
    return [[format_seconds(e.seconds), _standing(e, best)] if e else ["-", "-"] for e in said]


def _standing(one: Expected, best: Expected) -> str:
    if one is best:
        return "fastest"
    return "tied" if one.low_s <= best.high_s else "slower"


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


def _table(
    question: Question, found: Search, compiled: Sequence[str], stand: Sequence[list[str]]
) -> str:
    header = ("", "layout", "mesh", "in pieces", "step", "bound by", "collectives", "bubble")
    header += ("remat", "HBM", "MFU")
    rows = [[str(i), *_row(c, question)] for i, c in enumerate(found.candidates, 1)]
    if compiled:
        header += ("compiled",)
        rows = [[*row, word] for row, word in zip(rows, compiled, strict=True)]
    align = "rlllrlrrlrrl"[: len(header)]
    if stand:
        header += ("expected", "")
        cells = [*stand, *[["-", "-"]] * (len(rows) - len(stand))]
        rows = [[*row, *cell] for row, cell in zip(rows, cells, strict=True)]
    return table(header, rows, align=f"{align}rl"[: len(header)])


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
