"""The verbs validate and calibrate: tables, JSON, pages and files."""

import json
import os
from pathlib import Path

from rooflight.measure.published.memory_replay import shipped_memory_rows
from rooflight.measure.published.rows import shipped_rows

from .command import run

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "accuracy.svg"


def _rows_of(chip: str, folder: Path) -> Path:
    rows = shipped_rows()
    path = folder / "rows.json"
    runs = [dict(row.fields) for row in rows.runs if row.chip == chip]
    path.write_text(json.dumps({"sources": {}, "models": dict(rows.models), "runs": runs}))
    return path


def test_the_first_line_says_how_many_rows_are_answered() -> None:
    outcome = run(["validate"])
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].endswith("no row of its configuration")
    assert "\nrefused\n" in outcome.out


def test_json_has_every_row_and_every_group(tmp_path: Path) -> None:
    path = _rows_of("tpu_v4", tmp_path)
    document = json.loads(run(["validate", "--rows", str(path), "--json"]).out)
    assert document["schema"] == 2 and document["rows"] == 5
    assert len(document["replays"]) == 4 and len(document["refusals"]) == 1
    assert document["chip"]["train"][0]["group"] == "tpu_v4 dense"
    assert all(r["is_calibrated"] and r["assumed"] is not None for r in document["replays"])


def test_the_picture_of_the_readme_is_the_one_that_the_command_draws(tmp_path: Path) -> None:
    drawn = PICTURE if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN") else tmp_path / "accuracy.svg"
    assert run(["validate", "--svg", str(drawn)]).code == 0
    assert drawn.read_text() == PICTURE.read_text()
    assert drawn.stat().st_size < 25_000


def test_a_report_has_a_plot_and_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run(["validate", "--html", str(page)]).code == 0
    text = page.read_text()
    assert "<svg" in text and "By source" in text and "Rows without an answer" in text


def test_verbose_lists_rows_with_what_was_assumed(tmp_path: Path) -> None:
    path = _rows_of("tpu_v4", tmp_path)
    out = run(["validate", "--rows", str(path), "-v"]).out
    assert "rows, the worst first" in out and "maxtext-v4-22b-1x64" in out


def test_peaks_of_a_file_are_counted_and_refused_with_a_reason(tmp_path: Path) -> None:
    shipped = shipped_memory_rows()
    row = dict(shipped.runs[0].fields)
    wrong = [
        row | {"id": "half", "remat": "full block 3"},
        row | {"id": "lost", "measured": {"step_s": 1.0}},
        row | {"id": "ways", "layout": {"tp": 1, "pp": 4, "vp": 8, "dp": 2, "ep": 3}},
        row | {"id": "text", "batch": {"global_seqs": "many"}},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"models": dict(shipped.models), "runs": [row, *wrong]}))
    out = run(["validate", "--rows", str(path), "-v"]).out
    assert out.startswith("peak memory: 1 of 5 rows counted")
    assert "'full block 3' is not counted" in out and "no peak was measured" in out
    document = json.loads(run(["validate", "--rows", str(path), "--json"]).out)
    (peak,) = document["peaks"]
    assert peak["counted_bytes"] == sum(peak["parts"].values()) and peak["chance"] > 0.5
    assert {r["id"] for r in document["refusals"]} == {"half", "lost", "ways", "text"}
    assert document["memory"][-1]["rows"] == 1
    assert run(["validate", "--rows", str(path), "--svg", str(tmp_path / "a.svg")]).code == 2
    page = tmp_path / "page.html"
    assert run(["validate", "--rows", str(path), "--html", str(page)]).code == 0
    assert "Peak memory" in page.read_text()


def test_calibrate_writes_a_file_a_chip(tmp_path: Path) -> None:
    path = _rows_of("tpu_v4", tmp_path)
    outcome = run(["calibrate", str(path), "--write", str(tmp_path)])
    assert outcome.code == 0 and "tpu_v4 under maxtext, dense: 4 rows" in outcome.out
    assert "matmul_bf16" in (tmp_path / "tpu_v4.toml").read_text()


def test_a_chip_without_rows_is_named() -> None:
    outcome = run(["calibrate", "shipped", "--chip", "tpu_v44"])
    assert outcome.code == 2 and "tpu_v4" in outcome.err


def test_a_plan_says_what_to_expect_or_that_nobody_measured() -> None:
    sizes = ["--batch", "16Ki", "--seq", "1024"]
    known = run(["plan", "train", "llama3.2-1b", "--on", "v5e:2x2", *sizes]).out
    unknown = run(["plan", "train", "llama3.2-1b", "--on", "v100:4", *sizes, "--dtype", "f16"]).out
    assert "forecast: " in known and "measured runs of tpu_v5e under maxtext" in known
    assert "80 % between" in known
    assert "measured runs of any gpu under megatron" in unknown  # wide, and never 100 %
