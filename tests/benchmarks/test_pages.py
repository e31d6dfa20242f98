"""The tables of the docs are those of the stored records."""

from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.record import RESULTS, read_record

from .conftest import ROOT

STALE = "Before.\n<!-- benchmark: engine -->\nan old table\n<!-- end -->\nAfter.\n"


@pytest.mark.parametrize("path", [p for p in page.pages() if page.marked(p.read_text())], ids=str)
def test_a_page_shows_the_stored_records(path: Path) -> None:
    """`python -m benchmarks docs` writes them."""
    text = path.read_text()
    assert page.rendered(text) == text


def test_every_stored_record_is_on_one_page() -> None:
    shown = [name for path in page.pages() for name in page.marked(path.read_text())]
    stored = [path.stem for path in RESULTS.glob("*.json")]
    assert sorted(shown) == sorted(stored) and set(stored) <= set(BENCHMARKS)
    assert all(read_record(RESULTS / f"{name}.json").name == name for name in stored)
    named = (ROOT / "docs" / "benchmarks.md").read_text()
    assert all(f"`{name}`" in named for name in BENCHMARKS)


def test_a_stale_table_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROOT", tmp_path)
    path = tmp_path / "docs" / "guide" / "page.md"
    path.parent.mkdir(parents=True)
    path.write_text(STALE)
    assert main(["docs"]) == 0
    text = path.read_text()
    assert "an old table" not in text
    assert page.record_text(read_record(RESULTS / "engine.json")) in text
    assert text.startswith("Before.\n<!--") and text.endswith("-->\nAfter.\n")


def test_a_table_has_units_and_leaves_out_what_nobody_knows() -> None:
    header, _, row, *_ = page.record_text(read_record(RESULTS / "train_step.json")).splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == ["case", "measured", "rounds"]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["through the API", "412 ms", "30"]
    assert page.show(1234.5, "tokens/s") == "1,234 tokens/s" and page.show(1.5e6, "B") == "1.5 MB"
