"""The schedule of a compiled step as charts: the whole step, and a round of its longest loops."""

from collections.abc import Iterator
from dataclasses import replace

from rooflight.compile.time.step import MEMORY_LANE, CompiledTime, Span
from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow
from rooflight.units import format_count, format_seconds

_MOST_LOOPS = 4
_LEAST_SHARE = 0.02  # of the step
_LEGEND = {
    "P": "matmuls",
    "K": "kernels",
    "V": "vector and memory",
    "N": "transfer, meanwhile",
    "W": "transfer the chip waits for",
    "L": "loop",
}
_KINDS = {"matrix": "P", "kernels": "K", "memory": "V", "loops": "L"}
_ROWS = {"matrix": "matrix unit", "kernels": "matrix unit", "memory": "vector, memory"}
_ORDER = ("loops", "matrix unit", "vector, memory", MEMORY_LANE)


def timelines(time: CompiledTime, entry: str) -> Iterator[Gantt]:
    """The entry, then one round of each loop that takes the most of the step."""
    yield _chart("The step", f"{format_seconds(time.seconds)} in all.", time.rounds[entry])
    totals = _loops(time, entry)
    longest = sorted(totals.items(), key=lambda item: -item[1][1])
    for body, (name, seconds, rounds) in longest[:_MOST_LOOPS]:
        if seconds < _LEAST_SHARE * time.seconds:
            continue
        caption = (
            f"One of {format_count(rounds)} rounds; together they take {format_seconds(seconds)},"
            f" {seconds / time.seconds:.0%} of the step."
        )
        if spans := time.rounds[body]:
            yield _chart(f"A round of {name}", caption, spans)


def _loops(time: CompiledTime, entry: str) -> dict[str, tuple[str, float, int]]:
    """Name, seconds per step and rounds per step of every loop, by its body."""
    found: dict[str, tuple[str, float, int]] = {}
    waiting = [(entry, 1)]
    while waiting:
        here, times = waiting.pop()
        for span in time.rounds[here]:
            if span.calls:
                rounds = times * span.trips
                _, seconds, before = found.get(span.calls, ("", 0.0, 0))
                total = seconds + times * span.seconds
                found[span.calls] = (span.name, total, before + rounds)
                waiting.append((span.calls, rounds))
    return found


def _chart(title: str, caption: str, spans: tuple[Span, ...]) -> Gantt:
    rows: dict[str, list[Bar]] = {}
    for span in spans:
        rows.setdefault(_row(span), []).extend(_bars(span))
    ordered = [*(r for r in _ORDER if r in rows), *(r for r in rows if r not in _ORDER)]
    return Gantt(
        title=title,
        caption=caption,
        rows=tuple(GanttRow(name, tuple(rows[name])) for name in ordered),
        legend=_LEGEND,
        number="",
    )


def binned(chart: Gantt, *, most: int = 600) -> Gantt:
    """The same chart with short bars together, so that a long schedule stays a small picture.

    A row is cut into `most` parts; bars that end in the part they begin in become one, of the
    kind that takes most of it.
    """
    width = chart.end / most
    rows = tuple(replace(row, bars=tuple(_binned(row.bars, width))) for row in chart.rows)
    return replace(chart, rows=rows)


def _binned(bars: tuple[Bar, ...], width: float) -> Iterator[Bar]:
    short: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        if short and (bar.end - bar.start >= width or bar.end - short[0].start > width):
            yield _together(short)
            short = []
        if bar.end - bar.start >= width:
            yield bar
        else:
            short.append(bar)
    if short:
        yield _together(short)


def _together(bars: list[Bar]) -> Bar:
    if len(bars) == 1:
        return bars[0]
    longest = max(bars, key=lambda bar: bar.end - bar.start)
    busy = format_seconds(sum(bar.end - bar.start for bar in bars))
    words = f"{format_count(len(bars))} pieces, {busy} in all; the longest: {longest.tooltip}"
    return replace(longest, start=bars[0].start, end=bars[-1].end, tooltip=words)


def _row(span: Span) -> str:
    if span.row in _KINDS or span.row == MEMORY_LANE:
        return _ROWS.get(span.row, span.row)
    return f"network {span.row}"


def _bars(span: Span) -> Iterator[Bar]:
    """Work as one bar; of a transfer, the part that hides and the part that is waited for."""
    end = span.start_s + span.seconds
    words = f"{span.name}: {format_seconds(span.seconds)}"
    if kind := _KINDS.get(span.row):
        more = f", {span.trips} rounds" if span.calls else ""
        yield Bar(kind, kind, span.start_s, end, words + more)
        return
    waits = min(span.waits_s, span.seconds)
    if waits < span.seconds:
        yield Bar("N", "N", span.start_s, end - waits, words)
    if waits:
        waited = f"{words}, waited for {format_seconds(span.waits_s)}"
        yield Bar("W", "W", end - waits, end, waited)
