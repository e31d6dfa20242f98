"""Chip: parts of the catalog, cycles of the formula, streams between the roofline's bounds."""

import json
from urllib.request import urlopen

import pytest

from rooflight.costs.roofline import matmul_time
from rooflight.costs.systolic import systolic_cycles
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.chip import MatrixUnit
from rooflight.ui.answer import Answer
from rooflight.ui.browser.chip import VIEW
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.view import Files
from rooflight.units import format_count, format_seconds

from .conftest import OpenVisit


def ask(**given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files()))


def facts(answer: Answer) -> dict[str, object]:
    return {f.key: f.value for f in answer.facts}


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_of_the_catalog_has_its_parts_drawn(name: str) -> None:
    answer = ask(show="parts", on=name)
    chip = load_chip(name)
    assert dict(answer.figures).get("hbm_bytes_per_s") == chip.hbm_bytes_per_s
    assert answer.pictures[0].svg.count("<rect") >= 4


def test_a_film_has_a_still_for_each_cycle_of_the_formula() -> None:
    answer = ask(show="systolic array", rows="3", cols="2", m="5", k="6", n="4")
    cycles = systolic_cycles(5, 6, 4, MatrixUnit(3, 2, 1, 1.0))
    assert len(answer.films[0].frames) == cycles.total == facts(answer)["total_cycles"]


def test_the_chips_own_array_is_priced_for_the_large_product() -> None:
    unit = load_chip("v5e").matrix_unit
    assert unit is not None
    cycles = systolic_cycles(256, 4096, 16384, unit)
    drawn, real = ask(show="systolic array", on="v5e").tables[0].rows
    assert (drawn[6], real[5], real[6]) == (None, cycles.total, cycles.total / unit.clock_hz)
    assert len(ask(show="systolic array", on="h100").tables[0].rows) == 1  # not systolic


@pytest.mark.parametrize("buffers", ["1", "2", "4"])
@pytest.mark.parametrize("b", ["16", "1024"])
def test_a_stream_takes_a_time_between_the_bounds(buffers: str, b: str) -> None:
    answer = ask(show="HBM streaming", b=b, buffers=buffers)
    bf16 = DTYPES["bf16"]
    op = matmul_time(load_chip("v5e"), m=int(b), k=4096, n=16384, lhs=bf16, rhs=bf16, out=bf16)
    found = facts(answer)
    assert found["binds"] == op.binds
    seconds = found["seconds"]
    assert isinstance(seconds, float)
    assert op.lower_s <= seconds <= op.upper_s * (1 + 1e-9)
    assert (seconds == pytest.approx(op.upper_s)) == (buffers == "1")


def test_a_stream_ends_with_every_chunk_stored() -> None:
    film = ask(show="HBM streaming", op="elementwise product", chunks="5").films[0]
    assert film.frames[-1].words.endswith("done")
    assert film.frames[0].words == "0 s: load 0"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"show": "systolic array", "rows": "1", "k": "16", "n": "16"}, "at most 64"),
        ({"show": "HBM streaming", "f": "1e9"}, "buffers"),
        ({"show": "HBM streaming", "b": "65536", "d": "65536"}, "buffers"),
    ],
)
def test_what_is_too_much_to_watch_is_refused_with_a_hint(
    given: dict[str, str], match: str
) -> None:
    with pytest.raises(UsageError, match=match) as error:
        ask(**given)
    assert error.value.hint


# In the browser


def test_cycles_can_be_stepped_through(visit: OpenVisit) -> None:
    there = visit("/chip").fill("m", "3")
    cycles = systolic_cycles(3, 4, 4, MatrixUnit(4, 4, 1, 1.0))
    assert there.facts()["total_cycles"] == format_count(cycles.total)
    film = there.page.locator("figure.film")
    film.get_by_role("slider").press("End")
    assert f"Cycle {cycles.total} of {cycles.total}" in film.locator(".words").inner_text()
    assert film.locator("svg:visible").count() == 1


def test_a_stream_shows_what_binds_it(visit: OpenVisit) -> None:
    there = visit("/chip?show=HBM+streaming").fill("b", "1024")
    bf16 = DTYPES["bf16"]
    op = matmul_time(load_chip("v5e"), m=1024, k=4096, n=16384, lhs=bf16, rhs=bf16, out=bf16)
    facts = there.facts()
    assert facts["binds"] == op.binds == "MXU bf16"
    assert facts["lower_s"] == format_seconds(op.lower_s)
    assert there.page.locator("[data-picture=timeline] svg").is_visible()
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == facts


def test_parts_of_another_chip_leave_as_picture_and_numbers(
    visit: OpenVisit, server: ExploreServer
) -> None:
    page = visit("/chip").fill("show", "parts").fill("on", "h100").page
    with urlopen(f"{server.url}/api/chip?show=parts&on=h100") as response:
        document = json.load(response)
    assert document["figures"]["hbm_bytes"] == load_chip("h100").hbm_bytes
    with page.expect_download() as one:
        page.locator("[data-picture=parts]").get_by_role("link", name="SVG").click()
    assert one.value.path().read_text() == document["pictures"]["parts"]


def test_fields_that_do_not_count_stand_back(visit: OpenVisit) -> None:
    there = visit("/chip").unfold()
    assert there.page.locator("#f-rows").is_visible()
    assert not there.page.locator("#f-chunks").is_visible()
    there.fill("show", "HBM streaming")
    assert there.page.locator("#f-chunks").is_visible()
    assert not there.page.locator("#f-rows").is_visible()
