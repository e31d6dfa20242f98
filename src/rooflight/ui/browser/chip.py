"""Chip: its parts and rates, its systolic array and its streaming from HBM, step by step.

Rates are those of `rooflight chips`; cycles are `costs.systolic`, streaming is `costs.streaming`.
"""

from dataclasses import replace

from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import chip_names
from rooflight.hardware.chip import Chip
from rooflight.ui.answer import Answer, Picture, ViewLink
from rooflight.ui.answers.hardware import chip_answer
from rooflight.ui.browser.chip_stream import stream_answer
from rooflight.ui.browser.chip_systolic import systolic_answer
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.chip import chip_svg

_SIDES = tuple(str(n) for n in range(1, 7))
_SIZES = tuple(str(n) for n in range(1, 13))
_CHUNKS = tuple(str(n) for n in range(1, 17))
_POWERS = tuple(str(2**n) for n in range(13))


def answer(question: ViewQuery) -> Answer:
    """The part of the chip that was asked for."""
    chip = question.slice("on").chip
    match question.text("show"):
        case "systolic array":
            found = systolic_answer(question, chip)
        case "HBM streaming":
            found = stream_answer(question, chip)
        case _:
            found = _parts(chip)
    return replace(found, links=_links(question), command=_command(question, chip))


def _parts(chip: Chip) -> Answer:
    words = f"The parts of {chip.title} with their sizes and rates"
    how = (
        "Everything a program computes on comes from HBM through on-chip memory into a unit, and"
        " goes back the same way."
    )
    said = chip_answer(chip)
    drawn = (Picture("parts", chip_svg(chip), words, 640),)
    return replace(said, sentences=(*said.sentences, how), pictures=drawn)


def _links(question: ViewQuery) -> tuple[ViewLink, ...]:
    kept = tuple((name, question.text(name)) for name in ("on", "b", "d", "f", "dtype"))
    others = [s for s in _SHOW if s != question.text("show")]
    return (
        *(ViewLink(f"Its {name}", "chip", (("show", name), *kept)) for name in others),
        ViewLink("The same matmul under the roof", "roofline", kept),
    )


def _command(question: ViewQuery, chip: Chip) -> str:
    if question.text("show") == "parts":
        return f"rooflight chips {chip.name}"
    size = "x".join(question.text(name) for name in "bdf")
    return f"rooflight roofline --on {chip.name} --dtype {question.text('dtype')} --matmul {size}"


_SHOW = ("parts", "systolic array", "HBM streaming")
_DRAWN = "of the drawn array"
_SMALL = "of the drawn matmul"

_ARRAY = ("show", "systolic array")
_STREAM = ("show", "HBM streaming")
_MATMUL = ("show", "systolic array", "HBM streaming")

VIEW = View(
    "chip",
    "Chip",
    "Its parts and rates; a systolic array and streaming from HBM, step by step.",
    (
        Field("show", "Show", "choice", "systolic array", choices=_SHOW),
        Field("on", "Chip", "text", "v5e", "any chip of `rooflight chips`", chip_names()),
        Field("rows", "Rows", "count", "4", _DRAWN, stops=_SIDES, most=6, when=_ARRAY),
        Field("cols", "Columns", "count", "4", _DRAWN, stops=_SIDES, most=6, when=_ARRAY),
        Field("m", "m", "count", "6", f"rows of X, {_SMALL}", stops=_SIZES, most=16, when=_ARRAY),
        Field("k", "k", "count", "4", _SMALL, stops=_SIZES, most=16, when=_ARRAY),
        Field("n", "n", "count", "4", _SMALL, stops=_SIZES, most=16, when=_ARRAY),
        Field(
            *("registers", "Weight registers", "choice", "2", "in each cell"),
            choices=("1", "2"),
            when=_ARRAY,
        ),
        Field(
            *("op", "Op", "choice", "matmul", "that is streamed"),
            choices=("matmul", "elementwise product"),
            when=_STREAM,
        ),
        Field(
            *("b", "B", "count", "256", "[B,D] x [D,F], or two of [B,D]"),
            stops=_POWERS,
            most=1e9,
            when=_MATMUL,
        ),
        Field("d", "D", "count", "4096", "of the chip's matmul", most=1e9, when=_MATMUL),
        Field("f", "F", "count", "16384", "of the chip's matmul", most=1e9, when=_MATMUL),
        Field("dtype", "Dtype", "choice", "bf16", choices=tuple(DTYPES), when=_STREAM),
        Field("chunks", "Chunks", "count", "8", stops=_CHUNKS, most=16, when=_STREAM),
        Field(
            *("buffers", "Buffers", "count", "2", "for each side"),
            stops=("1", "2", "3", "4"),
            most=4,
            when=_STREAM,
        ),
    ),
    answer,
)
