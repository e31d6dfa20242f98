"""Where the time of a step went, as `Answer`s of a trace: ops, overlap, host gaps, two traces.

In: the tables of `measure.trace`. Out: what terminal and notebook show of them.
"""

from collections.abc import Iterator, Sequence

from rooflight.measure.trace.memory import AllocatorPeak, ProgramPeak
from rooflight.measure.trace.overlap import ALL, COPY, AsyncOp, HostGap, Overlap
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.table import IDLE, Profile, StepTable, TimeDiff, TraceRow
from rooflight.ui.answer import Answer, Column, Table, Value, show_bytes, show_seconds
from rooflight.units import format_count, format_seconds, format_si

_WIDEST = 64  # of a name
_SECONDS = Column("seconds", "seconds", show_seconds)
_SHARE = Column("share", "of step", lambda v: f"{v:.1%}")


def profile_answer(found: Profile, *, most: int | None = None) -> Answer:
    """Steps, devices, the largest parts, what is in flight, what the host costs, the memory."""
    trace, table = found.trace, found.table
    kinds = {device.kind or device.name.partition(":")[0] for device in trace.devices}
    parts = [row for row in table.rows if row.seconds >= 0.005 * table.seconds]
    parts.sort(key=lambda row: -row.seconds)
    shares = ", ".join(f"{row.seconds / table.seconds:.0%} {_name(row.key)}" for row in parts[:6])
    names = ", ".join(_name(kind) for kind in sorted(kinds))
    others = (
        *(_flights(found.flights, table), _async_ops(found.async_ops), _gaps(found.gaps, table)),
        *(_allocators(found.allocators), _programs(found.programs), _hosts(found.hosts)),
        _steps(table),
    )
    return Answer(
        sentences=(
            f"{steps_text(table)} ({names}): {shares}.",
            *_overlapped(found.flights),
            _host_bound(found),
            _roof(trace),
            *_unread(trace),
        ),
        tables=(rows_table(table, most), *(one.first(most) for one in others if one.rows)),
    )


def _host_bound(found: Profile) -> str:
    share = _part(found.host_s, found.table) or 0.0
    idle = format_seconds(found.host_s - found.transfer_s)
    return (
        f"At most {share:.1%} of a step waits for the host: {idle} idle,"
        f" {format_seconds(found.transfer_s)} in infeed, outfeed and transfers."
    )


def _unread(trace: Trace) -> Iterator[str]:
    if trace.unread:
        shown = ", ".join(map(_name, trace.unread[:4]))
        more = f" and {len(trace.unread) - 4:,} more" if len(trace.unread) > 4 else ""
        yield f"Left out are the events of {shown}{more}: no table here reads them."


def step_table_answer(table: StepTable) -> Answer:
    """Where the time of a step went."""
    return Answer((steps_text(table),), tables=(rows_table(table),))


def steps_text(table: StepTable) -> str:
    count, devices = len(table.steps), table.num_devices
    return (
        f"{format_count(count)} step{'s' * (count > 1)} of {format_seconds(table.seconds)} on"
        f" {format_count(devices)} device{'s' * (devices > 1)}"
    )


def _overlapped(flights: Sequence[Overlap]) -> Iterator[str]:
    if flights and flights[0].kind == ALL:
        whole = flights[0]
        yield (
            f"Collectives are in flight for {format_seconds(whole.in_flight_s)} of a step,"
            f" {format_seconds(whole.hidden_s)} of it while the device computes."
        )


def _roof(trace: Trace) -> str:
    roof = trace.devices[0].roof
    if roof.flops_per_s is None or roof.hbm_bytes_per_s is None:
        return "The roof of the device is unknown: the trace does not say it."
    return (
        f"Roof: {format_si(roof.flops_per_s, 'FLOP/s')} and"
        f" {format_si(roof.hbm_bytes_per_s, 'B/s')} (from {roof.source})."
    )


def rows_table(table: StepTable, most: int | None = None) -> Table:
    """The largest rows, and last what the device did not do."""
    *busy, idle = table.rows
    kept = busy[:most]
    columns = (
        *(Column("key", table.by), _SECONDS, _SHARE, Column("count", "times", _show_times)),
        *(Column(n, n, is_right=True) for n in ("FLOP/s", "bytes/s", "of roof")),
        Column("bound", "bound"),
    )
    rows = tuple(_row(row, table) for row in [*kept, idle])
    return Table("rows", "One step on one device", columns, rows, left=len(busy) - len(kept))


def _show_times(value: float) -> str:
    return f"{value:,.4g}"


def _row(row: TraceRow, table: StepTable) -> tuple[Value, ...]:
    return (
        *(_name(row.key), row.seconds, _part(row.seconds, table), row.count or None),
        _rate(row, row.flops_per_s, row.flops, "FLOP/s"),
        _rate(row, row.bytes_per_s, row.nbytes, "B/s"),
        None if not row.roofed_s else "unknown" if row.of_roof is None else f"{row.of_roof:.1%}",
        row.bound,
    )


def _part(seconds: float, table: StepTable) -> float | None:
    return seconds / table.seconds if table.seconds else None


def _rate(row: TraceRow, rate: float | None, amount: float | None, unit: str) -> str | None:
    if not row.count or amount == 0:
        return None
    return "unknown" if rate is None else format_si(rate, unit)


