"""Streaming of Chip: an array in chunks from HBM through VMEM to a unit and back, step by step."""

import math
from dataclasses import dataclass

from rooflight.costs.roofline import OpTime, matmul_time, vector_time
from rooflight.costs.streaming import ChunkSpan, ChunkTime, stream
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
from rooflight.ui.answer import (
    Answer,
    Fact,
    Film,
    Frame,
    Picture,
    show_bytes,
    show_seconds,
    show_share,
)
from rooflight.ui.browser.view import ViewQuery
from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow, gantt_svg
from rooflight.ui.svg.stream import StreamStill, stream_svg
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class _Op:
    """What is streamed: the whole op, and the bytes of one chunk."""

    name: str
    unit: str
    time: OpTime
    resident_bytes: int  # loaded once, before the first chunk
    in_bytes: int  # of all chunks
    out_bytes: int


def stream_answer(question: ViewQuery, chip: Chip) -> Answer:
    """When each chunk is loaded, worked on and stored; what the unit waits for."""
    op = _op(question, chip)
    count, buffers = question.count("chunks"), question.count("buffers")
    _check_vmem(chip, op, count, buffers)
    work, memory = op.time.roofs
    chunks = [
        ChunkTime(
            load_s=(op.in_bytes / count + (0 if i else op.resident_bytes)) / memory.rate,
            work_s=work.seconds / count,
            store_s=op.out_bytes / count / memory.rate,
        )
        for i in range(count)
    ]
    spans = stream(chunks, buffers=buffers)
    end = max(span.end_s for span in spans)
    return Answer(
        sentences=(
            f"{op.name}: {show_seconds(end)} in {count} chunks with {buffers} buffer"
            f"{'s' if buffers > 1 else ''}; {op.time.binds} binds",
            f"HBM alone takes {show_seconds(memory.seconds)}, the {op.unit} alone"
            f" {show_seconds(work.seconds)}. At best they overlap"
            f" ({show_seconds(op.time.lower_s)}), at worst they take turns"
            f" ({show_seconds(op.time.upper_s)}).",
        ),
        facts=(
            Fact("seconds", "time", end, show_seconds, "chunk by chunk"),
            Fact("lower_s", "at best", op.time.lower_s, show_seconds, "the roofline"),
            Fact("upper_s", "at worst", op.time.upper_s, show_seconds, "one after another"),
            Fact("binds", "binds", op.time.binds),
            Fact("busy_share", "unit at work", work.seconds / end, show_share, "of the time"),
            Fact("chunk_bytes", "a chunk", (op.in_bytes + op.out_bytes) / count, show_bytes),
        ),
        films=(_film(op, spans, chip, count, buffers),),
        pictures=(_gantt(op, spans, end),),
    )


def _op(question: ViewQuery, chip: Chip) -> _Op:
    b, d, f = (question.count(name) for name in "bdf")
    dtype = question.dtype("dtype")
    if question.text("op") == "matmul":
        time = matmul_time(chip, m=b, k=d, n=f, lhs=dtype, rhs=dtype, out=dtype)
        name = f"{dtype.name}[{b},{d}] x [{d},{f}]"
        sizes = (dtype.nbytes(b * d), dtype.nbytes(d * f), dtype.nbytes(b * f))
        return _Op(name, time.roofs[0].name, time, *sizes)
    each = dtype.nbytes(b * d)
    time = vector_time(chip, flops=float(b * d), bytes_moved=3 * each)
    return _Op(f"{dtype.name}[{b},{d}] times another", "vector unit", time, 0, 2 * each, each)


def _check_vmem(chip: Chip, op: _Op, count: int, buffers: int) -> None:
    if chip.vmem_bytes is None:
        return
    room = chip.vmem_bytes - op.resident_bytes
    wanted = buffers * (op.in_bytes + op.out_bytes)
    if wanted / count <= room:
        return
    needed = format_si(op.resident_bytes + wanted / count, "B")
    least = math.ceil(wanted / room) if room > 0 else 0
    raise UsageError(
        f"{buffers} buffers of {count} chunks need {needed} on the chip, {chip.title} has"
        f" {format_si(chip.vmem_bytes, 'B')}",
        hint=f"cut it into {least} chunks" if 0 < least <= 16 else "ask for smaller B, D or F",
    )


