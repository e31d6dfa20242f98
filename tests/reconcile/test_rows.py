"""Files of measured rows: JSON and YAML read alike, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from rooflight.errors import ParseError
from rooflight.reconcile.rows import Row, read_rows, shipped_rows

ROW = {
    "id": "a",
    "kind": "train",
    "source": "s",
    "model": "m",
    "chip": "v5e",
    "measured": {"step_s": 1.0},
}


def test_json_and_yaml_read_alike(tmp_path: Path) -> None:
    document = {"schema": 1, "sources": {}, "models": {"m": {"layers": 2}}, "runs": [ROW]}
    for name in ("rows.json", "rows.yaml"):  # JSON is YAML
        (tmp_path / name).write_text(json.dumps(document))
    assert read_rows(tmp_path / "rows.json") == read_rows(tmp_path / "rows.yaml")


@pytest.mark.parametrize("missing", sorted(ROW))
def test_a_row_without_a_needed_field_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"runs": [ROW, {k: v for k, v in ROW.items() if k != missing}]}))
    with pytest.raises(ParseError, match=f"run 2 .* has no {missing}"):
        read_rows(path)


@pytest.mark.parametrize("text", ("{", "[1]", "runs: [", '{"runs": [1]}'))
def test_what_is_no_file_of_rows_is_a_parse_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    with pytest.raises(ParseError):
        read_rows(path)


def test_a_configuration_forgets_when_it_was_measured_and_what_came_out() -> None:
    later = Row({**ROW, "id": "b", "release": "26.08", "measured": {"step_s": 2.0}})
    assert later.configuration == Row(ROW).configuration
    assert Row({**ROW, "chips": 8}).configuration != later.configuration


def test_every_shipped_row_names_a_source_with_a_place_and_a_date() -> None:
    rows = shipped_rows()
    assert len(rows.runs) == len({row.id for row in rows.runs}) == 750
    for row in rows.runs:
        source = rows.sources[row.source]
        assert source["repo"] and source["path"] and source["date"]
