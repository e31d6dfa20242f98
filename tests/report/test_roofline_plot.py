"""The roofline plot: golden text, and an SVG whose marks stand where the axes say."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg, roofline_text
from rooflight.ui.text.labels import Anchor, Box, place_labels

ROOF = RoofLine("tiny bf16 on HBM", 1e14, 1e12)
FAST = RoofLine("tiny int8 on HBM", 2e14, 1e12)
POINTS = (PlotPoint("decode", 2, 2e12), PlotPoint("prefill", 1000, 9e13))
NAMESPACE = "{http://www.w3.org/2000/svg}"
GOLDEN = """\
FLOP/s
       |
       |
   100T|                                          A---------------------
       |                                      ////                     2
       |                                   ///
       |                                ///
       |                             ///
       |                         ////
       |                      ///
    10T|                   ///
       |               ////
       |            ///
       |         ///
       |      1//
       |  ////
     1T|//
       |
       +---------------------+--------------------+--------------------+
 FLOP/B 1                   10                   100                  1k
A  tiny bf16 on HBM: 100 TFLOP/s, 1 TB/s, ridge 100 FLOP/B
1  decode: 2 TFLOP/s at 2 FLOP/B
2  prefill: 90 TFLOP/s at 1 kFLOP/B"""


def elements(markup: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(markup).findall(NAMESPACE + tag)


def circles(markup: str) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in elements(markup, "circle")]


def words(markup: str) -> list[str]:
    return [element.text or "" for element in elements(markup, "text")]


def ticks(markup: str, *, anchor: str) -> dict[str, float]:
    """Tick labels with their pixel: across for `middle`, up for `end`."""
    side = "x" if anchor == "middle" else "y"
    return {
        t.text or "": float(t.attrib[side])
        for t in elements(markup, "text")
        if t.attrib["text-anchor"] == anchor and re.fullmatch(r"[\d.]+[kMGTP]?", t.text or "")
    }


def test_the_terminal_plot_is_as_drawn() -> None:
    assert roofline_text([ROOF], POINTS) == GOLDEN


def test_marks_that_share_a_cell_become_a_star_and_keep_their_legend() -> None:
    drawn = roofline_text([ROOF], [PlotPoint("at the ridge", 100, 1e14)])
    assert "*-----" in drawn
    assert "A-----" not in drawn
    assert drawn.endswith("1  at the ridge: 100 TFLOP/s at 100 FLOP/B")


def test_the_terminal_plot_fits_its_box() -> None:
    lines = roofline_text([ROOF, FAST], POINTS, width=72, height=20).split("\n")
    assert len(lines) == 20 + 4
    assert max(len(line) for line in lines) <= 72
    assert all(line.isascii() for line in lines)


def test_the_svg_names_every_roof_ridge_and_point() -> None:
    found = words(roofline_svg([ROOF, FAST], POINTS, title="A <tiny> & fast chip"))
    wanted = {"A <tiny> & fast chip", "decode", "prefill", ROOF.caption, FAST.caption}
    assert wanted | {"ridge 100 FLOP/B", "ridge 200 FLOP/B"} <= set(found)


@pytest.mark.parametrize("anchor", ["middle", "end"])
def test_decades_are_evenly_spaced(anchor: str) -> None:
    places = list(ticks(roofline_svg([ROOF], POINTS), anchor=anchor).values())
    steps = [b - a for a, b in itertools.pairwise(places)]
    assert len(steps) >= 2
    assert max(steps) - min(steps) < 0.25
    assert all(step > 0 for step in steps) == (anchor == "middle")


def test_the_ridge_and_the_points_stand_where_the_axes_say() -> None:
    markup = roofline_svg([ROOF], POINTS)
    across, up = ticks(markup, anchor="middle"), ticks(markup, anchor="end")
    decade_x, decade_y = across["10"] - across["1"], up["1T"] - up["10T"]
    values = [(100, 1e14), (2, 2e12), (1000, 9e13)]
    for (x, y), (intensity, rate) in zip(circles(markup), values, strict=True):
        assert abs(x - across["1"] - math.log10(intensity) * decade_x) < 0.5
        # A tick's label hangs four pixels under its line.
        assert abs(up["1T"] - 4 - y - math.log10(rate / 1e12) * decade_y) < 0.5


ROOFS = st.lists(
    st.builds(RoofLine, st.just("roof"), st.floats(1e12, 5e15), st.floats(1e10, 1e13)),
    min_size=1,
    max_size=4,
)
SHARES = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 1)), max_size=5)


@settings(max_examples=40)
@given(roofs=ROOFS, shares=SHARES)
def test_every_mark_is_inside_the_picture_and_no_point_above_the_peak(
    roofs: list[RoofLine], shares: list[tuple[float, float]]
) -> None:
    intensities = [roofs[0].ridge * across for across, _ in shares]
    points = [
        PlotPoint("op", x, roofs[0].height(x) * share)
        for x, (_, share) in zip(intensities, shares, strict=True)
    ]
    markup = roofline_svg(roofs, points)
    marks = circles(markup)
    assert all(72 <= x <= 776 and 0 < y < 464 for x, y in marks)
    assert all(marks[0][1] <= y + 0.1 for _, y in marks[len(roofs) :])
    assert roofline_text(roofs, points).isascii()


def test_labels_keep_clear_of_each_other_and_of_the_drawing() -> None:
    anchors = [Anchor(80 + 40 * i, 100, 60, 12) for i in range(6)]
    drawing = [(float(x), 100.0) for x in range(0, 400, 4)]
    frame = Box(0, 0, 400, 200)
    boxes = place_labels(anchors, drawing=drawing, frame=frame)
    for one, other in itertools.combinations(boxes, 2):
        assert one.overlap(other) == 0
    assert not any(box.holds(x, y, margin=0) for box in boxes for x, y in drawing)
    assert all(box.overlap(frame) == box.width * box.height for box in boxes)
