"""Every bar hangs where the one above it ends, and what nobody explains is told by its hatch."""

import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from rooflight.ui.svg.waterfall import Waterfall, WaterfallBar, waterfall_svg

_SECONDS = st.floats(-1.0, 1.0).filter(lambda s: abs(s) > 1e-3)


@given(st.floats(8.5, 10.0), st.lists(_SECONDS, min_size=1, max_size=8))
def test_the_changes_lead_from_one_total_to_the_other(before: float, seconds: list[float]) -> None:
    changes = tuple(WaterfallBar(f"cause {i}", s, "trace") for i, s in enumerate(seconds))
    chart = Waterfall("t", "planned", before, changes, "measured", before + sum(seconds))
    assert abs(chart.reaches[-1] - chart.after_s) < 1e-9
    bars = _bars(waterfall_svg(chart))
    assert len(bars) == len(seconds) + 2
    scale = _scale(bars, chart)
    for (_, width), change in zip(bars[1:-1], changes, strict=True):
        assert abs(width - max(abs(change.seconds) * scale, 1.0)) < 0.2


def test_only_what_has_no_witness_is_hatched() -> None:
    changes = (WaterfallBar("links & <more>", 0.3, "trace"), WaterfallBar("unattributed", 0.1, ""))
    picture = waterfall_svg(Waterfall("t", "planned", 1.0, changes, "measured", 1.4))
    assert picture.count('fill="url(#unknown)"') == 1
    assert "links &amp; &lt;more&gt;" in picture and "+300 ms, trace" in picture
    assert re.search(r"<title>unattributed: \+100 ms</title>", picture)


def _bars(picture: str) -> list[tuple[float, float]]:
    """Left edge and width of what has a tooltip."""
    name = "{http://www.w3.org/2000/svg}"
    rects = [
        r for r in ET.fromstring(picture).iter(f"{name}rect") if r.find(f"{name}title") is not None
    ]
    return [(float(r.get("x", "")), float(r.get("width", ""))) for r in rects]


def _scale(bars: list[tuple[float, float]], chart: Waterfall) -> float:
    return bars[0][1] / chart.before_s
