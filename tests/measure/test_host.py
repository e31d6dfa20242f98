"""This machine as a chip: real processes, real devices of the host, and what is made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.cli.measuring.measure import layouts_text
from rooflight.costs.choose import choose
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.calibration import host_calibration, typical_values
from rooflight.hardware.catalog import load_chip, read_chip
from rooflight.hardware.chip import Source
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.microbench import small_model
from rooflight.measure.microbench.child import measure, measure_between
from rooflight.measure.microbench.host_chip import Host, chip_file, host_of
from rooflight.measure.microbench.strategies import run_choice
from rooflight.measure.reconcile.host import (
    calibrate_host,
    calibrated_chip,
    host_runs,
    measure_layouts,
)
from rooflight.plan.training.forecast.basis import basis_of
from rooflight.plan.training.forecast.calibrated import part_table
from rooflight.plan.training.forecast.step import forecast_run
from rooflight.plan.training.time.parts import training_parts

from ..dated_figure import today, write_figure

pytest.importorskip("jax")

DEVICES = 4
SOURCE = Source("measured", "a test", "", "2026-11-15")


def host(rows: dict[str, Any], *, devices: int = DEVICES) -> Host:
    return host_of(rows, load_chip("this-host"), devices=devices, source=SOURCE)


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    return measure("ops:host", devices=2, rounds=3)


def synthetic(egress: float, launch_s: float) -> dict[str, Any]:
    """Rows of a machine that obeys the formulas: W = egress, and launch_s before all else."""
    n, sizes = DEVICES, (4096, 1 << 20, 1 << 24)
    part = {"all_gather": (n - 1) / n, "all_to_all": (n - 1) / n**2, "permute": 1.0}
    collectives = [
        {"kind": kind, "nbytes": v, "seconds": c * v / egress + launch_s}
        for kind, c in part.items()
        for v in sizes
    ]
    matmuls = [
        {"m": 1, "k": 1024, "n": 1024, "seconds": 4 * (1024**2 + 2048) / 5e9},
        {"m": 512, "k": 512, "n": 512, "seconds": 2 * 512**3 / 4e10},
    ]
    return {"matmuls": matmuls, "collectives": collectives}


def test_a_machine_that_obeys_the_formulas_is_found_again() -> None:
    found = host(synthetic(1e9, 1e-4))
    assert found.chip.flops["f32"] == pytest.approx(4e10)
    assert found.chip.hbm_bytes_per_s == pytest.approx(5e9)
    fabric = found.chip.switched
    assert fabric is not None
    # The smallest arrays are not quite without bytes, so latency is a little too large.
    assert fabric.launch_s == pytest.approx(1e-4, rel=0.05)
    assert fabric.chip_egress_bytes_per_s == pytest.approx(1e9, rel=0.01)
    for row in found.collectives:
        assert row.predicted_s == pytest.approx(row.seconds, rel=0.05)


def test_the_chip_file_reads_back_as_the_same_chip(tmp_path: Path) -> None:
    found = host(synthetic(1e9, 1e-4))
    path = tmp_path / "this-host.toml"
    path.write_text(chip_file(found))
    chip = read_chip(path)
    assert chip.switched == found.chip.switched
    assert chip.flops == found.chip.flops
    assert (chip.hbm_bytes, chip.hbm_bytes_per_s) == (
        found.chip.hbm_bytes,
        found.chip.hbm_bytes_per_s,
    )
    assert chip.sources["flops.f32"].title == SOURCE.title


def test_a_machine_too_busy_to_show_its_bandwidth_is_told_so() -> None:
    with pytest.raises(UsageError, match="too busy"):
        host(synthetic(1e30, 1e-4))


def test_rates_of_this_machine_are_those_of_a_computer(rows: dict[str, Any]) -> None:
    chip = host(rows, devices=2).chip
    fabric = chip.switched
    assert fabric is not None and chip.hbm_bytes_per_s is not None
    assert 1e8 < chip.flops["f32"] < 1e13
    assert 1e7 < chip.hbm_bytes_per_s < 1e12
    assert 1e6 < fabric.chip_egress_bytes_per_s < 1e12
    assert 1e-7 < fabric.launch_s < 10


def test_larger_matmuls_take_longer(rows: dict[str, Any]) -> None:
    seconds = {(r["m"], r["n"]): r["seconds"] for r in rows["matmuls"]}
    assert seconds[1024, 512] > 3 * seconds[128, 128]


def test_every_strategy_of_a_contraction_is_run_and_timed() -> None:
    chip = host(synthetic(1e9, 1e-4)).chip
    mesh = parse_mesh(f"X={DEVICES}", on=Slice(chip, (DEVICES,)))
    contraction = parse_contraction("A[I,J_X] * B[J_X,K] -> C[I_X,K]")
    dims = {"I": 64, "J": 64, "K": 64}
    asked = strategies(contraction, mesh.axes)
    choice = choose(asked, dims=dims, mesh=mesh, dtype=DTYPES["f32"])
    runs = run_choice(choice, mesh, dims, DTYPES["f32"])
    assert len(runs) == len(asked) > 1
    assert runs[0].summary == choice.best.summary
    assert all(run.measured_s > 0 for run in runs)


def test_another_chip_than_this_host_is_not_run_on() -> None:
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    contraction = parse_contraction("A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]")
    dims = {"I": 64, "J": 64, "K": 64}
    asked = strategies(contraction, mesh.axes)
    choice = choose(asked, dims=dims, mesh=mesh, dtype=DTYPES["bf16"])
    with pytest.raises(UsageError, match="cannot be run on v5e:4x4") as raised:
        run_choice(choice, mesh, dims, DTYPES["bf16"])
    assert "rooflight measure" in raised.value.hint


def test_layouts_of_a_host_that_obeys_its_constants_are_predicted() -> None:
    """Steps that given constants make are found again, layout by layout, and kept with the chip."""
    found = host(synthetic(1e9, 1e-4), devices=small_model.DEVICES)
    truth = typical_values() | {"matmul_bf16": 0.7, "attention": 0.3, "overlap_weights": 0.1}
    seconds = part_table([training_parts(r) for r in host_runs(found)]).seconds(truth).total
    calibrated = calibrate_host(found, seconds.tolist(), made="2026-11-15")
    assert calibrated.calibration.median_error < 0.05
    assert calibrated.rank_correlation > 0.8  # some layouts are within one percent of another
    assert max(abs(one.error) for one in calibrated.layouts) < 0.25
    mixed = seconds[[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]].tolist()
    wrong = calibrate_host(found, mixed, made="2026-11-15")
    assert wrong.calibration.median_error > 2 * calibrated.calibration.median_error


def test_a_calibrated_host_expects_what_its_file_says(tmp_path: Path) -> None:
    found = host(synthetic(1e9, 1e-4), devices=small_model.DEVICES)
    runs = host_runs(found)
    bare = basis_of(found.chip, "rooflight", experts=False)
    assert bare.distance == "none"  # nobody ran a layout on it yet
    seconds = part_table([training_parts(r) for r in runs]).seconds(typical_values()).total
    calibrated = calibrate_host(found, seconds.tolist(), made=SOURCE.checked)
    path = tmp_path / "this-host.toml"
    path.write_text(chip_file(calibrated_chip(found, calibrated)))
    chip = read_chip(path)
    assert host_calibration(chip) == replace(calibrated.calibration, made=SOURCE.checked)
    run = host_runs(replace(found, chip=chip))[0]
    said = forecast_run(run, basis_of(chip, "rooflight", experts=False))
    assert said.seconds == pytest.approx(float(seconds[0]), rel=0.1)
    assert said.low_s <= said.seconds <= said.high_s


def test_a_measurement_that_fails_says_why() -> None:
    with pytest.raises(UsageError, match="no_such_module"):
        measure("no_such_module:f", devices=1)
    with pytest.raises(UsageError, match="0 devices"):
        measure("ops:host", devices=0, rounds=1)


@pytest.mark.full
def test_ten_layouts_of_a_small_model_take_what_was_predicted() -> None:
    """Real training steps on eight devices, each predicted by a fit to the other layouts."""
    rows = measure("ops:host", devices=small_model.DEVICES, rounds=7)
    found = host(rows, devices=small_model.DEVICES)
    calibrated = calibrate_host(found, measure_layouts(found), made=today())
    write_figure("measure.md", "ten layouts", f"```text\n{layouts_text(calibrated)}\n```")
    assert len(calibrated.layouts) == 10
    assert calibrated.calibration.median_error <= 0.15
    assert calibrated.rank_correlation >= 0.9


@pytest.mark.alone
def test_processes_are_nodes_with_a_way_out_of_their_own(tmp_path: Path) -> None:
    rows = measure_between("ops:between", processes=2, devices=2, rounds=12)
    found = host_of(rows, load_chip("this-host"), devices=2, source=SOURCE, processes=2)
    assert {row["kind"] for row in rows["between"]} == {row["kind"] for row in rows["collectives"]}
    assert sum(one.between for one in found.collectives) == len(rows["between"])
    assert found.slice.num_chips == 4 and found.slice.num_hosts == 2
    fabric = found.chip.switched
    assert fabric is not None
    assert fabric.launch_s > 0 and fabric.fabric_hop_s > 0  # a thread's turn, a socket's
    path = tmp_path / "two.toml"
    path.write_text(chip_file(found), encoding="utf-8")
    assert read_chip(path).switched == fabric


def test_a_way_out_that_obeys_the_formulas_is_found_again() -> None:
    inside = synthetic(1e9, 1e-4)
    between = [
        {"kind": "all_gather", "nbytes": v, "seconds": 0.5 * v / 2e8 + 1e-4 + 5e-4}
        for v in (4096, 1 << 20, 1 << 24)
    ]
    found = host_of(
        {**inside, "between": between},
        load_chip("this-host"),
        devices=DEVICES,
        source=SOURCE,
        processes=2,
    )
    fabric = found.chip.switched
    assert fabric is not None
    assert fabric.nic_bytes_per_s == pytest.approx(2e8, rel=0.01)
    assert fabric.fabric_hop_s == pytest.approx(5e-4, rel=0.05)
    assert fabric.chip_egress_bytes_per_s == pytest.approx(1e9, rel=0.01)


def test_a_process_that_fails_ends_its_peers() -> None:
    with pytest.raises(UsageError, match="the measurement failed"):
        measure_between("ops:collective", processes=2, devices=1, kind="x", nbytes=1, rounds=1)
