"""A compiled step as an `Answer`: what it moves and computes, its memory, its schedule on a clock.

In: a `CompiledStep`, and its `CompiledTime` where the slice is known. Out: what terminal, page,
explorer and notebook show of it, and of the time in a verdict.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.op import UNITS
from rooflight.compile.time.step import CompiledTime, time_document
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    Value,
    show_bytes,
    show_count,
    show_seconds,
)
from rooflight.ui.answers.timeline import binned, timelines
from rooflight.ui.json_part import JsonPart
from rooflight.ui.svg.gantt import gantt_svg
from rooflight.ui.svg.memory import live_svg
from rooflight.units import format_count, format_seconds, format_si

MOST_ROWS = 60  # of a table in a page
FEW_ROWS = 12  # of one in a terminal
KIND, AXES, DTYPE = Column("kind", "collective"), Column("axes", "axes"), Column("dtype", "dtype")
NBYTES = Column("bytes", "bytes", show_bytes)
TIMES = Column("count", "times", show_count, unknown="unknown")
PER_STEP = Column("bytes_per_step", "bytes per step", show_bytes, unknown="unknown")
FROM = Column("source", "from")
_WIDEST = 900.0
_LEAST = 5e-10  # seconds; less is a scalar's copy
_WORDS = {"matrix": "matmuls", "kernels": "kernels", "memory": "vector and memory"}
_HOW_TO_READ = (
    "One device. Rest the pointer on a bar for what it is; short ones are drawn together."
)
_UNKNOWN = "Its time is unknown: name the slice that it was compiled for, and its mesh."
_ESTIMATED = {
    "compiler": "by the compiler's estimates and our network model, not measured",
    "roofline": "by our roofline of each kernel and our network model, not measured",
}
_KERNELS = {"matrix": "matmuls", "kernels": "attention", "memory": "few rows", "network": "network"}


def step_answer(
    step: CompiledStep,
    stage: str,
    time: CompiledTime | None = None,
    *,
    most: int | None = MOST_ROWS,
) -> Answer:
    """The sentences, facts and tables; with a slice, where the time goes comes first."""
    spent = (time_table(JsonPart(time_document(time) or {})),) if time else ()
    return Answer(
        tuple(_sentences(step, stage, time)),
        facts=tuple(_facts(step, time)),
        tables=(*spent, *step_tables(step, most)),
    )


def _sentences(step: CompiledStep, stage: str, time: CompiledTime | None) -> Iterator[str]:
    module = step.module
    unknown = len(step.of_unknown_flops)
    kernels = f" ({unknown} kernels or loops do not say theirs)" if unknown else ""
    moved, more = _moved(step)
    yield (
        f"{module.name}, {stage}, one of {format_count(module.num_partitions)} devices:"
        f" {format_si(step.known_flops, 'FLOP')} of matmuls per step{kernels},"
        f" {len(step.collectives)} collectives of {format_si(moved, 'B')} in all{more}."
    )
    if step.memory:
        total = format_si(step.memory.total_bytes, "B")
        yield f"The compiler needs {total} of main memory: {categories(step.memory.by_category)}."
    if step.recomputed_flops:
        part = step.recomputed_flops / step.known_flops
        yield f"{part:.0%} of the FLOPs are computed a second time to save memory."
    yield from (f"The compiler warns: {text}" for text in step.warnings)
    if time:
        yield time_sentence(JsonPart(time_document(time) or {}))


def _moved(step: CompiledStep) -> tuple[int, str]:
    """Bytes of all collectives, and whether there are more that nobody can count."""
    moved = [c.bytes_per_step for c in step.collectives]
    return sum(n or 0 for n in moved), " and an unknown rest" if None in moved else ""


def categories(nbytes: Mapping[str, int | float]) -> str:
    """What memory is made of, in words."""
    return ", ".join(f"{name} {format_si(size, 'B')}" for name, size in nbytes.items() if size)


def time_sentence(time: JsonPart, planned_s: float | None = None) -> str:
    """The compiled step, beside the planned one if there is a plan; ours has an error."""
    seconds, error = time.number("seconds"), time.number("error")
    how = _ESTIMATED[time.text("source") or "compiler"]
    how = f"give or take {error:.0%} {how}" if error else how
    if planned_s is None:
        return f"A step takes {format_seconds(seconds or 0)}{', ' if error else ' '}{how}."
    start = f"Planned step: {format_seconds(planned_s)}"
    if seconds is None:
        return f"{start}. The compiled step's time is unknown before the executable."
    ratio = f"{seconds / planned_s:.2f} times as long" if planned_s else "planned as nothing"
    return f"{start}; the compiled one: {format_seconds(seconds)}, {ratio} ({how})."


def _facts(step: CompiledStep, time: CompiledTime | None) -> Iterator[Fact]:
    if time:
        yield Fact("seconds", "a step", time.seconds, show_seconds, "compiled, not measured")
    moved, more = _moved(step)
    yield Fact("collective_bytes", "moved", moved, show_bytes, f"per step, on one device{more}")
    yield Fact("flops", "matmuls", step.known_flops, _show_flops, "per step")
    if step.memory:
        yield Fact("memory_bytes", "main memory", step.memory.total_bytes, show_bytes)


def _show_flops(value: float) -> str:
    return format_si(value, "FLOP")


def time_table(time: JsonPart, planned: JsonPart | None = None) -> Table:
    """A row a unit and a row each set of mesh axes; whose figures they are, below."""
    plan, busy, network = planned or JsonPart({}), time.part("busy_s"), time.part("network")
    by_axes = plan.part("collectives_s")
    rows = [
        _spent(_WORDS[unit], busy.number(unit), None, plan.number(f"{_WORDS[unit]}_s"))
        for unit in UNITS
        if busy.number(unit)
    ]
    for name, found, key in (
        *(
            (f"network {a}", network.part(a), "+".join(sorted(a.split("+"))))
            for a in network.fields
        ),
        ("copies between memories", time.part("copies"), ""),
    ):
        seconds = found.number("exposed_s"), found.number("hidden_s")
        rows.append(_spent(name, *seconds, by_axes.number(key)))
    rows.append(_spent("together", time.number("seconds"), None, plan.number("step_s")))
    columns = (
        Column("part", "of a step"),
        Column("waits_s", "the chip waits", show_seconds),
        Column("meanwhile_s", "meanwhile", show_seconds),
        *([Column("planned_s", "planned", show_seconds)] if planned else []),
    )
    cells = tuple(row[: len(columns)] for row in rows)
    return Table("time", "Where a step goes", columns, cells, foot=_basis(time))


def _spent(part: str, *seconds: float | None) -> tuple[Value, ...]:
    return (part, *(s if s and s >= _LEAST else None for s in seconds))


def _basis(time: JsonPart) -> str:
    """Whose figures the time is made of; nothing where a file does not say."""
    ops = {basis: time.part("ops").whole(basis) or 0 for basis in time.part("ops").fields}
    total, known = sum(ops.values()), ops.get("compiler", 0) + ops.get("capped", 0)
    if not total:
        return ""
    if ours := ops.get("roofline"):
        off = (
            f"{_KERNELS[unit]} {spread.number('median'):.0%} (9 of 10 within"
            f" {spread.number('p90'):.0%})"
            for unit in time.part("errors").fields
            for spread in [time.part("errors").part(unit)]
        )
        return (
            f"{format_count(ours)} of {format_count(total)} ops are priced by our roofline, off on"
            f" published kernels by a median of {', '.join(off)}; fusions without a matmul as a"
            f" matmul of few rows; without a figure: {format_count(len(time.words('unknown')))}."
        )
    return (
        f"{format_count(known)} of {format_count(total)} ops ({known / total:.0%}) carry"
        f" the compiler's cycle estimate, {format_count(ops.get('capped', 0))} of them held to the"
        f" time their bytes take; without one, at a roof: {format_count(ops.get('bound', 0))};"
        f" without a figure: {format_count(len(time.words('unknown')))}."
    )


def drawn_parts(
    step: CompiledStep, time: CompiledTime | None, limit_bytes: int | None
) -> dict[str, Answer]:
    """Pictures by heading: the schedule on a clock, live memory against its limit."""
    drawn = tuple(_schedules(time, step.module.entry)) if time else ()
    parts = {"The schedule": Answer(() if drawn else (_UNKNOWN,), pictures=drawn)}
    if step.live and step.live.nbytes:
        parts["Live memory"] = Answer((), pictures=(live_picture(step, limit_bytes),))
    return parts


def _schedules(time: CompiledTime, entry: str) -> Iterator[Picture]:
    for number, chart in enumerate(timelines(time, entry)):
        caption = f"{chart.title}. {chart.caption} {_HOW_TO_READ}"
        picture = gantt_svg(binned(chart), widest=_WIDEST)
        yield Picture(f"schedule{number or ''}", picture, caption, least=900)


def live_picture(step: CompiledStep, limit_bytes: int | None) -> Picture:
    """Live bytes of main memory along the schedule."""
    live = step.live
    assert live, "only a dump with live ranges is drawn"
    at_peak = live.names[live.peak_at]
    words = f"At most {format_si(live.peak, 'B')}, while {at_peak} runs."
    title = f"{step.module.name}: main memory in use"
    return Picture("memory", live_svg(title, live.nbytes, at_peak, limit_bytes), words)


def step_tables(step: CompiledStep, most: int | None) -> tuple[Table, ...]:
    """Collectives, loops, matmuls, moves and the peak; what is empty is left out."""
    found = (_collectives(step), _loops(step), _matmuls(step), _moves(step), _peak(step))
    return tuple(t.first(most) for t in found if t.rows)


def _collectives(step: CompiledStep) -> Table:
    """Equal ones in one row."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for c in step.collectives:
        hidden = bool(c.overlapped)
        key = (c.kind, c.axes, c.is_whole, c.form, c.dtype, c.nbytes, c.loops, hidden, c.algorithm)
        groups.setdefault(key, []).append(c)
    ordered = sorted(groups.values(), key=lambda g: -sum(c.bytes_per_step or 0 for c in g))
    form, loop, meanwhile = (
        Column(*names) for names in (("form", "form"), ("loop", "in"), ("hides", "meanwhile"))
    )
    columns = (KIND, AXES, form, DTYPE, NBYTES, TIMES, PER_STEP, loop, meanwhile, FROM)
    rows = tuple(map(_collective_row, ordered))
    return Table("collectives", "Collectives, most bytes per step first", columns, rows)


