"""Serve: the frontier and the fleet are those of the command line."""

import json
from typing import Any

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.ui.answer import show_dollars
from rooflight.ui.browser.serve import VIEW
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds

from .conftest import OpenVisit

SMALL = "/serve?model=llama3.2-1b&on=v5e:1x1&context=2048"


def said(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """What a command prints as JSON, whose values are of any type."""
    capsys.readouterr()
    assert main([*command.split()[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_page_shows_the_frontier_of_the_command(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    there = visit(SMALL).fill("context", "4096")
    found = said(capsys, there.page.locator("#answer .command code").inner_text())
    points = found["frontier"]["4096"]
    rows = there.rows("frontier")
    assert [row[0] for row in rows] == [format_seconds(p["step_s"]) for p in points]
    assert [row[3] for row in rows] == [f"{p['dollars_per_million']:.2f}" for p in points]
    assert [row[-1] for row in rows] == [p["binds"] for p in points]
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == there.facts()


def test_a_fleet_is_the_one_of_plan_serve(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    there = visit(f"{SMALL}&rate=2&isl=256&osl=32&tpot=50ms")
    fleet = said(capsys, there.page.locator("#more .command code").inner_text())["fleet"]
    facts = there.facts()
    assert facts["dollars_per_hour"] == show_dollars(fleet["dollars_per_hour"])
    assert facts["replicas"] == str(fleet["replicas"])
    p95 = {row[0]: row[4] for row in there.rows("latencies")}
    assert p95["TTFT"] == format_seconds(fleet["simulated"]["ttft"]["p95_s"])
    assert p95["TPOT"] == format_seconds(fleet["simulated"]["tpot"]["p95_s"])


def test_a_step_is_split_by_batch_and_by_context() -> None:
    asked = {"model": "llama3-8b", "on": "v5e:2x2", "batch": "8"}
    answer = VIEW.answer(VIEW.ask(asked, Files()))
    tables = {table.key: table for table in answer.tables}
    for key in ("by_batch", "by_context"):
        columns = [column.key for column in tables[key].columns]
        kv = [row[columns.index("KV cache_s")] for row in tables[key].rows]
        weights = {row[columns.index("weights_s")] for row in tables[key].rows}
        assert kv == sorted(kv, key=lambda v: float(v or 0)) and len(weights) == 1
    assert {"frontier", "context"} == {picture.key for picture in answer.pictures}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on": "v5e:1x1,v5e:2x2,v5e:2x4,v5e:4x4,v5e:4x8"}, "more than a plot shows"),
        ({"on": "v5p:16x20x28"}, "more than 1024 chips"),
        ({"tpot": "1us"}, "no batch takes less"),
        ({"model": "llama3-70b", "on": "v5e:1x1"}, "not one sequence"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        VIEW.answer(VIEW.ask(given, Files()))
    assert caught.value.hint
