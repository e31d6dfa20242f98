"""`rooflight book`: pages, lists and the check."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.book.entry import Entry, entries
from rooflight.cli.learning import book

from .command import run

GOLDEN = Path(__file__).parent / "golden" / "book"
DOC = Path(__file__).parents[2] / "docs" / "book.md"
PAGES = ("3.2", "2.5", "12.quiz4.1", "tpus.chip_v3", "5.3")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_in_the_golden_file(name: str) -> None:
    outcome = run(["book", name])
    assert (outcome.code, outcome.err) == (0, "")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        path.write_text(outcome.out)
    assert outcome.out == path.read_text()


def test_every_page_prints_in_plain_text_and_as_json() -> None:
    for entry in entries():
        outcome = run(["book", entry.id])
        assert outcome.code == 0 and outcome.out.isascii(), entry.id
    document = json.loads(run(["book", "2.5", "--json"]).out)
    (solution,) = document["solutions"]
    assert solution["status"] == "with erratum"
    assert {a["name"] for a in solution["answers"]} == {"bytes", "first_byte", "bw_time", "total"}


def test_the_list_names_every_problem_and_the_chapters_the_rest() -> None:
    listed = json.loads(run(["book", "--json"]).out)["problems"]
    assert {"3.2", "3.pq2", "12.quiz4.5"} <= {p["name"] for p in listed}
    text = run(["book"]).out
    assert all(p["title"] in text for p in listed)
    chapter = json.loads(run(["book", "3", "--json"]).out)
    assert len(chapter["entries"]) == 30
    assert "sharding.q2_1" in run(["book", "3"]).out


def test_the_check_reproduces_everything() -> None:
    outcome = run(["book", "--check"])
    assert outcome.code == 0
    assert outcome.out.startswith("361 of 361 reproduced, 9 measured ones compared\n")
    document = json.loads(run(["book", "--check", "--json"]).out)
    assert document["reproduced"] + document["measured"] == document["entries"] == 370
    assert run(["book", "3.2", "--check"]).out.startswith("4 of 4 reproduced\n")


def test_an_altered_value_makes_the_check_exit_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    altered = [_altered(e) if e.id == "sharding.q2_1" else e for e in entries()]
    monkeypatch.setattr(book, "entries", lambda: tuple(altered))
    outcome = run(["book", "--check"])
    assert outcome.code == 1
    assert outcome.out.startswith("360 of 361 reproduced, 9 measured ones compared\n")
    assert "sharding.q2_1: t is" in outcome.out


def _altered(entry: Entry) -> Entry:
    wrong = replace(entry.expected["t"], truth=2.0e-5)
    return replace(entry, expected={"t": wrong})


def test_an_unknown_problem_ends_in_a_hint_that_works() -> None:
    outcome = run(["book", "sharding.q2_11"])
    assert outcome.code == 2
    suggestion = outcome.err.split("did you mean `")[1].split("`")[0]
    assert run(["book", suggestion]).code == 0
    assert "`rooflight book` lists the problems" in run(["book", "zzz"]).err


def test_the_guide_lists_every_erratum() -> None:
    rows = [f"- `{e.id}`: {x.why}" for e in entries() for x in e.errata]
    start, end = "<!-- errata: generated -->\n", "<!-- end -->"
    before, rest = DOC.read_text().split(start)
    listed, after = rest.split(end)
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        listed = "\n".join(rows) + "\n"
        DOC.write_text(before + start + listed + end + after)
    assert listed.splitlines() == rows
