"""The fit finds constants that made the data, stays in range, and fails where it should."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.hardware.calibration import calibration_constants, typical_values
from rooflight.hardware.mesh import parse_mesh
from rooflight.measure.published.fit import fit_values
from rooflight.measure.published.hierarchy import cross_validate, fit_hierarchy, places
from rooflight.measure.published.replay import Case, CaseSet
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.forecast.calibrated import ROOF, PartTable, part_table
from rooflight.plan.training.time.parts import TrainingRun, training_parts

from .wrong_rows import shuffled

NAMES = sorted(calibration_constants())


@pytest.fixture(scope="module", name="table")
def small_table() -> PartTable:
    runs = [
        TrainingRun(model_graph(load_model(model)), parse_layout("fsdp=X"), mesh, batch, seq)
        for mesh in (parse_mesh("X=64", on="v5e:8x8"), parse_mesh("X=16", on="v5e:4x4"))
        for model, batch, seq in (
            ("llama3.2-1b", 64, 1024),
            ("llama3.2-1b", 256, 4096),
            ("llama3-8b", 64, 2048),
            ("llama3-8b", 128, 8192),
            ("llama2-13b", 64, 4096),
        )
    ]
    return part_table([training_parts(run) for run in runs])


def test_the_constants_that_made_the_data_are_found(table: PartTable) -> None:
    truth = typical_values() | {"matmul_bf16": 0.62, "attention": 0.3, "memory": 0.5}
    measured = table.seconds(truth).total
    found = fit_values(table, measured, typical_values(), trust=5.0)
    assert table.seconds(found).total == pytest.approx(measured, rel=0.01)
    assert found["matmul_bf16"] == pytest.approx(0.62, abs=0.05)


def test_a_fit_is_the_same_from_every_start(table: PartTable) -> None:
    measured = table.seconds(typical_values() | {"matmul_bf16": 0.9}).total
    first = fit_values(table, measured, typical_values(), trust=0.7)
    repeated = fit_values(table, measured, typical_values(), trust=0.7, start=first)
    assert table.seconds(repeated).total == pytest.approx(table.seconds(first).total, rel=1e-3)


@settings(max_examples=10)
@given(st.floats(0.01, 100.0))
def test_no_data_moves_a_constant_out_of_its_range(factor: float) -> None:
    runs = [
        TrainingRun(
            model_graph(load_model("llama3.2-1b")),
            parse_layout("fsdp=X"),
            parse_mesh("X=16", on="v5e:4x4"),
            64,
            2048,
        )
    ]
    table = part_table([training_parts(run) for run in runs])
    measured = factor * table.seconds(typical_values()).total
    found = fit_values(table, measured, typical_values(), trust=3.0)
    for constant in calibration_constants().values():
        assert constant.low <= found[constant.name] <= constant.high


@given(st.sampled_from(NAMES), st.floats(-20, 20))
def test_a_free_coordinate_is_always_a_value_in_range(name: str, free: float) -> None:
    constant = calibration_constants()[name]
    value = constant.bounded(free)
    assert constant.low <= value <= constant.high * (1 + 1e-12)
    if abs(free) < 6:
        assert constant.free(value) == pytest.approx(free, abs=1e-6)


@given(st.sampled_from([n for n in NAMES if n not in ("step_s", "matmul_launch_s")]))
def test_a_better_efficiency_never_takes_longer(table: PartTable, name: str) -> None:
    slow = table.seconds(typical_values()).total
    fast = table.seconds(typical_values() | {name: calibration_constants()[name].high}).total
    assert np.all(fast <= slow * (1 + 1e-12))


def test_no_calibration_beats_the_roof(table: PartTable) -> None:
    roof = table.seconds(ROOF).total
    best = {c.name: c.low if c.is_time else c.high for c in calibration_constants().values()}
    assert np.all(roof <= table.seconds(best).total)


def test_shuffled_measurements_destroy_the_held_out_fit(table: PartTable) -> None:
    measured = table.seconds(typical_values() | {"matmul_bf16": 0.6}).total
    cases = tuple(
        Case(str(i), "train", "s", f"m{i}", "m", "v5e", "tpu", "maxtext", "dense", f"c{i}", s, ())
        for i, s in enumerate(measured.tolist())
    )
    asked = CaseSet(cases, (), table)

    def error(rows: CaseSet) -> float:
        out = cross_validate(rows, "model").seconds
        return float(np.median(np.abs(out / rows.measured_s - 1)))

    assert error(asked) < 0.05
    assert error(shuffled(asked)) > 0.5


def test_own_rows_move_what_was_known_before(table: PartTable) -> None:
    """One row of a chip whose constants are known is answered by them; without, by typical ones."""
    truth = typical_values() | {"matmul_bf16": 0.45, "near_links": 0.3, "memory": 0.4}
    seconds = table.seconds(truth).total
    one = np.arange(len(seconds)) == 0
    case = Case("0", "train", "s", "m", "m", "v5e", "tpu", "maxtext", "dense", "c", seconds[0], ())
    alone = CaseSet((case,), (), table.take(one))
    place = places(case)[0]
    said = {
        name: table.seconds(fit_hierarchy(asked)[place]).total
        for name, asked in {
            "known": replace(alone, priors={("v5e", "maxtext", "dense"): truth}),
            "fresh": alone,
        }.items()
    }
    assert said["known"] == pytest.approx(seconds, rel=1e-3)
    assert np.abs(said["fresh"] / seconds - 1).max() > 0.05
