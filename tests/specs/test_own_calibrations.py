"""Calibrations of one's own: files named by the environment come before the shipped ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.errors import ParseError
from rooflight.hardware.calibration import (
    DENSE,
    OWN,
    Calibration,
    calibration_text,
    own_calibrations,
    shipped_calibrations,
    typical_values,
)
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.forecast.basis import basis_of
from rooflight.plan.training.forecast.step import Forecast, forecast_run
from rooflight.plan.training.time.parts import TrainingRun

_ONE = Calibration("v5e", OWN, DENSE, typical_values(), 4, ("x",), "2026-11-15", 0.1, 0.1, 0.2)


def _run() -> TrainingRun:
    graph, mesh = model_graph(load_model("llama3-8b")), parse_mesh("X=256", on="v5e:16x16")
    return TrainingRun(graph, parse_layout("fsdp=X"), mesh, 512, 4096)


def _forecast() -> Forecast:
    run = _run()
    return forecast_run(run, basis_of(run.mesh.slice.chip, "rooflight", experts=False))


def test_a_plan_expects_what_ones_own_runs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = _forecast()
    slow = replace(_ONE, values=typical_values() | {"matmul_bf16": 0.2})
    (tmp_path / "v5e.toml").write_text(calibration_text([slow]), encoding="utf-8")
    for named in (tmp_path, tmp_path / "v5e.toml"):
        monkeypatch.setenv("ROOFLIGHT_CALIBRATIONS", str(named))
        found = _forecast()
        assert found.seconds > 2 * shipped.seconds
        one = found.basis.calibration
        assert found.basis.distance == "own" and (one.engine, one.rows) == (OWN, 4)
    monkeypatch.delenv("ROOFLIGHT_CALIBRATIONS")
    assert _forecast() == shipped and own_calibrations() == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[calibration", "cannot read"),
        ("[[calibration]]\nengine = 1\n", "cannot read"),
        (calibration_text([replace(_ONE, values={"memory": 0.5})]), "lacks matmul_bf16"),
    ],
)
def test_a_file_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    path = tmp_path / "v5e.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("ROOFLIGHT_CALIBRATIONS", str(path))
    with pytest.raises(ParseError, match=words) as error:
        own_calibrations()
    assert str(path) in str(error.value)


def test_a_file_of_before_0_2_is_read_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = next(c for c in shipped_calibrations().values() if c.chip == "tpu_v5e")
    text = calibration_text([one])
    path = tmp_path / "old_chip.toml"
    path.write_text(text.replace("matmul_launch_s", "product_s"), encoding="utf-8")
    monkeypatch.setenv("ROOFLIGHT_CALIBRATIONS", str(path))
    own_calibrations()
    (found,) = own_calibrations().values()
    assert found.values["matmul_launch_s"] == pytest.approx(one.values["matmul_launch_s"], rel=1e-3)
    noted = capsys.readouterr().err
    assert noted == "note: the calibration of old_chip has names from before 0.2\n"