def _collective_row(group: Sequence[Collective]) -> tuple[Value, ...]:
    one = group[0]
    return (
        *(one.kind.replace("_", "-"), _axes(one), one.form, one.dtype, one.nbytes),
        *(total(c.count for c in group), total(c.bytes_per_step for c in group)),
        *(one.loops[-1] if one.loops else None, _meanwhile(one), _origin(one.source, one.op_name)),
    )


def total(values: Iterable[float | None]) -> float | None:
    """Their sum; unknown if one of them is."""
    found = list(values)
    return None if None in found else sum(value or 0 for value in found)


def _axes(one: Collective) -> str:
    if one.axes is None:
        return f"{one.group_size} devices" if one.group_size else "unknown"
    return "+".join(one.axes) + ("" if one.is_whole else f" (part: {one.group_size})")


def _meanwhile(one: Collective) -> str:
    if one.overlapped is None:
        return "unknown"
    names = list(one.overlapped)
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0] + more if names else "nothing"


def _origin(source: str, op_name: str) -> str | None:
    """File and line without the folders, else the end of the program's own name."""
    return base_name(source) or op_name.rpartition("/")[2] or None


def base_name(source: str) -> str:
    """A file and line without the folders."""
    return source.rpartition("/")[2]


def _loops(step: CompiledStep) -> Table:
    columns = (
        Column("name", "loop"),
        Column("trips", "trips", show_count, unknown="unknown"),
        Column("rounds", "rounds per step", show_count, unknown="unknown"),
        FROM,
    )
    rows = tuple(
        (loop.name, loop.trips, rounds, _origin(loop.source, loop.op_name))
        for loop, rounds in step.loops.values()
    )
    return Table("loops", "Loops", columns, rows)


