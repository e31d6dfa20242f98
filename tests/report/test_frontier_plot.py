"""The picture of a frontier: every line drawn and named, no name on another."""

import re
from itertools import pairwise

from rooflight.ui.svg.frontier import FrontierLine, StepBreakdown, frontier_svg

LINES = tuple(
    FrontierLine(f"way {i}", tuple((0.005 * (1 + b), 10.0 * (b + 1) + i) for b in range(5)))
    for i in range(6)
)
PARTS = StepBreakdown(
    "one way", tuple((n, ((1.0, 1e-3), (64.0, 2e-3))) for n in ("weights", "KV cache"))
)


def test_every_line_has_its_name_and_a_dot_for_each_batch() -> None:
    text = frontier_svg("a model", LINES, PARTS)
    for name in (*(line.label for line in LINES), "weights", "KV cache", "a model", "one way"):
        assert text.count(f">{name}</text>") == 1
    assert text.count("<circle") == 6 * 5 + 2 * 2


def test_names_keep_their_distance() -> None:
    text = frontier_svg("a model", LINES, PARTS)
    found = re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>way \d</text>', text)
    heights = sorted(map(float, found))
    assert len(heights) == 6
    assert all(b - a >= 16.9 for a, b in pairwise(heights))


def test_a_part_that_takes_no_time_is_left_out_of_a_logarithmic_axis() -> None:
    parts = StepBreakdown("one way", (("weights", ((1.0, 0.0), (2.0, 1e-3))),))
    assert "nan" not in frontier_svg("a model", LINES[:1], parts)
