"""`rooflight hlo --on --html --plot`: the time of a schedule, its page, its memory as a picture."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .command import run

DUMPS = Path(__file__).parents[1] / "verify" / "dumps"
FSDP = str(DUMPS / "fsdp")


def test_with_a_slice_the_time_of_the_schedule_is_shown() -> None:
    out = run(["hlo", FSDP, "--on", "v5e:4x4"]).out
    assert re.search(r"A step takes 8\.\d+ ms by the compiler's estimates", out)
    assert re.search(r"network X +4\.31 ms +911 us", out)


def test_the_document_has_the_time_too() -> None:
    found = json.loads(run(["hlo", FSDP, "--on", "v5e:4x4", "--json"]).out)["time"]
    assert found["seconds"] == pytest.approx(
        sum(found["busy_s"].values())
        + sum(n["exposed_s"] for n in found["network"].values())
        + found["copies"]["exposed_s"]
    )


def test_a_schedule_without_estimates_says_that_its_time_is_unknown() -> None:
    outcome = run(["hlo", str(DUMPS / "fsdp-v5p"), "--on", "v5p:4x4x4"])
    assert outcome.code == 2
    assert "no cycle estimates" in outcome.err


def test_the_page_has_a_timeline_of_every_unit_and_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "step.html"
    assert run(["hlo", FSDP, "--on", "v5e:4x4", "--html", str(path)]).code == 0
    text = path.read_text()
    for words in ("matrix unit", "vector, memory", "network X", "network Y", "Live memory"):
        assert words in text
    assert text.count("<svg") == 4, "the step, two loops, the memory"
    assert "src=" not in text and "<script" not in text
    assert not re.search(r"url\(|@import", text)


def test_without_a_slice_the_page_says_that_the_time_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "step.html"
    run(["hlo", FSDP, "--html", str(path)])
    assert "time is unknown" in path.read_text()
    assert "matrix unit" not in path.read_text()


def test_live_memory_is_drawn_up_to_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "live.svg"
    assert run(["hlo", FSDP, "--plot", str(path)]).code == 0
    words = "".join(ElementTree.parse(path).getroot().itertext())
    assert "peak 54.5 MB" in words


def test_a_text_alone_has_no_live_memory(tmp_path: Path) -> None:
    outcome = run(["hlo", "--plot", str(tmp_path / "live.svg")])
    assert outcome.code == 2
    assert "no live ranges" in outcome.err
