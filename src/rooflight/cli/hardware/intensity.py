"""`rooflight intensity`: FLOPs and bytes of a JAX function of your own, and its place on a roof."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any  # counts as JSON

from rooflight.cli.flags import add_dtype, add_on, add_plot
from rooflight.cli.output import print_json, show, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.dtypes import parse_dtype
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import parse_slice
from rooflight.measure.microbench.child import measure
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg, roofline_text
from rooflight.ui.text.table import table
from rooflight.ui.text.terminal import within
from rooflight.units import format_seconds, format_si

HELP = "FLOPs and bytes of a JAX function of your own, and where it lies under a chip's roof"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """A function under a roof, with one count of its bytes."""

    name: str
    flops: int
    nbytes: int
    roof: RoofLine

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes

    @property
    def seconds(self) -> float:
        return max(self.flops / self.roof.flops_per_s, self.nbytes / self.roof.bytes_per_s)

    @property
    def binds(self) -> str:
        return "matmuls" if self.intensity >= self.roof.ridge else "memory"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "function",
        help="package.module:build, found from this folder; build() returns a function and its"
        " arguments (arrays or jax.ShapeDtypeStruct)",
    )
    add_on(parser)
    add_dtype(parser)
    add_plot(parser)
    parser.set_examples("rooflight intensity rooflight.measure.microbench.example:build --on v5e")


def run(args: Namespace) -> int:
    if ":" not in args.function:
        raise UsageError(
            f"{args.function!r} does not name a function",
            hint="write package.module:build, where build() returns a function and its arguments",
        )
    chip = parse_slice(args.on).chip
    counts = measure("count:function", devices=1, name=args.function, folder=str(Path.cwd()))
    if not counts["matmul_flops"]:
        raise UsageError(
            f"{args.function} has no matmul, so a roof of matmuls says nothing of it",
            hint="count a function that multiplies matrices",
        )
    places = _places(counts, chip, parse_dtype(args.dtype).name)
    points = [PlotPoint(p.name, p.intensity, p.flops / p.seconds) for p in places]
    if args.plot:
        title = f"{args.function} on {chip.title}"
        write_file(args.plot, roofline_svg([places[0].roof], points, title=title), flag="--plot")
    if args.json:
        print_json("intensity", {"function": args.function, "chip": chip.name} | counts)
        return 0
    plot = roofline_text([places[0].roof], points, width=within(72))
    show("\n\n".join([_answer(args, counts), _table(places), _matmuls(counts), plot]))
    return 0


def _places(counts: dict[str, Any], chip: Chip, dtype: str) -> list[_Place]:
    compute = chip.matmul_dtype(dtype)
    rate = memory_bytes_per_s(chip, "hbm")
    roof = RoofLine(f"{chip.name} {compute}", chip.peak_flops(compute), rate)
    named = {"arguments and results once": "least_bytes", "nothing stays on the chip": "most_bytes"}
    return [_Place(n, counts["matmul_flops"], counts[key], roof) for n, key in named.items()]


def _answer(args: Namespace, counts: dict[str, Any]) -> str:
    words = (
        f"{args.function}: {format_si(counts['matmul_flops'], 'FLOP')} of matmuls,"
        f" {format_si(counts['other_flops'], 'FLOP')} of the rest."
    )
    if loops := counts["loops_of_unknown_length"]:
        words += f" {loops} loop(s) of unknown length count once."
    return words


def _table(places: list[_Place]) -> str:
    rows = [
        [
            p.name,
            format_si(p.nbytes, "B"),
            format_si(p.intensity, "FLOP/B"),
            format_seconds(p.seconds),
            p.binds,
        ]
        for p in places
    ]
    header = ("if", "bytes", "intensity", "at least", "bound by")
    return table(header, rows, align="lrrrl")


def _matmuls(counts: dict[str, Any]) -> str:
    every = list(counts["matmuls"].items())
    rows = [[name, format_si(flops, "FLOP")] for name, flops in every[:_SHOWN]]
    text = table(("matmul", "FLOPs"), rows, align="lr")
    more = len(every) - len(rows)
    return text + (f"\nand {more} more" if more else "")
