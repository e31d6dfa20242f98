"""The prediction beside a measurement is that of the simulator, on the same traffic."""

from pathlib import Path

import pytest

from rooflight.cli.hardware.chip_facts import chip_toml
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice
from rooflight.measure.load.predict import predict
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.arrivals import Lengths, RandomTraffic
from rooflight.plan.serving.simulate.run import simulate
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.simulate.tally import Slo
from rooflight.plan.serving.step.layout import ServingLayout, parse_precision

TRAFFIC = RandomTraffic(5.0, Lengths("fixed", 512), Lengths("fixed", 64), 60)


def _setup(on: str) -> Setup:
    slice = parse_slice(on)
    layout = ServingLayout(tp=slice.num_chips)
    return Setup(load_model("llama3-8b"), slice, layout, parse_precision("bf16"))


def test_without_a_calibration_it_is_what_simulate_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "desk.toml").write_text(chip_toml(load_chip("v5e")).replace('"tpu"', '"cpu"'))
    monkeypatch.setenv("ROOFLIGHT_CHIPS", str(tmp_path))
    setup = _setup("desk:2x4")
    told = predict(
        TRAFFIC.arrivals(), setup, replicas=1, slo=Slo(), input_tokens=512, output_tokens=64
    )
    found = simulate(TRAFFIC.arrivals(), cost=setup.cost(), limits=setup.limits())
    assert told.calibration is None
    assert told.simulation == found and told.roof == found.floor


def test_no_prediction_is_below_its_roof() -> None:
    told = predict(
        TRAFFIC.arrivals(),
        _setup("v5e:2x4"),
        replicas=1,
        slo=Slo(),
        input_tokens=512,
        output_tokens=64,
    )
    found = told.simulation
    assert told.calibration is not None  # chips of Google have been measured by many
    assert found.ttft and found.tpot and found.e2e
    assert found.ttft.mean >= told.roof.ttft_s
    assert found.tpot.mean >= told.roof.tpot_s
    assert found.e2e.mean >= told.roof.e2e_s
