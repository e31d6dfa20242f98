"""`rooflight profile`: where the time of a step went, read from a trace of JAX's profiler."""

from pathlib import Path
from typing import cast

from rooflight.cli.flags import add_choice, add_dtype, add_verbose
from rooflight.cli.output import print_json, show, suggest, write_file, write_pieces
from rooflight.cli.parser import Namespace, Parser
from rooflight.cli.profile_page import answer, csv_text, diff_page, document, tables
from rooflight.dtypes import parse_dtype
from rooflight.hardware.slice import parse_slice
from rooflight.measure.trace.diff import changes
from rooflight.measure.trace.host_gaps import host_gaps
from rooflight.measure.trace.overlap import overlaps
from rooflight.measure.trace.perfetto import perfetto
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.record import Trace
from rooflight.measure.trace.roof import under_roof
from rooflight.measure.trace.table import BY, By, step_table

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
    _suggest(args, trace)
    return 0


def _read(args: Namespace, path: str | None) -> Trace:
    trace = read_trace(Path(path) if path else EXAMPLE)
    if args.on:
        trace = under_roof(trace, parse_slice(args.on).chip, dtype=parse_dtype(args.dtype).name)
    return trace


def _suggest(args: Namespace, trace: Trace) -> None:
    if not args.path:
        suggest("rooflight profile FOLDER, after: with jax.profiler.trace(FOLDER): step(...)")
    elif all(device.roof.flops_per_s is None for device in trace.devices):
        suggest(f"rooflight profile {args.path} --on CHIP")