def _matmuls(step: CompiledStep) -> Table:
    columns = (
        *(Column("name", "matmul"), Column("shape", "result")),
        *(Column("flops", "FLOPs", _show_flops, unknown="unknown"), TIMES),
        *(Column("cycles", "est. cycles", show_count), Column("again_for", "again for"), FROM),
    )
    found = [w for w in step.work if w.flops is None or w.flops > 0]
    rows = tuple(
        (
            *(w.name, w.shape, w.flops, w.count, w.estimated_cycles, w.recomputed or None),
            _origin(w.source, w.op_name),
        )
        for w in sorted(found, key=lambda w: -(w.flops_per_step or 0))
    )
    return Table("matmuls", "Matmuls, most FLOPs per step first", columns, rows)


def _moves(step: CompiledStep) -> Table:
    columns = (Column("name", "copy or transpose"), Column("shape", "what"), NBYTES, TIMES, FROM)
    rows = tuple(
        (w.name, w.shape, w.nbytes, w.count, _origin(w.source, w.op_name))
        for w in sorted(step.moves, key=lambda w: -w.nbytes * (w.count or 1))
    )
    return Table("moves", "Copies and transposes, most bytes per step first", columns, rows)


def _peak(step: CompiledStep) -> Table:
    buffers = list(step.memory.peak) if step.memory else []
    columns = (
        *(Column("name", "at the peak"), Column("shape", "what"), NBYTES),
        *(Column("memory", "in"), FROM),
    )
    rows = tuple(
        (b.name, b.shape or None, b.nbytes, b.memory, _origin(b.source, b.op_name))
        for b in buffers
        if b.nbytes * 100 >= buffers[0].nbytes
    )
    return Table("peak", "Live at the peak, largest first", columns, rows)
