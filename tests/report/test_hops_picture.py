"""Hops as pictures: everything has a place, arrows are where messages are, cells are filled."""

import math
import xml.etree.ElementTree as ET

import pytest

from rooflight.hardware.slice import parse_slice
from rooflight.ui.svg.hops import Arrow, HopsStill, hops_svg, network_layout

SLICES = ["v5e:16x1", "v5e:8x1", "v5e:4x4", "v5p:4x4x4", "v5p:2x2x4", "h100:8", "h100:4x2", "v5e"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("on", SLICES)
def test_no_two_boxes_share_a_place(on: str) -> None:
    layout = network_layout(parse_slice(on))
    assert layout.num_chips == parse_slice(on).num_chips
    for i, one in enumerate(layout.places):
        for other in layout.places[:i]:
            assert math.dist(one, other) > 0.99


@pytest.mark.parametrize(
    ("on", "links"),
    [("v5e:16x1", 16), ("v5e:8x1", 7), ("v5e:4x4", 24), ("v5p:4x4x4", 192), ("h100:8", 8)],
)
def test_a_link_joins_each_pair_of_neighbours_once(on: str, links: int) -> None:
    layout = network_layout(parse_slice(on))
    assert len({frozenset(link) for link in layout.links}) == len(layout.links) == links


def still(on: str, *, value: float, arrows: tuple[Arrow, ...] = ()) -> ET.Element:
    layout = network_layout(parse_slice(on))
    cells = ((value,) * 4,) * layout.num_chips
    return ET.fromstring(hops_svg(HopsStill("hops", 1e-6, 2e-6, cells, arrows), layout))


def numbers(drawn: ET.Element) -> list[str]:
    return [str(t.text) for t in drawn.iter(f"{SVG}text") if t.get("font-size") == "9"]


def test_whole_parts_carry_their_numbers_and_others_do_not() -> None:
    assert numbers(still("v5e:2x2", value=1.0)) == ["0", "1", "2", "3"] * 4
    assert numbers(still("v5e:2x2", value=0.5)) == []


@pytest.mark.parametrize("on", SLICES[:-1])
def test_every_arrow_has_a_shaft_and_a_head(on: str) -> None:
    """A link round an end is drawn twice: where it leaves and where it comes in."""
    layout = network_layout(parse_slice(on))
    for source, target in layout.links:
        drawn = still(on, value=0.0, arrows=(Arrow(source, target, ""),))
        strokes = list(drawn.iter(f"{SVG}polyline"))
        assert len(strokes) == (1 if layout.is_near(source, target) else 2)


def test_opposite_arrows_do_not_cover_each_other() -> None:
    there, back = (
        next(still("v5e:2x2", value=0.0, arrows=(Arrow(*ends, ""),)).iter(f"{SVG}polyline"))
        for ends in ((0, 1), (1, 0))
    )
    heights = {str(s.get("points")).split()[0].split(",")[1] for s in (there, back)}
    assert len(heights) == 2


def test_the_picture_says_what_it_is_and_when() -> None:
    drawn = still("v5e:2x2", value=1.0)
    words = [t.text for t in drawn.iter(f"{SVG}text")]
    assert drawn.findtext(f"{SVG}title") == "hops"
    assert "1 us of 2 us" in words


def test_many_parts_become_one_bar() -> None:
    layout = network_layout(parse_slice("v5e:2x2"))
    cells = ((0.25,) * 32,) * 4
    text = hops_svg(HopsStill("hops", 0.0, 1.0, cells, ()), layout)
    assert text.count("8 of 32") == 4
