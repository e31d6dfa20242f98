"""Train: the ranked layouts are those of the planner, while a slider moves."""

import json
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.train import VIEW
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds, format_si

from .conftest import OpenVisit

if TYPE_CHECKING:
    from playwright.sync_api import Route

SMALL = "model=llama3.2-1b&on=v5e:2x2&batch=65536&seq=4096"


def planned(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*command.split()[1:], "--json"]) == 0
    return cast(dict[str, object], json.loads(capsys.readouterr().out))


def test_the_page_shows_what_the_command_plans(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    there = visit(f"/train?{SMALL}").fill("batch", "131072")
    plan = planned(capsys, there.page.locator("#answer .command code").inner_text())
    time = cast(dict[str, dict[str, float]], plan["time"])
    assert there.facts()["step_s"] == format_seconds(time["forecast"]["seconds"])
    rows = there.rows("candidates")
    others = cast(list[dict[str, object]], plan["alternatives"])[: len(rows) - 1]
    assert [row[3] for row in rows[1:]] == [
        format_seconds(cast(float, o["step_s"])) for o in others
    ]
    held = [format_si(cast(int, o["hbm_bytes"]), "B") for o in others]
    assert [row[-1] for row in rows[1:]] == held


def test_a_slider_greys_what_is_old_until_the_new_is_there(visit: OpenVisit) -> None:
    there = visit(f"/train?{SMALL}")
    slider = there.page.get_by_label("Batch, slider")
    slider.focus()
    with there.page.expect_response(lambda r: "/part/train/more" in r.url):
        there.page.keyboard.press("ArrowRight")
        there.page.locator("#more[data-state=stale]").wait_for()
    there.settle()
    assert there.page.locator("#more[data-state=fresh] svg").count() >= 1
    shared = visit(there.page.url.removeprefix(there.url))
    assert shared.facts() == there.facts()


def test_an_old_second_answer_is_never_shown_as_new(visit: OpenVisit) -> None:
    there = visit(f"/train?{SMALL}")
    held: list[Route] = []

    def hold_first(route: "Route") -> None:
        route.continue_() if held else held.append(route)

    there.page.route("**/part/train/more?*", hold_first)
    with there.page.expect_request("**/part/train/more?*"):
        there.page.locator("#f-batch").fill("131072")
    with there.page.expect_response("**/part/train?*batch=262144*"):
        there.page.locator("#f-batch").fill("262144")
    assert there.page.locator("#more").get_attribute("data-state") == "stale"
    held[0].continue_()
    there.settle()
    shown = there.page.locator("#more").get_attribute("data-query")
    assert shown is not None and "batch=262144" in shown


def test_why_not_and_time_against_batch_follow(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    there = visit(f"/train?{SMALL}&why_not=pp%3D2")
    asked = planned(capsys, there.page.locator("#more .command code").inner_text())
    terms = cast(list[dict[str, float]], asked["terms"])
    shown = {row[0]: row[1] for row in there.rows("compared")}
    seconds = {str(t["name"]): t["seconds"] for t in terms}
    assert seconds and seconds.keys() <= shown.keys()
    assert all(shown[name] == (format_seconds(s) if s else "-") for name, s in seconds.items())
    assert there.page.locator("figure[data-picture=time] svg").count() == 1


@pytest.mark.parametrize("look", ["matmuls under the roof", "strong scaling", "flip points"])
def test_every_look_has_an_answer(look: str) -> None:
    asked = {"model": "llama3.2-1b", "on": "v5e:2x4", "batch": "65536", "look": look}
    assert VIEW.more is not None
    answer = VIEW.more(VIEW.ask(asked, Files()))
    assert answer.sentences and (answer.tables or answer.pictures)
    assert answer.command.startswith("rooflight plan train")


def test_a_pipeline_is_drawn() -> None:
    asked = {"model": "llama3-70b", "on": "v5e:16x16", "batch": "1M", "seq": "8192"}
    assert VIEW.more is not None
    question = VIEW.ask(asked | {"why_not": "pp=4"}, Files())
    keys = {picture.key for picture in VIEW.more(question).pictures}
    layouts = VIEW.answer(question).tables[0].rows[0]
    assert ("pipeline" in keys) == ("pp=" in str(layouts[1]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on": "64*v5p:16x20x28"}, "too many to search"),
        ({"on": "v5p:16x16x16", "model": "deepseek-v3"}, "too many to search"),
        ({"batch": "100"}, "no whole sequence"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words) as caught:
        VIEW.answer(VIEW.ask(given, Files()))
    assert getattr(caught.value, "hint", "")
    assert isinstance(caught.value, UsageError) or caught.type.__name__ == "RooflightError"


def test_what_does_not_fit_is_an_answer_whose_links_fit(visit: OpenVisit) -> None:
    """Bars that overflow, and for each kind of change the first that has a plan."""
    asked = {"model": "llama3-8b", "on": "v5e:2x4", "batch": "512Ki", "recipe": "18"}
    answer = VIEW.answer(VIEW.ask(asked, Files()))
    assert "does not fit" in answer.sentences[0] and dict(answer.figures)["fits"] is False
    (table,) = answer.tables
    assert {str(link.question) for link in table.links} and len(table.rows) >= 2
    for link, row in zip(table.links, table.rows, strict=True):
        fixed = VIEW.answer(VIEW.ask(dict(link.question), Files()))
        assert dict(fixed.figures)["fits"] and fixed.facts[0].value == row[3]
    (held,) = (f for f in answer.facts if f.key == "over_bytes")
    assert isinstance(held.value, int) and held.value > 0
    there = visit(f"/train?{urlencode(asked)}")
    there.page.locator("table[data-table=fixes] a").first.click()
    assert there.settle().facts()["step_s"] == format_seconds(cast(float, table.rows[0][3]))


def test_a_length_is_read_as_the_command_reads_it() -> None:
    question = VIEW.ask({"seq": "8k", "batch": "4M"}, Files())
    assert (question.length("seq"), question.count("batch")) == (8192, 4_000_000)
    with pytest.raises(UsageError):
        VIEW.ask({"seq": "32M"}, Files())


def test_the_json_has_the_unrounded_figures(server: ExploreServer) -> None:
    with urlopen(f"{server.url}/api/train?{SMALL}") as response:
        document = json.load(response)
    first = document["tables"]["candidates"][0]
    assert first["step_s"] == document["figures"]["step_s"]
    assert format_seconds(first["step_s"]) in document["sentences"][0]