def _gantt(op: _Op, spans: tuple[ChunkSpan, ...], end: float) -> Picture:
    kinds = {"load": "L", "work": "W", "store": "S"}
    rows = [
        (name, [s for s in spans if (s.work == "work") is is_unit])
        for name, is_unit in (("HBM", False), (op.unit, True))
    ]
    chart = Gantt(
        title=f"{op.name}, chunk by chunk",
        caption=f"{show_seconds(end)}; the roofline allows {show_seconds(op.time.lower_s)}",
        rows=tuple(
            GanttRow(
                name,
                tuple(
                    Bar(
                        kinds[s.work],
                        f"{kinds[s.work]}{s.chunk}",
                        s.start_s,
                        s.end_s,
                        f"{s.work} {s.chunk}: {show_seconds(s.end_s - s.start_s)}",
                    )
                    for s in found
                ),
                f"{sum(s.end_s - s.start_s for s in found) / end:.0%} busy",
            )
            for name, found in rows
        ),
        legend={"L": "load", "W": "work", "S": "store"},
        number="chunk",
    )
    return Picture(
        "timeline",
        gantt_svg(chart, widest=900.0),
        f"When HBM loads (L) and stores (S) and when the {op.unit} works (W), by chunk",
        560,
    )


def _film(op: _Op, spans: tuple[ChunkSpan, ...], chip: Chip, count: int, buffers: int) -> Film:
    times = sorted({t for s in spans for t in (s.start_s, s.end_s)})
    memory = {"tpu": "VMEM", "gpu": "shared memory"}.get(chip.kind, "on-chip memory")
    names = {
        "hbm": f"HBM, {format_si(op.time.roofs[1].rate, 'B/s')}",
        "vmem": memory + (f", {format_si(chip.vmem_bytes, 'B')}" if chip.vmem_bytes else ""),
        "unit": op.unit,
    }
    frames = [_frame(op, spans, names, count, buffers, start) for start in times[:-1]]
    last = _frame(op, spans, names, count, buffers, times[-1])
    caption = (
        "Blue chunks are operands, orange ones results. A buffer is taken from the start of a load"
        " to the end of its work, or from the start of work to the end of its store."
    )
    return Film("stream", f"{op.name}, step by step", (*frames, last), caption, 0.8)


def _frame(
    op: _Op,
    spans: tuple[ChunkSpan, ...],
    names: dict[str, str],
    count: int,
    buffers: int,
    now: float,
) -> Frame:
    """What is where just after a moment at which something begins or ends."""
    by = {(s.work, s.chunk): s for s in spans}
    running = {s.work: s.chunk for s in spans if s.start_s <= now < s.end_s}
    loaded = [c for c in range(count) if by["load", c].start_s <= now < by["work", c].end_s]
    made = [c for c in range(count) if by["work", c].start_s <= now < by["store", c].end_s]
    doing = [f"{work} {chunk}" for work, chunk in running.items()]
    words = f"{show_seconds(now)}: {', '.join(doing) if doing else 'done'}"
    still = StreamStill(
        title=op.name,
        words=words,
        names=names,
        count=count,
        waiting=frozenset(c for c in range(count) if by["load", c].end_s > now),
        stored=frozenset(c for c in range(count) if by["store", c].end_s <= now),
        arriving=_slots(loaded, buffers),
        leaving=_slots(made, buffers),
        working=running.get("work"),
        loading=running.get("load"),
        storing=running.get("store"),
    )
    return Frame(stream_svg(still), words)


def _slots(chunks: list[int], buffers: int) -> tuple[int | None, ...]:
    """Chunk c lies in buffer c mod their number."""
    slots: list[int | None] = [None] * buffers
    for chunk in chunks:
        slots[chunk % buffers] = chunk
    return tuple(slots)
