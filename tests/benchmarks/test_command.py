"""The command of the benchmarks: its names, its record, and a record held against another."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.machine import Machine
from benchmarks.record import Record, Row, ratio_row, read_record, row_of, to_json

from .conftest import ROOT, Measured

ROWS = (
    Row("seconds", 2.0, "s", rounds=5, spread=0.1),
    Row("rate", 100.0, "tokens/s", "higher", load=0.5, more={"planned_s": 0.1}),
)
RECORD = Record("search", "2026-11-16", "abc", Machine(2, 1e11, 1e10), 0.25, ROWS, ("A note.",))


def test_the_command_lists_every_module_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    modules = (ROOT / "benchmarks").glob("*.py")
    assert sorted(listed) == sorted(
        m.stem for m in modules if "\ndef run(*, quick" in m.read_text()
    )
    assert listed == list(BENCHMARKS)


def test_a_quick_run_ends_in_a_record_with_every_field() -> None:
    found = Measured("start_up", "--quick")
    assert list(found.record) == list(asdict(RECORD))
    assert found.record["name"] == "start_up" and found.record["machine"] is None
    assert 0 <= found.record["load"] <= 1
    bare = found.rows["bare interpreter"]
    assert list(bare) == list(asdict(ROWS[0]))
    assert (bare["unit"], bare["better"], bare["rounds"]) == ("s", "lower", 7)
    assert bare["value"] > 0 and bare["spread"] >= 0


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for record in (RECORD, replace(RECORD, machine=None, commit=None, load=None, notes=())):
        path.write_text(to_json(record))
        assert read_record(path) == record


def against(folder: Path, seconds: float, rate: float, *flags: str) -> int:
    before, after = folder / "before.json", folder / "after.json"
    before.write_text(to_json(RECORD))
    rows = (replace(ROWS[0], value=seconds), replace(ROWS[1], value=rate), Row("new", 1, "s"))
    after.write_text(to_json(replace(RECORD, rows=rows)))
    return main(["search", "--record", str(after), "--against", str(before), *flags])


@pytest.mark.parametrize(
    ("seconds", "rate", "words", "code"),
    [
        (2.1, 100.0, ["within the spread"] * 2, 0),
        (2.3, 100.0, ["worse", "within the spread"], 0),  # by less than the factor
        (2.6, 100.0, ["worse", "within the spread"], 1),
        (1.0, 125.0, ["better", "better"], 0),
        (2.0, 50.0, ["within the spread", "worse"], 1),
    ],
)
def test_a_record_against_an_earlier_one_tells_what_became_worse(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    rate: float,
    words: list[str],
    code: int,
) -> None:
    assert against(tmp_path, seconds, rate) == code
    lines = capsys.readouterr().out.splitlines()[2:4]
    assert [line.split("|")[-2].strip() for line in lines] == words


def test_the_factor_that_fails_is_chosen(tmp_path: Path) -> None:
    assert against(tmp_path, 2.3, 100.0, "--factor", "1.12") == 1
    assert against(tmp_path, 2.6, 100.0, "--factor", "1.5") == 0


def test_a_quick_run_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["search", "--quick", "--write"])
    assert ended.value.code == 2 and "full runs only" in capsys.readouterr().err


def test_a_row_is_a_median_and_a_ratio_one_of_pairs() -> None:
    row = row_of("case", [1.0, 2.0, 3.0, 4.0, 10.0])
    assert (row.value, row.rounds, row.spread) == (3.0, 5, pytest.approx(2 / 3, abs=1e-4))
    assert row_of("case", [1.0]).spread is None
    assert ratio_row("case", [1.0, 20.0, 3.0], [1.0, 10.0, 1.0]).value == 2.0


def test_a_record_says_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROUNDS", 1)
    machine.this_host.cache_clear()
    found = machine.this_machine()
    machine.this_host.cache_clear()
    assert found.flops_per_s and 1e9 < found.flops_per_s < 1e14
    assert found.memory_bytes_per_s and 1e9 < found.memory_bytes_per_s < 1e13
