"""`rooflight profile`: where the time of a step went, read from a trace of JAX's profiler."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from rooflight.cli.flags import add_choice, add_dtype, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file, write_pieces
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import parse_dtype
from rooflight.hardware.slice import parse_slice
from rooflight.measure.trace.overlap import HostGap, Overlap, host_gaps, overlaps
from rooflight.measure.trace.perfetto import perfetto
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.record import Trace, under_roof
from rooflight.measure.trace.table import BY, By, StepTable, TimeDiff, TraceRow, changes, step_table
from rooflight.ui.text.table import table as text_table
from rooflight.units import format_count, format_seconds, format_si

_ROWS = 12
_WIDEST = 64  # of a name

HELP = "where the time of a step went, from a trace of JAX's profiler: ops, overlap, host gaps"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        help="an .xplane.pb, or the folder of jax.profiler.trace; a small example if left out",
    )
    add_choice(parser, "--by", BY, what="key", default="class", help="what rows stand for")
    parser.add_argument("--step", metavar="NAME", help="one step only; the mean of all if left out")
    parser.add_argument(
        "--on", metavar="CHIP", help="the chip whose roof counts, and not that of the trace: v5e"
    )
    add_dtype(parser)
    parser.add_argument("--diff", metavar="OTHER", help="a second trace: what changed, by how much")
    parser.add_argument("--csv", metavar="FILE", help="also write all rows, with every step")
    parser.add_argument("--perfetto", metavar="FILE.json", help="also write it for ui.perfetto.dev")
    add_verbose(parser, help="every row of every table")
    parser.set_examples("rooflight profile", "rooflight profile --by layer --step 1")


def run(args: Namespace) -> int:
    by = cast(By, args.by)
    trace = _read(args, args.path)
    table = step_table(trace, by=by, step=args.step)
    flights, gaps = overlaps(trace, step=args.step), host_gaps(trace, step=args.step)
    if args.csv:
        write_file(args.csv, csv_text(table), flag="--csv")
    if args.perfetto:
        write_pieces(args.perfetto, perfetto(trace), flag="--perfetto")
    shown = document(trace, table, flights, gaps)
    if args.diff:
        other = step_table(_read(args, args.diff), by=by, step=args.step)
        found = changes(table, other)
        text = diff_page(table, other, found, everything=args.verbose)
        shown["diff"] = [
            {"key": c.key, "before_s": c.before_s, "after_s": c.after_s} for c in found
        ]
    else:
        text = "\n\n".join(
            [answer(trace, table, flights), *tables(table, flights, gaps, everything=args.verbose)]
        )
    if args.json:
        print_json("profile", shown)
        return 0
    show(text)
    if not args.path:
        suggest("rooflight profile FOLDER, after: with jax.profiler.trace(FOLDER): step(...)")
    elif all(device.roof.flops_per_s is None for device in trace.devices):
        suggest(f"rooflight profile {args.path} --on CHIP")
    return 0


def _read(args: Namespace, path: str | None) -> Trace:
    trace = read_trace(Path(path) if path else EXAMPLE)
    if args.on:
        trace = under_roof(trace, parse_slice(args.on).chip, dtype=parse_dtype(args.dtype).name)
    return trace


def answer(trace: Trace, table: StepTable, flights: Sequence[Overlap]) -> str:
    """Steps, devices, the largest parts, and what collectives cost."""
    kinds = {device.kind or device.name.partition(":")[0] for device in trace.devices}
    parts = [row for row in table.rows if row.seconds >= 0.005 * table.seconds]
    parts.sort(key=lambda row: -row.seconds)
    shares = ", ".join(f"{row.seconds / table.seconds:.0%} {_name(row.key)}" for row in parts[:6])
    count, devices = len(table.steps), table.num_devices
    lines = [
        f"{format_count(count)} step{'s' * (count > 1)} of {format_seconds(table.seconds)} on"
        f" {format_count(devices)} device{'s' * (devices > 1)}"
        f" ({', '.join(_name(kind) for kind in sorted(kinds))}): {shares}."
    ]
    if flights:
        whole = flights[0]
        lines.append(
            f"Collectives are in flight for {format_seconds(whole.in_flight_s)} of a step,"
            f" {format_seconds(whole.hidden_s)} of it while the device computes."
        )
    lines.append(_roof_line(trace))
    return "\n".join(lines)


def _roof_line(trace: Trace) -> str:
    roof = trace.devices[0].roof
    if roof.flops_per_s is None or roof.hbm_bytes_per_s is None:
        return "The roof of the device is unknown: the trace does not say it."
    return (
        f"Roof: {format_si(roof.flops_per_s, 'FLOP/s')} and"
        f" {format_si(roof.hbm_bytes_per_s, 'B/s')} (from {roof.source})."
    )


def tables(
    table: StepTable, flights: Sequence[Overlap], gaps: Sequence[HostGap], *, everything: bool
) -> list[str]:
    """Rows, collectives, what the host did meanwhile, steps; what is empty is left out."""
    most = None if everything else _ROWS
    found = [_rows(table, most), _flights(flights, table), _gaps(gaps, table, most)]
    return [text for text in [*found, _steps(table, most)] if text]


def _shown(
    header: Sequence[str], rows: Sequence[Sequence[str]], most: int | None, *, align: str = ""
) -> str:
    if not rows:
        return ""
    text = text_table(header, rows[:most], align=align)
    left = len(rows) - len(rows[:most])
    return f"{text}\n({format_count(left)} more rows: -v)" if left else text


def _rows(table: StepTable, most: int | None) -> str:
    header = [table.by, "seconds", "of step", "times", "FLOP/s", "bytes/s", "of roof"]
    *busy, idle = table.rows
    kept = busy[:most]
    cells = [_cells(row, table) for row in [*kept, idle]]
    text = text_table(header, cells, align="lrrrrrr")
    left = len(busy) - len(kept)
    return f"{text}\n({format_count(left)} more rows: -v)" if left else text


def _cells(row: TraceRow, table: StepTable) -> list[str]:
    return [
        _name(row.key),
        format_seconds(row.seconds),
        _share(row.seconds, table),
        f"{row.count:,.4g}" if row.count else "-",
        _rate(row, row.flops_per_s, row.flops, "FLOP/s"),
        _rate(row, row.bytes_per_s, row.nbytes, "B/s"),
        "-" if not row.roofed_s else "unknown" if row.of_roof is None else f"{row.of_roof:.1%}",
    ]


def _rate(row: TraceRow, rate: float | None, amount: float | None, unit: str) -> str:
    if not row.count or amount == 0:
        return "-"
    return "unknown" if rate is None else format_si(rate, unit)


def _share(seconds: float, table: StepTable) -> str:
    return f"{seconds / table.seconds:.1%}" if table.seconds else "-"


def _flights(flights: Sequence[Overlap], table: StepTable) -> str:
    header = ["collective", "in flight", "hidden", "exposed", "of step"]
    rows = [
        [
            flight.kind,
            format_seconds(flight.in_flight_s),
            format_seconds(flight.hidden_s),
            format_seconds(flight.exposed_s),
            _share(flight.exposed_s, table),
        ]
        for flight in (flights[1:] if len(flights) == 2 else flights)
    ]
    return _shown(header, rows, None, align="lrrrr")


def _gaps(gaps: Sequence[HostGap], table: StepTable, most: int | None) -> str:
    header = ["while the device waits, the host does", "seconds", "of step", "times"]
    rows = [
        [_name(g.doing), format_seconds(g.seconds), _share(g.seconds, table), f"{g.count:,.3g}"]
        for g in gaps
    ]
    return _shown(header, rows, most, align="lrrr")


def _steps(table: StepTable, most: int | None) -> str:
    """Every step with its largest classes, to see which one differs; one step has no table."""
    if len(table.steps) < 2:
        return ""
    *busy, idle = table.rows
    columns = [*(busy[:4] if table.by == "class" else []), idle]
    header = ["step", "seconds", *(_name(row.key) for row in columns)]
    rows = [
        [_name(name), format_seconds(seconds), *(format_seconds(c.by_step[at]) for c in columns)]
        for at, (name, seconds) in enumerate(zip(table.steps, table.step_s, strict=True))
    ]
    return _shown(header, rows, most, align="l" + "r" * (len(header) - 1))


def diff_page(
    before: StepTable, after: StepTable, found: Sequence[TimeDiff], *, everything: bool
) -> str:
    """Both sides and the difference, the largest first."""
    header = [before.by, "before", "after", "difference"]
    rows = [
        [_name(c.key), *(_signed(s) for s in (c.before_s, c.after_s)), _signed(c.difference_s, "+")]
        for c in found
        if c.before_s or c.after_s
    ]
    whole = after.seconds - before.seconds
    change = f"{whole / before.seconds:+.1%}" if before.seconds else "unknown"
    line = (
        f"A step takes {format_seconds(after.seconds)} instead of"
        f" {format_seconds(before.seconds)}: {_signed(whole, '+')} ({change})."
    )
    shown = _shown(header, rows, None if everything else _ROWS, align="lrrr")
    return f"{line}\n\n{shown}"


def _signed(seconds: float, plus: str = "") -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else f"{plus}{format_seconds(seconds)}"


def _name(text: str) -> str:
    """A name from a file that anybody may have written: printable, and not too long."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[: 4 * _WIDEST])
    return plain if len(plain) <= _WIDEST else "..." + plain[3 - _WIDEST :]


