"""`validate --silicon`: a CSV of measured serving, answered without fitting."""

import json
from pathlib import Path

from .command import run

_COLUMNS = {
    "id": "one",
    "silicon_data_source": "x.csv; silicon_concurrency=16",
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8",
    "batch_size": "16",
    "tp_size": "4",
    "silicon_ttft_ms": "126",
    "silicon_tpot_ms": "10.94",
}


def _write(path: Path, **changed: str) -> None:
    rows = [_COLUMNS, _COLUMNS | {"id": "two"} | changed]
    lines = [",".join(_COLUMNS), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def test_rows_are_answered_or_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    _write(path, model_path="someone/Unheard-Of")
    found = json.loads(run(["validate", "--silicon", str(path), "--json"]).out)
    assert (found["rows"], found["coverage"]) == (2, 0.5)
    assert abs(found["replays"][0]["error"]) < 0.2
    assert found["refusals"][0]["because"] == "nobody states the sizes of Unheard-Of"


def test_the_page_says_which_file_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    _write(path)
    text = run(["validate", "--silicon", str(path)]).out
    assert text.startswith("2 of 2 rows answered (100.0%)")
    assert "rows.csv, answered with the shipped calibrations" in text
    assert "serving, by chip" in text
