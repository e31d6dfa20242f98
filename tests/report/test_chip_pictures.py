"""A chip, its systolic array and its streams as pictures: what is there is drawn, no more."""

import xml.etree.ElementTree as ET

import pytest

from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.ui.svg.chip import chip_svg
from rooflight.ui.svg.stream import StreamStill, stream_svg
from rooflight.ui.svg.systolic import CellView, SystolicStill, systolic_svg
from rooflight.units import format_si

SVG = "{http://www.w3.org/2000/svg}"


def words(text: str) -> list[str]:
    return [str(t.text) for t in ET.fromstring(text).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", chip_names())
def test_a_chip_shows_its_sizes_and_says_what_is_unknown(name: str) -> None:
    chip, shown = load_chip(name), words(chip_svg(load_chip(name)))
    assert chip.title in shown
    size = format_si(chip.hbm_bytes, "B") if chip.hbm_bytes else "size unknown"
    assert size in shown
    assert ("rate unknown" in shown) == (not chip.hbm_bytes_per_s or not chip.vmem_bytes_per_s)


def test_a_cell_shows_what_lies_in_it() -> None:
    empty, full = CellView(None, None, None, None), CellView(7, 8, 3, 21)
    still = SystolicStill(
        title="X W",
        words="cycle 4",
        cells=((full, empty),),
        left=((None, 5),),
        above=((None,), (6,)),
        result=((21, None),),
        fresh=((0, 0),),
    )
    shown = words(systolic_svg(still))
    assert {"w 7", "next 8", "x 3", "5", "6", "."} <= set(shown)
    assert shown.count("21") == 3  # in its cell, at the foot, in the result


def test_a_stream_shows_who_moves() -> None:
    still = StreamStill(
        title="stream",
        words="now",
        names={"hbm": "HBM", "vmem": "VMEM", "unit": "MXU"},
        count=4,
        waiting=frozenset({2, 3}),
        stored=frozenset({0}),
        arriving=(2, 1),
        leaving=(None, 1),
        working=1,
        loading=2,
        storing=None,
    )
    shown = words(stream_svg(still))
    assert {"load 2", "works on 1"} <= set(shown)
    assert not any(word.startswith("store") for word in shown)
    assert shown.count("1") == 3  # in both buffers and at the unit
