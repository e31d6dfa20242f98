"""Run: the event log of a run as a page, long or short; no step, one step, restarts."""

import json
import statistics
from pathlib import Path

import pytest

from rooflight.errors import UsageError
from rooflight.train.events import EventLog, goodput
from rooflight.train.run import FILE, Run, run_to_json
from rooflight.ui.answer import Answer
from rooflight.ui.browser.run import VIEW
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds

from ..train.small_run import small_plan
from .conftest import OpenVisit


def write_run(folder: Path, steps: int, *, attempts: int = 1) -> Path:
    """An event log as the trainer writes it; every attempt goes back two steps."""
    at = 0
    for attempt in range(attempts):
        log = EventLog(folder, attempt=attempt)
        log.tell("began", step=max(0, at - 2))
        for step in range(max(0, at - 2), (attempt + 1) * steps // attempts):
            log.tell("step", step=step, loss=8 / (1 + step), seconds=0.1 + step % 7 / 100)
            at = step + 1
        log.tell("saved", step=at, seconds=0.5)
    return folder


def ask(folder: Path, **given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files(folder)))


def test_a_run_is_listed_opened_and_shared(visit: OpenVisit, folder: Path) -> None:
    run = write_run(folder / "a-run", 40, attempts=2)
    there = visit("/run")
    there.page.get_by_role("link", name="run: a-run").click()
    there.settle()
    facts = there.facts()
    seconds = [0.1 + step % 7 / 100 for step in range(40)]
    assert facts["step_s"] == format_seconds(statistics.median(seconds))
    assert facts["steps"] == "40" and facts["loss"] == f"{8 / 40:.4f}"
    assert facts["goodput"] == f"{goodput(run).share:.1%}"
    assert there.page.locator("figure[data-picture=steps] svg").count() == 1
    assert "No step was profiled" in (there.page.locator("#more").text_content() or "")
    assert visit("/run?file=a-run").facts() == facts


def test_a_long_run_is_a_small_picture(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    lines = [
        {"time": 1.0 * i, "event": "step", "attempt": 0, "step": i, "loss": 1.0, "seconds": 0.5}
        for i in range(200_000)
    ]
    lines[123_456]["seconds"] = 99.0
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    answer = ask(tmp_path, file="long")
    (picture,) = answer.pictures
    assert len(picture.svg) < 60_000
    assert "50 s" in picture.svg or "100 s" in picture.svg  # the slow step is on the scale


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_has_hardly_begun_is_shown(tmp_path: Path, steps: int) -> None:
    write_run(tmp_path / "new", steps)
    answer = ask(tmp_path, file="new")
    assert ("no step yet" in answer.sentences[0]) == (steps == 0)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="not the folder of a run"):
        ask(tmp_path, file="folder")
    with pytest.raises(UsageError, match="there is no"):
        ask(tmp_path, file="nowhere")


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    assert "rooflight train" in ask(tmp_path).sentences[0]


@pytest.mark.parametrize(
    ("device", "on", "held"),
    [
        ("TPU v5 lite", "v5e:2x2", True),
        ("cpu", "v5e:2x2", False),
        (None, "v5e:2x2", False),
        ("cpu", "not-there:4", False),
    ],
)
def test_time_is_held_to_the_plan_only_on_the_planned_kind_of_chip(
    tmp_path: Path, device: str | None, on: str, held: bool
) -> None:
    folder = write_run(tmp_path / "a-run", 10)
    plan = small_plan("fsdp=X", "X=4", on)
    (folder / FILE).write_text(run_to_json(Run(plan, "tokens", str(folder), 10)), encoding="utf-8")
    facts = {} if device is None else {"device": device}
    EventLog(folder, attempt=0).tell("compiled", seconds=1.0, **facts)
    found = ask(tmp_path, file="a-run")
    assert any("times as long" in one for one in found.sentences) == held
    assert any("not held to the plan" in one for one in found.sentences) == (not held)
    assert ({fact.key: fact.value for fact in found.facts}["planned_s"] is not None) == held
