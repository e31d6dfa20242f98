"""`rooflight profile`: files, documents, differences and errors."""

import csv
import json
from pathlib import Path

import pytest

from rooflight.measure.trace.read import EXAMPLE

from .command import Outcome
from .command import run as run_words


def run(*words: str) -> Outcome:
    return run_words(words)


def test_the_answer_comes_first_and_tables_follow() -> None:
    done = run("profile")
    assert done.code == 0
    assert done.out.startswith("3 steps of ")
    assert "while the device waits, the host does" in done.out
    assert "jax.profiler.trace" in done.err


def test_the_document_has_every_row_and_adds_up() -> None:
    shown = json.loads(run("profile", "--by", "op", "--json").out)
    assert (shown["verb"], shown["by"]) == ("profile", "op")
    assert sum(row["seconds"] for row in shown["rows"]) == pytest.approx(shown["seconds"])
    assert [step["name"] for step in shown["steps"]] == ["0", "1", "2"]
    assert {flown["kind"] for flown in shown["collectives"]} >= {"all", "all-gather"}


def test_a_spreadsheet_has_a_column_for_every_step(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run("profile", "--csv", str(path))
    rows = list(csv.DictReader(path.read_text().splitlines()))
    shown = json.loads(run("profile", "--json").out)
    assert [row["class"] for row in rows] == [*(r["key"] for r in shown["rows"]), "step"]
    assert float(rows[-1]["step 2"]) == pytest.approx(shown["steps"][2]["seconds"])


def test_perfetto_gets_every_op_on_its_device(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run("profile", "--perfetto", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {"host", "CPU:0", "CPU:1"}
    ops = [e for e in events if e["ph"] == "X" and e["tid"] == 1 and e["pid"] > 0]
    assert {e["cat"] for e in ops} >= {"matmul", "all-gather"}
    assert all(e["dur"] >= 0 for e in ops)


def test_a_trace_does_not_differ_from_itself() -> None:
    done = run("profile", str(EXAMPLE), "--diff", str(EXAMPLE))
    assert "+0 s (+0.0%)" in done.out
    shown = json.loads(run("profile", "--diff", str(EXAMPLE), "--json").out)
    assert all(row["before_s"] == row["after_s"] for row in shown["diff"])


def test_a_chip_gives_its_roof_to_a_trace_without_one() -> None:
    assert "of the device is unknown" in run("profile").out
    assert (
        "Roof: 197 TFLOP/s and 820 GB/s (from TPU v5e, bf16)." in run("profile", "--on", "v5e").out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no/such/file",), "cannot read 'no/such/file'"),
        (("--step", "9"), "unknown step '9'"),
        (("--by", "clas"), "did you mean `class`"),
        (("--csv", "no/such/folder/x.csv"), "give --csv a file in a folder that exists"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_printed(words: tuple[str, ...], said: str) -> None:
    done = run("profile", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_truncated_file_ends_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(EXAMPLE.read_bytes()[:100_000])
    done = run("profile", str(path))
    assert done.code == 2
    assert "is not a whole trace" in done.err.splitlines()[0]
