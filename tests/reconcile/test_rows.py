"""Files of measured rows: JSON and YAML read alike, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from rooflight.errors import ParseError, UsageError
from rooflight.hardware.calibration import measured_chips
from rooflight.measure.published.degrees import measured_chip
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.rows import PublishedRun, read_facts, read_rows, shipped_rows
from rooflight.models.presets import load_model, model_names

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
    later = PublishedRun({**ROW, "id": "b", "release": "26.08", "measured": {"step_s": 2.0}})
    assert later.configuration == PublishedRun(ROW).configuration
    assert PublishedRun({**ROW, "chips": 8}).configuration != later.configuration


def test_every_shipped_row_names_a_source_with_a_place_and_a_date() -> None:
    rows = shipped_rows()
    assert len(rows.runs) == len({row.id for row in rows.runs}) == 860
    for row in rows.runs:
        source = rows.sources[row.source]
        assert source["repo"] and source["path"] and source["date"]


@pytest.mark.parametrize("name", sorted(measured_chips()))
def test_every_chip_that_rows_name_is_in_the_catalog(name: str) -> None:
    found = measured_chip(name)
    assert found.chip.name == name and found.chip.flops and found.devices >= 1


@pytest.mark.parametrize("name", [*model_names(), "llama3-405b", "Kimi-K2-1T", "Llama-4-Scout"])
def test_a_preset_needs_no_sizes_in_a_file(name: str) -> None:
    sized, preset = sized_model(PublishedRun({**ROW, "model": name}), {}), load_model(name)
    if name not in read_facts("models"):
        assert sized.spec.layers == preset.layers and sized.spec.name == name
        assert any(preset.name in assumed for assumed in sized.assumed)


def test_the_sizes_of_a_file_come_before_those_of_a_preset() -> None:
    models = {"llama3.1-8b": {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "vocab": 100}}
    assert sized_model(PublishedRun({**ROW, "model": "llama3.1-8b"}), models).spec.num_layers == 2


def test_a_preset_is_cut_to_the_layers_that_ran() -> None:
    row = PublishedRun({**ROW, "model": "kimi-k2", "layers_run": 4})
    assert sized_model(row, {}).spec.num_layers == 4


def test_a_model_of_a_row_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        with pytest.raises(UsageError, match="nobody states the sizes"):
            sized_model(PublishedRun({**ROW, "model": name}), {})
