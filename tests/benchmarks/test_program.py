"""The race of two programs: its table holds together, on a small dump and in the kept record."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from benchmarks import program
from benchmarks.__main__ import main
from benchmarks.page import record_text
from benchmarks.record import RESULTS, Record, Row, read_record, to_json
from rooflight.compile.aot.run import Compilation
from rooflight.compile.hlo.dump import find_dumps, read_dump
from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.mesh import parse_mesh

from .conftest import ROOT, Measured

DUMP = ROOT / "tests" / "verify" / "dumps" / "fsdp"
KEPT = RESULTS / "program.json"


def together(row: Row) -> float:
    """What the chip does or waits for, one after another."""
    units = sum(row.more[f"{unit}_s"] for unit in ("matrix", "vector", "kernels", "copies"))
    return units + sum(s for name, s in row.more.items() if name.endswith("exposed_s"))


def small() -> Row:
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    step = read_dump(find_dumps(DUMP)[0], axes=mesh.axes)
    return program.estimated("small: ours", step, mesh, {"compile_s": 2.0})


def test_the_parts_of_a_row_add_up_to_its_seconds() -> None:
    row = small()
    assert together(row) == pytest.approx(row.value, rel=1e-9)
    assert row.more["X exposed_s"] == pytest.approx(4.31e-3, rel=1e-2)
    assert row.more["X hidden_s"] == pytest.approx(911e-6, rel=1e-2)
    assert row.more["recomputed"] == pytest.approx(0.14, abs=5e-3)
    assert row.more["memory_B"] == pytest.approx(54.7e6, rel=1e-2)


def test_the_sum_of_the_compilers_cycles_has_matmuls_as_they_are() -> None:
    """No transfers are in it, and ops without matmuls are not held to their bytes."""
    row = small()
    assert row.more["matrix_s"] < row.more["compiler's sum_s"]
    assert row.more["compiler's sum_s"] != pytest.approx(row.value, rel=1e-2)


def test_the_table_says_estimated_and_has_units() -> None:
    text = record_text(Record("program", "2026-11-19", None, None, None, (small(),)))
    header, _, row = (line.split("|")[1:-1] for line in text.splitlines()[:3])
    cells = dict(zip(map(str.strip, header), map(str.strip, row), strict=True))
    assert cells["estimated"] == "8.45 ms" and "measured" not in cells
    assert (cells["X exposed"], cells["memory"]) == ("4.31 ms", "54.7 MB")


def test_every_case_is_a_plan_and_settings_of_maxtext() -> None:
    for case in program.cases():
        mesh = case.plan.placed()
        assert case.settings["per_device_batch_size"] == case.plan.batch / mesh.slice.num_chips
        degrees = [n for k, n in case.settings.items() if k.startswith("ici_")]
        assert prod(int(str(n)) for n in degrees) == mesh.slice.num_chips, case.name
        assert case.settings["compile_topology"]
    with pytest.raises(UnknownNameError, match="9b-v5e"):
        program.cases(["9b-v5e"])


def compiled(case: program.Case, axes: dict[str, int]) -> Compilation:
    request = program.our_request(case)
    return Compilation(request, "compiled", "", DUMP, axes, {}, None, {}, 2.0, 1.0, 0, False)


def test_the_axes_of_the_other_program_get_our_names_or_are_refused() -> None:
    case = program.cases(["8b-v5e-tensor"])[0]
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    step = program.read_on(compiled(case, {"data": 1, "fsdp": 4, "tensor": 4}), mesh)
    assert {axis for c in step.collectives for axis in c.axes or ()} == {"X", "Y"}
    with pytest.raises(UsageError, match="in their order"):
        program.read_on(compiled(case, {"data": 1, "fsdp": 8, "tensor": 2}), mesh)


def test_only_the_chosen_cases_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    old = (Row("a: ours", 2.0, "s"), Row("b: ours", 3.0, "s"))
    record = Record("program", "2026-11-19", None, None, None, old)
    (tmp_path / "program.json").write_text(to_json(record))
    new = tmp_path / "new.json"
    new.write_text(to_json(replace(record, rows=(Row("b: ours", 1.0, "s"),))))
    assert main(["program", "--record", str(new), "--write", "--cases", "b"]) == 0
    kept = read_record(tmp_path / "program.json")
    assert [(row.case, row.value) for row in kept.rows] == [("a: ours", 2.0), ("b: ours", 1.0)]


def test_the_kept_record_holds_together() -> None:
    record, known = read_record(KEPT), [case.name for case in program.cases()]
    names = dict.fromkeys(row.case.partition(": ")[0] for row in record.rows)
    assert names and set(names) <= set(known)
    for name in names:
        rows = program.rows_of(record.rows, name)
        for who in (program.OURS, program.THEIRS):
            if who in rows:
                assert together(rows[who]) == pytest.approx(rows[who].value, rel=1e-6), (name, who)
        if program.OURS in rows and program.THEIRS in rows:
            ratio = rows[f"{program.OURS} / {program.THEIRS}"].value
            assert ratio == pytest.approx(rows["ours"].value / rows["MaxText"].value, rel=1e-9)


@pytest.mark.full
def test_a_case_runs_whole() -> None:
    """Makes MaxText's environment where there is none, and compiles both programs."""
    found, kept = Measured("program", "--cases", "8b-v5e"), read_record(KEPT)
    for who, row in program.rows_of(kept.rows, "8b-v5e").items():
        if who in (program.OURS, program.THEIRS):
            assert found[row.case] == pytest.approx(row.value, rel=1e-2)
    assert found["8b-v5e: ours / MaxText"] <= 0.98
