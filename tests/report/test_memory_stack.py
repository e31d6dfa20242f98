"""Bars of memory: as long as their bytes, against one line."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg

SVG = "{http://www.w3.org/2000/svg}"
PARTS = ("weights", "gradients", "activations")
SIZES = st.tuples(*[st.integers(0, 10**11)] * 3)


def drawn(stacks: list[tuple[int, ...]], capacity: int) -> ElementTree.Element:
    held = tuple(Stack(f"number {i}", sizes) for i, sizes in enumerate(stacks))
    return ElementTree.fromstring(memory_svg(MemoryStacks("title", PARTS, held, capacity)))


def segments(root: ElementTree.Element) -> list[tuple[float, float]]:
    """Start and width of every part of a bar."""
    rects = [r for r in root.iter(SVG + "rect") if r.find(SVG + "title") is not None]
    return [(float(r.attrib["x"]), float(r.attrib["width"])) for r in rects]


def capacity_x(root: ElementTree.Element) -> float:
    (rule,) = [r for r in root.iter(SVG + "line") if "stroke-dasharray" in r.attrib]
    return float(rule.attrib["x1"])


@given(SIZES, st.integers(10**9, 10**12))
def test_a_bar_passes_the_line_when_its_bytes_pass_the_capacity(
    sizes: tuple[int, ...], capacity: int
) -> None:
    root = drawn([sizes], capacity)
    end, rule = max((x + w for x, w in segments(root)), default=0.0), capacity_x(root)
    if abs(end - rule) > 0.5:  # coordinates have one decimal
        assert (end > rule) == (sum(sizes) > capacity)


def test_the_parts_of_a_bar_are_as_long_as_their_bytes_and_leave_no_gap() -> None:
    first, second, third = segments(drawn([(10**9, 3 * 10**9, 2 * 10**9)], 10**10))
    assert abs(second[1] - 3 * first[1]) < 0.3
    assert abs(third[1] - 2 * first[1]) < 0.3
    assert abs(first[0] + first[1] - second[0]) < 0.2
    assert abs(second[0] + second[1] - third[0]) < 0.2


def test_a_part_that_no_bar_has_is_not_in_the_legend() -> None:
    words = [t.text for t in drawn([(5, 0, 1), (4, 0, 2)], 10).iter(SVG + "text")]
    assert "weights" in words
    assert "gradients" not in words


def test_totals_and_capacity_are_written_with_their_unit() -> None:
    words = [t.text for t in drawn([(10**9, 0, 10**9)], 16 * 10**9).iter(SVG + "text")]
    assert "2 GB" in words
    assert "HBM: 16 GB" in words


def test_thirteen_parts_have_thirteen_colours() -> None:
    parts = tuple(f"part {i}" for i in range(13))
    stacks = MemoryStacks("title", parts, (Stack("one", (10**9,) * 13),), 10**11)
    root = ElementTree.fromstring(memory_svg(stacks))
    rects = [r for r in root.iter(SVG + "rect") if r.find(SVG + "title") is not None]
    assert len({r.attrib["fill"] for r in rects}) == 13
