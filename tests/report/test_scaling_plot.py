"""The scaling picture: valid SVG, every mark inside it, words escaped."""

import re
import xml.etree.ElementTree as ET

import pytest

from rooflight.ui.svg.scaling import Mark, scaling_svg

MARKS = [
    Mark(8 * 2**i, rate, part, f"h100:8x{2**i}", "collectives, 20%")
    for i, (rate, part) in enumerate([(1e4, 1.0), (2e4, 1.0), (3e4, 0.75), (3.1e4, 0.39)])
]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_mark_is_inside_the_picture(count: int) -> None:
    text = scaling_svg(MARKS[:count], title="A & B", bend=MARKS[2] if count > 2 else None)
    root = ET.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)
    assert len(dots) == 2 * count  # one in each panel
    assert all(0 < float(x) < width and 0 < float(y) < height for x, y in dots)
    assert ("bends: collectives, 20%" in text) == (count > 2)
    assert "A &amp; B" in text


def test_perfect_scaling_lies_on_the_dashed_line() -> None:
    text = scaling_svg(MARKS[:2], title="t")
    dashed = re.search(
        r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"[^>]*5 4', text
    )
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)[:2]
    assert dashed and [*dots[0], *dots[1]] == list(dashed.groups())
