"""Roofline: open, ask, read, share, export; and the figures are the library's."""

import csv
import json
import re
from urllib.request import urlopen

import pytest

from rooflight.costs.roofline import critical_batch, matmul_time, ridge_point
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.ui.browser.roofline import VIEW
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds

from .conftest import OpenVisit

INT8 = DTYPES["int8"]


def test_the_page_shows_the_librarys_figures(visit: OpenVisit) -> None:
    there = visit("/roofline").fill("dtype", "int8").fill("b", "64")
    time = matmul_time(load_chip("v5e"), m=64, k=8192, n=8192, lhs=INT8, rhs=INT8, out=INT8)
    facts = there.facts()
    assert facts["lower_s"] == format_seconds(time.lower_s)
    assert facts["binds"] == time.binds
    assert facts["ridge_flops_per_byte"] == f"{ridge_point(load_chip('v5e'), 'int8'):.4g} FLOP/B"
    assert there.rows("ops")[0][:3] == ["64x8192x8192", format_seconds(time.lower_s), time.binds]


def test_the_url_holds_the_whole_question(visit: OpenVisit) -> None:
    there = visit("/roofline").fill("on", "v5p").fill("b", "4096")
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == there.facts()
    assert "on=v5p" in again.page.url and "b=4096" in again.page.url


def test_a_slider_moves_its_field_from_stop_to_stop(visit: OpenVisit) -> None:
    there = visit("/roofline")
    before = there.facts()["lower_s"]
    slider = there.page.get_by_label("Batch B, slider")
    slider.focus()
    with there.page.expect_response(lambda r: "/part/roofline" in r.url):
        there.page.keyboard.press("ArrowRight")
    there.settle()
    assert there.page.locator("#f-b").input_value() == "256"
    assert slider.get_attribute("aria-valuetext") == "256"
    assert there.facts()["lower_s"] != before


def test_a_wrong_question_says_what_would_work(visit: OpenVisit) -> None:
    there = visit("/roofline").fill("on", "v5q")
    alert = there.page.get_by_role("alert").inner_text()
    assert "unknown chip 'v5q'" in alert and "did you mean" in alert
    there.fill("on", "v5e")
    assert there.page.get_by_role("alert").count() == 0


def test_all_exports_say_the_same(visit: OpenVisit, server: ExploreServer) -> None:
    there = visit("/roofline?b=512").unfold()
    page = there.page
    with page.expect_download() as one:
        page.get_by_role("link", name="CSV").click()
    (row,) = csv.DictReader(one.value.path().read_text().splitlines())
    with urlopen(f"{server.url}/api/roofline?b=512") as response:
        document = json.load(response)
    assert float(row["lower_s"]) == document["figures"]["lower_s"]
    assert document["tables"]["ops"][0]["lower_s"] == document["figures"]["lower_s"]
    with page.expect_download() as one:
        page.get_by_role("link", name="SVG").click()
    assert one.value.path().read_text() == document["pictures"]["roofline"]
    with page.expect_download() as one:
        page.get_by_role("button", name="PNG").click()
    assert one.value.suggested_filename == "roofline-roofline.png"
    assert one.value.path().read_bytes().startswith(b"\x89PNG")
    assert document["command"] == page.locator(".command code").inner_text()


def test_the_command_prints_the_same_figures(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooflight.cli.main import main

    there = visit("/roofline?b=512&d=4096&f=14336&pad=yes")
    words = there.page.locator(".command code").inner_text().split()
    assert main([*words[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert there.facts()["lower_s"] == format_seconds(found["matmuls"][0]["lower_s"])


def test_the_ops_of_a_model_are_under_the_roof() -> None:
    answer = VIEW.answer(VIEW.ask({"model": "llama3-8b", "b": "8192"}, Files()))
    rows = {row[0]: row for row in answer.tables[0].rows}
    up = matmul_time(
        load_chip("v5e"),
        m=8192,
        k=4096,
        n=14336,
        lhs=DTYPES["bf16"],
        rhs=DTYPES["bf16"],
        out=DTYPES["bf16"],
    )
    assert rows["mlp.in"][1] == pytest.approx(up.lower_s)
    assert all(re.fullmatch(r"[\w.]+", str(name)) for name in rows)


def test_the_critical_batch_is_the_books() -> None:
    answer = VIEW.answer(VIEW.ask({}, Files()))
    facts = {fact.key: fact.value for fact in answer.facts}
    bf16 = DTYPES["bf16"]
    expected = critical_batch(load_chip("v5e"), weight=bf16, activation=bf16, compute="bf16")
    assert facts["critical_batch_tokens"] == expected