def csv_text(table: StepTable) -> str:
    """All rows, a column for every step."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    head = [table.by, "seconds", "count", "flops_per_s", "bytes_per_s", "of_roof"]
    rows.writerow([*head, *(f"step {name}" for name in table.steps)])
    for r in table.rows:
        rows.writerow(
            [r.key, r.seconds, r.count, r.flops_per_s, r.bytes_per_s, r.of_roof, *r.by_step]
        )
    whole = ["step", table.seconds, "", "", "", "", *table.step_s]
    rows.writerow(whole)
    return out.getvalue()


def document(
    trace: Trace, table: StepTable, flights: Sequence[Overlap], gaps: Sequence[HostGap]
) -> dict[str, object]:
    """Everything the tables show, in full, as plain data."""
    devices = [
        {"name": device.name, "kind": device.kind, "roof": asdict(device.roof)}
        for device in trace.devices
    ]
    steps = zip(table.steps, table.step_s, strict=True)
    return {
        "devices": devices,
        "by": table.by,
        "seconds": table.seconds,
        "steps": [{"name": name, "seconds": seconds} for name, seconds in steps],
        "rows": [_row_document(row) for row in table.rows],
        "collectives": [asdict(flight) | {"exposed_s": flight.exposed_s} for flight in flights],
        "host_gaps": [asdict(gap) for gap in gaps],
    }


def _row_document(row: TraceRow) -> dict[str, object]:
    derived: dict[str, object] = {
        "seconds": row.seconds,
        "flops_per_s": row.flops_per_s,
        "bytes_per_s": row.bytes_per_s,
        "of_roof": row.of_roof,
    }
    return {**asdict(row), **derived}