def _flights(flights: Sequence[Overlap], table: StepTable) -> Table:
    columns = (
        *(Column("kind", "in flight"), Column("in_flight_s", "seconds", show_seconds)),
        *(Column(f"{n}_s", n, show_seconds) for n in ("hidden", "exposed")),
        _SHARE,
    )
    rows = tuple(
        (f.kind, f.in_flight_s, f.hidden_s, f.exposed_s, _part(f.exposed_s, table))
        for f in (flights[1:] if _is_one(flights) else flights)
    )
    return Table("collectives", "Collectives and copies in flight", columns, rows)


def _is_one(flights: Sequence[Overlap]) -> bool:
    """Whether one kind of collective is all that flew: its row says what `all` would."""
    return sum(flown.kind not in (ALL, COPY) for flown in flights) == 1


def _async_ops(ops: Sequence[AsyncOp]) -> Table:
    columns = (
        *(Column("op", "asynchronous op"), Column("count", "times", _show_times)),
        Column("in_flight_s", "in flight", show_seconds),
        *(Column(f"{n}_s", n, show_seconds) for n in ("hidden", "exposed")),
    )
    rows = tuple(
        (_name(op.name), op.count, op.in_flight_s, op.hidden_s, op.exposed_s) for op in ops
    )
    return Table("async_ops", "Asynchronous ops, each from its start to its end", columns, rows)


def _allocators(peaks: Sequence[AllocatorPeak]) -> Table:
    parts = ("allocated", "reserved", "free")
    columns = (
        *(Column("device", "allocator"), Column("peak", "peak", show_bytes)),
        *(Column(f"{part}_bytes", part, show_bytes) for part in parts),
    )
    rows = tuple(
        (_name(p.device), p.nbytes, p.allocated_bytes, p.reserved_bytes, p.free_bytes)
        for p in peaks
    )
    return Table("allocators", "Device memory when the most was held", columns, rows)


def _programs(peaks: Sequence[ProgramPeak]) -> Table:
    columns = (
        *(Column("program", "program"), Column("memory", "memory", show_bytes)),
        *(Column(f"{part}_bytes", part, show_bytes) for part in ("fixed", "temporary")),
        Column("largest", "largest at the peak"),
    )
    rows = tuple(
        (_name(p.name), p.nbytes, p.fixed_bytes, p.temporary_bytes, _largest(p)) for p in peaks
    )
    return Table("programs", "What each program needs", columns, rows)


def _largest(peak: ProgramPeak) -> str | None:
    return ", ".join(f"{_name(n)} {show_bytes(size)}" for n, size in peak.largest[:2]) or None


def _hosts(hosts: Sequence[tuple[str, StepTable]]) -> Table:
    """Every host with its largest classes, to see which one the others wait for."""
    keys = list(dict.fromkeys(row.key for _, own in hosts for row in own.rows[:4]))[:4]
    columns = (
        *(Column("host", "host"), _SECONDS, Column("devices", "devices")),
        *(Column(f"{key}_s", key, show_seconds) for key in [*keys, IDLE]),
    )
    rows = tuple(
        (_name(host), own.seconds, own.num_devices, *map(own.seconds_of, [*keys, IDLE]))
        for host, own in hosts
    )
    return Table("hosts", "Every host", columns, rows)


def _gaps(gaps: Sequence[HostGap], table: StepTable) -> Table:
    columns = (
        *(Column("doing", "while the device waits, the host does"), _SECONDS, _SHARE),
        Column("count", "times", lambda v: f"{v:,.3g}"),
    )
    rows = tuple((_name(g.doing), g.seconds, _part(g.seconds, table), g.count) for g in gaps)
    return Table("gaps", "What the host does meanwhile", columns, rows)


def _steps(table: StepTable) -> Table:
    """Every step with its largest classes, to see which one differs; one step has no table."""
    *busy, idle = table.rows
    shown = [*(busy[:4] if table.by == "class" else []), idle]
    columns = (
        *(Column("step", "step"), _SECONDS),
        *(Column(f"{_name(row.key)}_s", _name(row.key), show_seconds) for row in shown),
    )
    rows = tuple(
        (_name(name), seconds, *(row.by_step[at] for row in shown))
        for at, (name, seconds) in enumerate(zip(table.steps, table.step_s, strict=True))
    )
    return Table("steps", "Every step", columns, rows if len(rows) > 1 else ())


def diff_answer(
    before: StepTable, after: StepTable, found: Sequence[TimeDiff], *, most: int | None = None
) -> Answer:
    """Both sides and the difference, the largest first."""
    columns = (
        Column("key", before.by),
        *(Column(f"{n}_s", n, _signed) for n in ("before", "after")),
        Column("difference_s", "difference", _change),
    )
    rows = tuple(
        (_name(c.key), c.before_s, c.after_s, c.difference_s)
        for c in found
        if c.before_s or c.after_s
    )
    whole = after.seconds - before.seconds
    change = f"{whole / before.seconds:+.1%}" if before.seconds else "unknown"
    return Answer(
        sentences=(
            f"A step takes {format_seconds(after.seconds)} instead of"
            f" {format_seconds(before.seconds)}: {_change(whole)} ({change}).",
        ),
        tables=(Table("diff", "What changed, most first", columns, rows).first(most),),
    )


def _change(seconds: float) -> str:
    return _signed(seconds, "+")


def _signed(seconds: float, plus: str = "") -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else f"{plus}{format_seconds(seconds)}"


def _name(text: str) -> str:
    """A name from a file that anybody may have written: printable, and not too long."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[: 4 * _WIDEST])
    return plain if len(plain) <= _WIDEST else "..." + plain[3 - _WIDEST :]
