"""Chips that are two devices: the axis between them is nobody's mistake until it is used."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from plans import small_plan

from rooflight.compile.aot.program import ProgramVerdict, verify_program
from rooflight.compile.aot.request import Stage
from rooflight.compile.aot.target import device_chip, usable_bytes
from rooflight.compile.findings.document import known_of
from rooflight.compile.findings.verify import verify
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.ui.answers.verdict import verdict_answer

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)
HERE = Path(__file__).parent
FLOPS = 2 * 8192**3
ON, MESH = "tpu7x:2x2x2", "X=4,Y=2"


def _judge(
    rows: list[str],
    cols: list[str],
    cache: Path,
    *,
    on: str = ON,
    mesh: str = MESH,
    until: Stage = "partitioned",
) -> ProgramVerdict:
    return verify_program(
        "programs:product",
        parse_mesh(mesh, on=on),
        until=until,
        folder=str(HERE),
        arguments={"rows": rows, "cols": cols},
        cache=cache,
    )


@needs_compiler
@pytest.mark.parametrize(("on", "mesh"), [(ON, MESH), ("v3:2x2", "X=2,Y=2")])
def test_a_program_that_splits_over_the_axes_it_was_given_is_sound(
    on: str, mesh: str, tmp_path: Path
) -> None:
    verdict = _judge(["X"], ["Y"], tmp_path, on=on, mesh=mesh, until="scheduled")
    assert verdict.findings == () and verdict.alike == ("core",)
    assert "A chip is 2 devices, which do the same" in " ".join(
        verdict_answer(known_of(verdict)).sentences
    )


@needs_compiler
def test_a_program_that_uses_both_devices_of_a_chip_takes_half_as_long(tmp_path: Path) -> None:
    chip = load_chip("tpu7x")
    alike = _judge(["X"], ["Y"], tmp_path)
    split = _judge(["X", "core"], ["Y"], tmp_path)
    assert split.findings == () and split.alike == ()
    assert split.step_s == pytest.approx(FLOPS / 8 / chip.flops["bf16"])
    assert alike.step_s == pytest.approx(FLOPS / 8 / (chip.flops["bf16"] / 2))
    assert usable_bytes(split.mesh, split.done[0].axes) == chip.detail["hbm_usable_bytes"] / 2


@needs_compiler
@pytest.mark.parametrize(("rows", "times"), [(["core"], "4"), ([], "4"), (["X"], "2")])
def test_what_is_repeated_over_another_axis_is_found(
    rows: list[str], times: str, tmp_path: Path
) -> None:
    cols = ["Y"] if rows != ["X"] else []
    verdict = _judge(rows, cols, tmp_path)
    found = [f for f in verdict.findings if f.kind == "repeated"]
    assert len(found) == 1 and f"done {times} times over" in found[0].words


@needs_compiler
def test_a_plan_is_of_chips_and_what_goes_between_their_devices_is_named(tmp_path: Path) -> None:
    plan = replace(small_plan("dp=X", "X=4", remat="none"), slice="tpu7x:2x2x1")
    verdict = verify(plan, cache=tmp_path)
    assert verdict.findings == () and verdict.matching
    assert "between the devices of a chip, which is one to a plan" in verdict.matching.named


def test_an_axis_that_only_has_the_name_is_no_part_of_a_chip() -> None:
    mesh = parse_mesh("core=4", on="v5e:2x2")
    assert device_chip(mesh, {"core": 4}) == mesh.slice.chip
    half = device_chip(parse_mesh("X=4", on="tpu7x:2x2x1"), {"X": 4, "core": 2})
    assert half.hbm_bytes == 96_000_000_000 and half.peak_flops("bf16") == 2.307e15 / 2
