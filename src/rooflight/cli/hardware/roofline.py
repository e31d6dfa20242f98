"""`rooflight roofline`: where a chip's roofs meet, and where matmuls lie under them."""

from collections.abc import Sequence
from dataclasses import asdict

from rooflight.api.costs import roofline
from rooflight.cli.flags import add_choice, add_dtype, add_on, add_plot, keywords
from rooflight.cli.output import picked, print_json, show, suggest, write_file
from rooflight.cli.parser import Namespace, Parser
from rooflight.costs.roofline import OpTime
from rooflight.dtypes import parse_dtype
from rooflight.errors import ParseError
from rooflight.hardware.slice import parse_slice
from rooflight.ui.answers.roofline import ChipRoof, placed_matmul, roofline_answer
from rooflight.ui.svg.roofline import roofline_text
from rooflight.ui.text.answer import answer_text
from rooflight.ui.text.terminal import within
from rooflight.units import parse_count

HELP = "ridge point, critical batch and log-log plot of a chip; matmuls as points on it"

_LARGEST_SIZE = 10**12  # far above any tensor dim, far below what a float can no longer hold


def configure(parser: Parser) -> None:
    add_on(parser)
    add_dtype(parser)
    add_choice(
        parser,
        "--memory",
        ("hbm", "vmem", "pcie"),
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
    roof = ChipRoof(parse_slice(args.on).chip, parse_dtype(args.dtype), args.memory)
    asked = keywords(roofline, args)
    times = [roofline(*sizes, **asked) for sizes in args.matmul]
    placed = [
        placed_matmul(m, k, n, time) for (m, k, n), time in zip(args.matmul, times, strict=True)
    ]
    said = roofline_answer(roof, placed)
    if args.plot:
        write_file(args.plot, said.pictures[0].svg, flag="--plot")
    if args.json:
        print_json("roofline", _document(roof, args.matmul, times))
        return 0
    drawn = roofline_text([roof.line], [p.point for p in placed], width=within(72))
    show(f"{answer_text(said)}\n\n{drawn}")
    if not times:
        suggest(f"rooflight roofline --on {roof.chip.name} --matmul 128x8192x8192")
    return 0


def _document(
    roof: ChipRoof, matmuls: Sequence[tuple[int, int, int]], times: Sequence[OpTime]
) -> dict[str, object]:
    return {
        "chip": roof.chip.name,
        "dtype": roof.dtype.name,
        "compute": roof.compute,
        "memory": roof.memory,
        "flops_per_s": roof.line.flops_per_s,
        "bytes_per_s": roof.line.bytes_per_s,
        "ridge_flops_per_byte": roof.ridge,
        "critical_batch_tokens": roof.critical_batch,
        "matmuls": [
            _matmul_document(sizes, time) for sizes, time in zip(matmuls, times, strict=True)
        ],
    }


def _matmul_document(sizes: tuple[int, int, int], time: OpTime) -> dict[str, object]:
    return {
        **dict(zip("mkn", sizes, strict=True)),
        **picked(time, "lower_s upper_s binds utilisation"),
        "intensity_flops_per_byte": time.intensity,
        "roofs": [asdict(one) | {"seconds": one.seconds} for one in time.roofs],
    }
