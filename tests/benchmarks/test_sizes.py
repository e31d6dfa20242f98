"""docs/before-after.md is true of this tree, and no difference that it tells lacks a cause."""

import ast
from pathlib import Path

import pytest

from benchmarks.asked import commands
from benchmarks.page import between, shown
from benchmarks.sizes import MEASURED, counts, rooms, shares
from benchmarks.trees import PAGE

from .conftest import ROOT

NEAR = 0.02  # `python -m benchmarks.sizes --write` writes the page again


def test_the_page_has_the_sizes_of_this_tree() -> None:
    _, *rows = shown(PAGE.read_text(), "sizes")
    now = {name: float(new.replace(",", "")) for name, _, new in rows}
    found = counts(ROOT / "src")
    assert now.keys() == {*found, *MEASURED}
    for name, size in found.items():
        assert now[name] == pytest.approx(size, rel=NEAR), name


def test_the_page_has_every_room() -> None:
    _, *rows = shown(PAGE.read_text(), "rooms")
    found = rooms(ROOT / "src")
    assert {name for name, *_ in rows} == set(found)
    lines = {name: float(lines.replace(",", "")) for name, _, lines in rows}
    assert sum(lines.values()) == pytest.approx(sum(n for _, n in found.values()), rel=NEAR)


def test_the_comparison_on_the_page_asked_all_of_it_and_explains_every_difference() -> None:
    page = PAGE.read_text()
    _, *rows = shown(page, "trees")
    asked = {cells[0]: cells for cells in rows if len(cells) == 4}
    assert int(asked["all"][1]) >= max(300, sum(1 for _ in commands()))
    assert not any("unexplained" in cell for cells in rows for cell in cells)


def test_sizes_are_those_of_the_syntax(tmp_path: Path) -> None:
    package = tmp_path / "rooflight"
    for path, text in {
        "__init__.py": "__all__ = ['a', 'b']\n",
        "cli/verbs.py": "VERBS = ['x', 'y']\nclass Row: ...\n",
        "cli/__init__.py": "",
        "plan/deep/row.py": "class _Row:\n    def f(self):\n        return 1\n",
    }.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
        ast.parse(text)
    found = counts(tmp_path)
    assert list(found.values()) == [2, 4, 6, 2, 1, 2, 2, 2, 2]
    assert rooms(tmp_path) == {"plan": (1, 3), "cli": (2, 2), "the ground": (1, 1)}


def test_the_share_of_a_commit_is_that_of_the_room_it_names() -> None:
    log = "@plan: a\n\n3\t0\tsrc/rooflight/plan/x.py\n1\t0\tsrc/rooflight/cli/y.py\n"
    log += "@tests: b\n\n9\t9\tsrc/rooflight/plan/x.py\n@cli: c\n\n-\t-\tsrc/rooflight/cli/z.pb\n"
    assert shares(log, {"plan", "cli"}) == [0.75]


def test_a_table_is_put_between_its_marks() -> None:
    page = (
        "a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n| x |\n| --- |\n| y |\n<!-- end -->\n"
    )
    assert between(page, "one", "new").startswith("a\n<!-- one -->\nnew\n<!-- end -->\nb\n<!-- two")
    assert shown(page, "two") == [["x"], ["y"]]
