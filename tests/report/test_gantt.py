"""Gantt charts: golden text, and an SVG with every bar at its time."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow, gantt_svg, gantt_text

NAMESPACE = "{http://www.w3.org/2000/svg}"
LEGEND = {"F": "forward", "BW": "backward", "W": "weights"}


def chart(*rows: GanttRow, note: str = "") -> Gantt:
    return Gantt("title", "caption", rows, LEGEND, number="microbatch", note=note)


def bar(kind: str, number: int, start: float, end: float, **more: int) -> Bar:
    return Bar(kind, f"{kind}{number}", start, end, tooltip=f"{kind}{number} here", **more)


def alternating(count: int) -> GanttRow:
    """Forward and backward in turns, no gap, as a device in the middle of a step."""
    bars = [
        (bar("F", i, 3 * i, 3 * i + 1), bar("BW", i, 3 * i + 1, 3 * i + 3)) for i in range(count)
    ]
    return GanttRow("0", tuple(b for pair in bars for b in pair))


def bars_of(markup: str) -> list[ElementTree.Element]:
    rects = ElementTree.fromstring(markup).iter(NAMESPACE + "rect")
    return [rect for rect in rects if rect.find(NAMESPACE + "title") is not None]


def test_labels_stand_where_every_bar_has_room() -> None:
    drawn = chart(
        GanttRow("0", (bar("F", 0, 0, 1), bar("BW", 0, 2, 4)), "holds 1"),
        GanttRow("10", (bar("F", 0, 1, 2),), "holds 1"),
        note="holds: microbatches",
    )
    assert gantt_text(drawn, width=32).split("\n") == [
        " 0 F0-- .....BW0------  holds 1",
        "10 .....F0-- .......... holds 1",
        "",
        "F forward, BW backward, . idle; the number is the microbatch",
        "holds: microbatches",
    ]


def test_letters_stand_where_labels_have_no_room() -> None:
    text = gantt_text(chart(alternating(10)), width=34)
    assert text.split("\n")[0] == "0 " + "FBW" * 10
    assert "number" not in text


def test_a_long_chart_keeps_its_beginning_and_its_end() -> None:
    line, _, key = gantt_text(chart(alternating(100)), width=40).split("\n")
    assert line.startswith("0 FBWFBW") and line.endswith("FBWFBW") and len(line) <= 40
    assert "~~" in line and "~~ left out" in key


def test_a_chart_with_one_tiny_bar_is_shrunk_rather_than_folded() -> None:
    drawn = chart(
        GanttRow("0", (bar("F", 0, 0, 10), bar("W", 0, 10, 10.001), bar("BW", 0, 11, 20)))
    )
    line = gantt_text(drawn, width=43).split("\n")[0]
    assert line == "0 F-------------------..BW----------------"


def test_bars_that_share_a_time_stand_side_by_side() -> None:
    pair = (bar("F", 1, 0, 2, part=0, parts=2), bar("BW", 2, 0, 2, part=1, parts=2))
    assert gantt_text(chart(GanttRow("0", pair)), width=12).split("\n")[0] == "0 F1- BW2"


def test_only_the_kinds_that_occur_are_in_the_legend() -> None:
    drawn = chart(GanttRow("0", (bar("F", 0, 0, 1),)))
    assert "forward" in gantt_text(drawn) and "weights" not in gantt_text(drawn)
    assert "forward" in gantt_svg(drawn) and "weights" not in gantt_svg(drawn)


@given(st.integers(1, 200), st.integers(30, 120))
def test_no_line_of_bars_is_wider_than_asked(count: int, width: int) -> None:
    assert len(gantt_text(chart(alternating(count)), width=width).split("\n")[0]) <= width


def test_the_svg_has_each_bar_once_from_its_start_to_its_end() -> None:
    drawn = chart(alternating(6))
    rects = bars_of(gantt_svg(drawn))
    assert [r.findtext(NAMESPACE + "title") for r in rects] == [b.tooltip for b in drawn.bars]
    places = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in rects]
    for (x, width), (after, _) in pairwise(places):
        assert x + width == pytest.approx(after, abs=0.2)
    assert places[1][1] == pytest.approx(2 * places[0][1], abs=0.2)


def test_the_svg_stacks_bars_that_share_a_time_and_skips_those_without() -> None:
    pair = (bar("F", 1, 0, 2, part=0, parts=2), bar("BW", 2, 0, 2, part=1, parts=2))
    top, bottom = bars_of(gantt_svg(chart(GanttRow("0", (*pair, bar("W", 0, 2, 2))))))
    assert top.attrib["x"] == bottom.attrib["x"]
    height = float(top.attrib["height"])
    assert float(bottom.attrib["y"]) == pytest.approx(float(top.attrib["y"]) + height)


def test_a_kind_has_one_colour_and_paler_shades_of_it() -> None:
    row = GanttRow("0", (bar("F", 0, 0, 1), bar("F", 1, 1, 2), bar("F", 0, 2, 3, shade=1)))
    first, second, pale = (r.attrib["fill"] for r in bars_of(gantt_svg(chart(row))))
    assert first == second != pale
    assert all(int(pale[i : i + 2], 16) >= int(first[i : i + 2], 16) for i in (1, 3, 5))


def test_everything_in_the_svg_lies_inside_it() -> None:
    root = ElementTree.fromstring(gantt_svg(chart(alternating(40))))
    for rect in root.iter(NAMESPACE + "rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= float(root.attrib["width"])
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= float(
            root.attrib["height"]
        )


def test_markup_in_a_label_is_escaped() -> None:
    drawn = Gantt("<t>", "", (GanttRow("<0>", (bar("F", 0, 0, 1),)),), LEGEND, number="microbatch")
    texts = [t.text for t in ElementTree.fromstring(gantt_svg(drawn)).iter(NAMESPACE + "text")]
    assert "<t>" in texts and "<0>" in texts
