"""`rooflight roofline`: where a chip's roofs meet, and where matmuls lie under them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rooflight.api.costs import roofline
from rooflight.cli.flags import add_choice, add_dtype, add_on, add_plot, keywords
from rooflight.cli.output import print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.costs.roofline import Memory, OpTime, critical_batch, memory_bytes_per_s, ridge_point
from rooflight.dtypes import Dtype, parse_dtype
from rooflight.errors import ParseError, UsageError
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import parse_slice
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg, roofline_text
from rooflight.ui.text.table import table
from rooflight.ui.text.terminal import within
from rooflight.units import format_seconds, format_si, parse_count

HELP = "ridge point, critical batch and log-log plot of a chip; matmuls as points on it"

_LARGEST_SIZE = 10**12  # far above any tensor dim, far below what a float can no longer hold


@dataclass(frozen=True, slots=True)
class Matmul:
    """[m,k] x [k,n] and what it costs."""

    m: int
    k: int
    n: int
    time: OpTime

    @property
    def flops_per_s(self) -> float:
        return 2 * self.m * self.k * self.n / self.time.lower_s

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n}"


@dataclass(frozen=True, slots=True)
class Roofline:
    """A chip at a dtype on a memory, and the matmuls to place under it."""

    chip: Chip
    dtype: Dtype
    compute: str
    memory: Memory
    matmuls: tuple[Matmul, ...]

    @property
    def roof(self) -> RoofLine:
        rate = memory_bytes_per_s(self.chip, self.memory)
        return RoofLine(
            f"{self.chip.name} {self.compute}", self.chip.peak_flops(self.compute), rate
        )

    @property
    def points(self) -> list[PlotPoint]:
        return [PlotPoint(str(m), m.time.intensity, m.flops_per_s) for m in self.matmuls]

    @property
    def ridge(self) -> float:
        return ridge_point(self.chip, self.compute, self.memory)

    @property
    def critical_batch(self) -> float:
        return critical_batch(
            self.chip,
            weight=self.dtype,
            activation=self.dtype,
            compute=self.compute,
            memory=self.memory,
        )


def configure(parser: Parser) -> None:
    add_on(parser)
    add_dtype(parser)
    add_choice(
        parser,
        "--memory",
        ("hbm", "vmem", "pcie"),
        what="memory",
        default="hbm",
        help="where operands come from: hbm (default), vmem (SMEM on a GPU) or pcie",
    )
    parser.add_argument(
        "--matmul",
        action="append",
        default=[],
        type=parse_matmul,
        metavar="MxKxN",
        help="place [M,K] x [K,N] on the plot; may be repeated",
    )
    parser.add_argument(
        "--pad", action="store_true", help="round the matmuls up to whole tiles of the matrix unit"
    )
    add_plot(parser)
    parser.set_examples(
        "rooflight roofline --on v5e",
        "rooflight roofline --on v5p --dtype int8 --matmul 128x8192x8192 --matmul 4Kx8Kx8K",
    )


def parse_matmul(text: str) -> tuple[int, int, int]:
    """Reads `MxKxN`, each a count.

    >>> parse_matmul("1024x8Kix8192")
    (1024, 8192, 8192)
    """
    sizes = [parse_count(part, what="--matmul size") for part in text.split("x")]
    if len(sizes) != 3 or not all(1 <= size <= _LARGEST_SIZE for size in sizes):
        raise ParseError(
            f"--matmul {text!r} is not three sizes from 1 to 1e12", hint="write 1024x8192x8192"
        )
    return sizes[0], sizes[1], sizes[2]


def run(args: Namespace) -> int:
    chip = parse_slice(args.on).chip
    if not chip.flops:
        raise UsageError(
            f"{chip.title} has no rates in its catalog, so it has no roof",
            hint="choose one that `rooflight chips` shows with a rate",
        )
    dtype = parse_dtype(args.dtype)
    compute = chip.matmul_dtype(dtype.name)
    asked = keywords(roofline, args)
    matmuls = tuple(Matmul(m, k, n, roofline(m, k, n, **asked)) for m, k, n in args.matmul)
    found = Roofline(chip, dtype, compute, args.memory, matmuls)
    document, text = _document(found), _text(found)
    if args.plot:
        title = f"{chip.title}, {compute} over {args.memory}"
        svg = roofline_svg([found.roof], found.points, title=title)
        write_file(args.plot, svg, flag="--plot")
    if args.json:
        print_json("roofline", document)
        return 0
    show(text)
    if not matmuls:
        suggest(f"rooflight roofline --on {chip.name} --matmul 128x8192x8192")
    return 0


def _document(found: Roofline) -> dict[str, object]:
    roof = found.roof
    return {
        "chip": found.chip.name,
        "dtype": found.dtype.name,
        "compute": found.compute,
        "memory": found.memory,
        "flops_per_s": roof.flops_per_s,
        "bytes_per_s": roof.bytes_per_s,
        "ridge_flops_per_byte": found.ridge,
        "critical_batch_tokens": found.critical_batch,
        "matmuls": [_matmul_document(matmul) for matmul in found.matmuls],
    }


def _matmul_document(matmul: Matmul) -> dict[str, object]:
    time = matmul.time
    return {
        "m": matmul.m,
        "k": matmul.k,
        "n": matmul.n,
        "lower_s": time.lower_s,
        "upper_s": time.upper_s,
        "binds": time.binds,
        "utilisation": time.utilisation,
        "intensity_flops_per_byte": time.intensity,
        "roofs": [asdict(roof) | {"seconds": roof.seconds} for roof in time.roofs],
    }


def _text(found: Roofline) -> str:
    blocks = [_headline(found)]
    if found.matmuls:
        blocks.append(_matmul_table(found.matmuls))
    blocks.append(roofline_text([found.roof], found.points, width=within(72)))
    return "\n\n".join(blocks)


def _headline(found: Roofline) -> str:
    roof, memory = found.roof, found.memory
    where = {"hbm": "HBM", "vmem": "on-chip memory", "pcie": "PCIe"}[memory]
    stored = f"{found.dtype.name} over {where}"
    upcast = "" if found.compute == found.dtype.name else f", computed in {found.compute}"
    return (
        f"{found.chip.name}, {stored}{upcast}: ridge at {found.ridge:.4g} FLOP/B,"
        f" critical batch {found.critical_batch:.4g} tokens\n"
        f"{format_si(roof.flops_per_s, 'FLOP/s')} over {format_si(roof.bytes_per_s, 'B/s')};"
        " left of the ridge bytes bind, right of it FLOPs"
    )


def _matmul_table(matmuls: Sequence[Matmul]) -> str:
    rows = [
        [
            str(matmul),
            format_seconds(matmul.time.lower_s),
            matmul.time.binds,
            format_seconds(matmul.time.upper_s),
            f"{matmul.time.intensity:.4g} FLOP/B",
            f"{matmul.time.utilisation:.1%}",
        ]
        for matmul in matmuls
    ]
    header = ("matmul", "time", "binds", "if nothing overlaps", "intensity", "utilisation")
    return table(header, rows, align="lrlrrr")
