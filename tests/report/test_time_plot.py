"""Seconds against tokens: lines where their values are, names that can be read."""

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.svg.marks import LogAxis
from rooflight.ui.svg.time import TimeLine, TimePlot, time_svg

SVG = "{http://www.w3.org/2000/svg}"
TOKENS = (1000, 2000, 4000, 8000)


def drawn(*lines: TimeLine) -> ElementTree.Element:
    return ElementTree.fromstring(time_svg(TimePlot("title", lines, 2000)))


def line(label: str, *seconds: float) -> TimeLine:
    return TimeLine(label, tuple(zip(TOKENS, seconds, strict=False)))


def places(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    found = [p.attrib["points"].split() for p in root.iter(SVG + "polyline")]
    return [[(float(x), float(y)) for x, y in (p.split(",") for p in points)] for points in found]


def test_equal_ratios_are_equal_steps_on_both_axes() -> None:
    (points,) = places(drawn(line("matmuls", 0.1, 0.2, 0.4, 0.8)))
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(points)]
    assert max(dx for dx, _ in steps) - min(dx for dx, _ in steps) < 0.2
    assert max(dy for _, dy in steps) - min(dy for _, dy in steps) < 0.2
    assert steps[0][0] > 0 > steps[0][1]


def test_the_asked_batch_has_a_dot_on_every_line_that_reaches_it() -> None:
    late = TimeLine("late", ((4000, 0.3), (8000, 0.3)))
    root = drawn(line("matmuls", 0.1, 0.2, 0.4), line("fsdp", 0.3, 0.3, 0.3), late)
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(SVG + "circle")]
    assert dots == [points[1] for points in places(root)[:2]]


def test_a_line_of_zeros_or_without_points_is_left_out() -> None:
    root = drawn(line("matmuls", 0.1, 0.2), line("one chip", 0.0, 0.0), line("tensor"))
    assert len(places(root)) == 1
    assert "tensor" not in [t.text for t in root.iter(SVG + "text")]


@given(st.lists(st.floats(1e-6, 1e4), min_size=2, max_size=7))
def test_names_never_cover_each_other(seconds: list[float]) -> None:
    lines = [TimeLine(f"line {i}", ((1000, s), (2000, s))) for i, s in enumerate(seconds)]
    texts = drawn(*lines).iter(SVG + "text")
    heights = sorted(float(t.attrib["y"]) for t in texts if (t.text or "").startswith("line"))
    assert len(heights) == len(lines)
    assert all(below - above >= 16.9 for above, below in pairwise(heights))


@given(st.floats(-9, 9), st.floats(0.05, 8))
def test_ticks_lie_on_the_axis_and_ascend(low: float, length: float) -> None:
    axis = LogAxis(low, low + length)
    ticks = axis.ticks
    assert ticks == sorted(set(ticks))
    assert all(-1e-6 <= axis.share(t) <= 1 + 1e-6 for t in ticks)
    assert ticks or length < 0.5
