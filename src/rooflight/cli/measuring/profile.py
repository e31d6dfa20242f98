"""`rooflight profile`: where the time of a step went, read from a trace of JAX's profiler."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import cast

from rooflight.cli.flags import add_choice, add_dtype, add_verbose
from rooflight.cli.output import picked, print_json, show, suggest, write_file, write_pieces
from rooflight.cli.parser import Namespace, Parser
from rooflight.dtypes import parse_dtype
from rooflight.hardware.slice import parse_slice
from rooflight.measure.trace.perfetto import perfetto
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.record import Trace, under_roof
from rooflight.measure.trace.table import (
    BY,
    By,
    Profile,
    StepTable,
    TraceRow,
    changes,
    profile,
    step_table,
)
from rooflight.ui.answers.trace import diff_answer, profile_answer
from rooflight.ui.text.answer import answer_text

_ROWS = 12

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
    found = profile(trace, by=by, step=args.step)
    table = found.table
    if args.csv:
        write_file(args.csv, csv_text(table), flag="--csv")
    if args.perfetto:
        write_pieces(args.perfetto, perfetto(trace), flag="--perfetto")
    shown = document(found)
    most = None if args.verbose else _ROWS
    said = profile_answer(found, most=most)
    if args.diff:
        other = step_table(_read(args, args.diff), by=by, step=args.step)
        changed = changes(table, other)
        said = diff_answer(table, other, changed, most=most)
        shown["diff"] = [
            {"key": c.key, "before_s": c.before_s, "after_s": c.after_s} for c in changed
        ]
    if args.json:
        print_json("profile", shown)
        return 0
    show(answer_text(said))
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


def document(found: Profile) -> dict[str, object]:
    """Everything the tables show, in full, as plain data."""
    trace, table = found.trace, found.table
    devices = [
        {"name": device.name, "kind": device.kind, "roof": asdict(device.roof)}
        for device in trace.devices
    ]
    return {
        "devices": devices,
        "by": table.by,
        "seconds": table.seconds,
        "steps": _steps(table),
        "rows": [_row_document(row) for row in table.rows],
        "collectives": [asdict(f) | {"exposed_s": f.exposed_s} for f in found.flights],
        "async_ops": [asdict(op) | {"exposed_s": op.exposed_s} for op in found.async_ops],
        "host_gaps": [asdict(gap) for gap in found.gaps],
        "host_bound": {"seconds": found.host_s, "transfer_s": found.transfer_s},
        "allocators": [asdict(one) | {"nbytes": one.nbytes} for one in found.allocators],
        "programs": [asdict(one) | {"nbytes": one.nbytes} for one in found.programs],
        "hosts": [
            {
                "name": name,
                "steps": _steps(own),
                "seconds": {row.key: row.seconds for row in own.rows},
            }
            for name, own in found.hosts
        ],
        "unread": list(trace.unread),
    }


def _steps(table: StepTable) -> list[dict[str, object]]:
    steps = zip(table.steps, table.step_s, strict=True)
    return [{"name": name, "seconds": seconds} for name, seconds in steps]


def _row_document(row: TraceRow) -> dict[str, object]:
    derived: dict[str, object] = {
        **picked(row, "seconds flops_per_s bytes_per_s of_roof intensity bound"),
    }
    return {**asdict(row), **derived}
