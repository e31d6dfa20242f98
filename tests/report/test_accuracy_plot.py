"""The scatter plot of predictions: a dot a row, the diagonal, words for a pointer."""

import re
import xml.etree.ElementTree as ET

from rooflight.ui.html.style import as_file
from rooflight.ui.svg.accuracy import AccuracyPlot, Dot, accuracy_svg

DOTS = (
    Dot(1.0, 1.1, "dense", "a <b>: +10%"),
    Dot(10.0, 9.0, "experts", "c"),
    Dot(0.01, 0.01, "dense", "d"),
)


def test_every_row_has_a_dot_that_says_its_name() -> None:
    root = ET.fromstring(accuracy_svg(AccuracyPlot("Training", DOTS)))
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["Training", "a <b>: +10%", "d", "c"]  # a series after the other


def test_a_perfect_prediction_lies_on_the_diagonal_and_a_longer_one_above() -> None:
    text = accuracy_svg(AccuracyPlot("t", (Dot(1.0, 1.0, "x", "p"), Dot(1.0, 2.0, "x", "q"))))
    root = ET.fromstring(text)
    boxes = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    (x1, y1), (x2, y2) = ((float(b.attrib["x"]), float(b.attrib["y"])) for b in boxes)
    assert x1 == x2 and y2 < y1
    assert round(x1 - 84, 1) == round(520 - (y1 - 56) - 5, 1)


def test_series_have_their_own_colour_and_a_legend() -> None:
    text = accuracy_svg(AccuracyPlot("t", DOTS))
    assert text.count("#0072b2") == 3 and text.count("#d55e00") == 2
    assert ">experts</text>" in text and ">1 rows, median error 10.0%</text>" in text


def test_dots_without_words_are_one_path_at_the_places_of_those_with() -> None:
    plain = accuracy_svg(
        AccuracyPlot("t", tuple(Dot(d.measured_s, d.predicted_s, "x", "") for d in DOTS))
    )
    root = ET.fromstring(plain)
    (path,) = root.iter("{http://www.w3.org/2000/svg}path")
    ends = re.findall(r"M(\d+) (\d+)h0", path.attrib["d"])
    named = ET.fromstring(accuracy_svg(AccuracyPlot("t", DOTS)))
    boxes = [r for r in named.iter("{http://www.w3.org/2000/svg}rect") if len(r)]
    places = {(round(float(b.attrib["x"]) + 2.5), round(float(b.attrib["y"]) + 2.5)) for b in boxes}
    assert len(ends) == len(DOTS)
    assert all(min(abs(x - int(a)) + abs(y - int(b)) for x, y in places) <= 2 for a, b in ends)


def test_a_picture_in_a_file_has_colours_for_light_and_dark() -> None:
    text = as_file(accuracy_svg(AccuracyPlot("t", DOTS)))
    ET.fromstring(text)
    assert text.count("<style>") == 1 and text.count("prefers-color-scheme: dark") == 2
    assert "--paper: #ffffff" in text and "--paper: #171c22" in text
