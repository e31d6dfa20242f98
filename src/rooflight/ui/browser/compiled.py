"""A compiled program from a dump of XLA: collectives, schedule on a clock, live memory.

The numbers are those of `rooflight hlo`. Tables have the largest rows only, and the bars of a long
schedule are put together, so that any program opens at once.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.dump import Dump, choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime, compiled_time
from rooflight.hardware.mesh import Mesh, parse_mesh
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
from rooflight.ui.browser.opened import require_small
from rooflight.ui.browser.timeline_chart import binned, timelines
from rooflight.ui.svg.gantt import gantt_svg
from rooflight.ui.svg.live import LivePlot, live_svg
from rooflight.units import format_si, parse_sizes

MOST_ROWS = 60  # of a table
_WIDEST = 900.0


def dump_answer(path: Path, *, mesh: str, on: str, command: str) -> Answer:
    """Reads the largest module of a dump; with a slice, its time."""
    dump = choose_dump(find_dumps(path), module=None, where=path)
    require_small(dump.path)
    placed = _mesh(dump, mesh, on)
    axes = parse_sizes(mesh, what="mesh axis") if mesh and placed is None else None
    step = read_dump(dump, axes=placed.axes if placed else axes)
    time = compiled_time(step, placed) if placed else None
    return Answer(
        sentences=tuple(_sentences(step, dump, time)),
        facts=tuple(_facts(step, time)),
        pictures=(*_schedules(step, time), *_live(step, placed)),
        tables=tuple(_tables(step, time)),
        command=command,
    )


def _mesh(dump: Dump, mesh: str, on: str) -> Mesh | None:
    sizes = dump.axes.sizes.items() if dump.axes else ()
    text = mesh or ",".join(f"{name}={size}" for name, size in sizes)
    return parse_mesh(text, on=on) if on and text else None


def _sentences(step: CompiledStep, dump: Dump, time: CompiledTime | None) -> Iterator[str]:
    module = step.module
    yield (
        f"{module.name}, {dump.stage}, one of {module.num_partitions:,} devices:"
        f" {format_si(step.known_flops, 'FLOP')} of matmuls per step, {len(step.collectives)}"
        " collectives"
    )
    if time is None:
        yield "Name the slice it was compiled for, and its mesh, to see its schedule on a clock."
    else:
        yield (
            f"A step takes {show_seconds(time.seconds)} by the compiler's estimates and our network"
            " model, not measured."
        )
    yield from (f"The compiler warns: {text}" for text in step.warnings[:MOST_ROWS])


def _facts(step: CompiledStep, time: CompiledTime | None) -> Iterator[Fact]:
    if time:
        yield Fact("seconds", "a step", time.seconds, show_seconds, "compiled, not measured")
    moved = [c.bytes_per_step for c in step.collectives]
    known = sum(n for n in moved if n is not None)
    rest = "and an unknown rest" if None in moved else "a step, on one device"
    yield Fact("collective_bytes", "moved", known, show_bytes, rest)
    yield Fact("flops", "matmuls", step.known_flops, lambda v: format_si(v, "FLOP"), "a step")
    if step.memory:
        yield Fact("memory_bytes", "main memory", step.memory.total_bytes, show_bytes)


def _schedules(step: CompiledStep, time: CompiledTime | None) -> Iterator[Picture]:
    if time is None:
        return
    for number, chart in enumerate(timelines(time, step.module.entry)):
        picture = gantt_svg(binned(chart), widest=_WIDEST)
        caption = f"{chart.title}. {chart.caption} One device; short pieces are drawn together."
        yield Picture(f"schedule{number or ''}", picture, caption, least=900)


def _live(step: CompiledStep, mesh: Mesh | None) -> Iterator[Picture]:
    live = step.live
    if live is None or not live.nbytes:
        return
    usable = mesh.slice.chip.detail.get("hbm_usable_bytes") if mesh else None
    peak = live.names[live.peak_at]
    plot = LivePlot(
        f"{step.module.name}: main memory in use",
        live.nbytes,
        peak,
        int(usable) if usable else None,
    )
    words = f"At most {format_si(max(live.nbytes), 'B')}, while {peak} runs."
    yield Picture("memory", live_svg(plot), words)


def _tables(step: CompiledStep, time: CompiledTime | None) -> Iterator[Table]:
    if time:
        yield _time_table(time)
    yield collective_table(
        "collectives", "Collectives, most bytes first", _grouped(step.collectives)
    )
    if step.memory:
        rows = tuple((name, size) for name, size in step.memory.by_category.items() if size)
        columns = (Column("part", "main memory"), Column("bytes", "bytes", show_bytes))
        yield Table("memory", "What the compiler keeps in main memory", columns, rows)


def _time_table(time: CompiledTime) -> Table:
    busy = tuple((unit, s, None) for unit, s in time.busy_s.items() if s)
    network = tuple((f"network {a}", n.exposed_s, n.hidden_s) for a, n in time.network.items())
    copies = ("copies between memories", time.copies.exposed_s, time.copies.hidden_s)
    columns = (
        Column("part", "of a step"),
        Column("waits_s", "the chip waits", show_seconds),
        Column("meanwhile_s", "meanwhile", show_seconds),
    )
    return Table("time", "Where a step goes", columns, (*busy, *network, copies))


Grouped = Sequence[tuple[str, str, int, int | None, str]]  # kind, axes, bytes each, times, source


def _grouped(found: Sequence[Collective]) -> Grouped:
    return [
        (c.kind, "unknown" if c.axes is None else "+".join(c.axes), c.nbytes, c.count, c.source)
        for c in found
    ]


def collective_table(key: str, caption: str, found: Grouped) -> Table:
    """Equal ones in one row, the most bytes per step first, the smallest left out."""
    groups: dict[tuple[str, str, int, str], list[int | None]] = {}
    for kind, axes, nbytes, count, source in found:
        place = source.rpartition("/")[2]
        groups.setdefault((kind, axes, nbytes, place), []).append(count)
    rows: list[tuple[Value, ...]] = []
    for (kind, axes, nbytes, place), counts in groups.items():
        known = [n for n in counts if n is not None]
        times = sum(known) if len(known) == len(counts) else None
        total = None if times is None else times * nbytes
        rows.append((kind.replace("_", "-"), axes, nbytes, times, total, place or None))
    rows.sort(key=lambda row: -(row[4] if isinstance(row[4], int) else 0))
    left = len(rows) - MOST_ROWS
    more = f" ({left:,} smaller ones left out)" if left > 0 else ""
    columns = (
        Column("kind", "collective"),
        Column("axes", "axes"),
        Column("bytes", "bytes", show_bytes),
        Column("count", "times", show_count),
        Column("bytes_per_step", "bytes per step", show_bytes),
        Column("source", "from"),
    )
    return Table(key, caption + more, columns, tuple(rows[:MOST_ROWS]))
