"""`plan train --verify`: the compiler refutes the layout that was priced first, on a real slice."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.compile.aot import environment
from rooflight.compile.findings.finding import Finding
from rooflight.compile.findings.verify import NOT_ASKED, LayoutVerdict, order
from rooflight.errors import MissingExtraError
from rooflight.plan.file.record import Alternative, Plan, from_json
from rooflight.plan.training.memory.framework import FRAMEWORKS

HAS_COMPILER = all(importlib.util.find_spec(name) for name in ("jax", "libtpu"))
MODEL = ["plan", "train", "llama3.2-1b", "--on", "v5e:2x4", "--batch", "64Ki", "--seq", "8192"]
TRAIN = [*MODEL, "--rank", "roofline"]  # its first layout is the one that the compiler refutes


def placed(plan: Plan | Alternative) -> str:
    """As a row of the table has it: `dp=4@y,cp=2@x`."""
    axes = dict(part.split("=") for part in plan.mesh.split(","))
    schemes = (part.split("=") for part in plan.layout.split(","))
    return ",".join(f"{name}={axes[axis]}" for name, axis in schemes)


@pytest.mark.skipif(not HAS_COMPILER, reason="libtpu, the compiler that is asked, is missing")
def test_a_layout_that_does_not_fit_when_compiled_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The compiler keeps heads of 64 in tiles of 128; here the planner forgets it."""
    forgets = replace(FRAMEWORKS["rooflight"], lanes=1)
    monkeypatch.setitem(FRAMEWORKS, "rooflight", forgets)
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path))
    assert main([*TRAIN, "--json"]) == 0
    priced = from_json(capsys.readouterr().out)
    assert main([*TRAIN, "--verify", "2"]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line[:1].isdigit() and "GB" in line[3:]]
    assert [row.split()[0] for row in rows[:8]] == list("12345678")
    assert "passes, " in rows[0] and placed(priced.alternatives[0]) in rows[0]
    assert "does not fit, " in rows[7] and placed(priced) in rows[7]
    assert not any("passes" in row or "does not fit" in row for row in rows[1:7])
    assert "compiled: 1 of 2 pass" in text and "8 does not fit: " in text
    assert "of these, 8 is expected" not in text
    assert main([*TRAIN, "--verify", "2", "--json"]) == 0  # from the cache
    plan = from_json(capsys.readouterr().out)
    assert (plan.layout, plan.mesh) == (priced.alternatives[0].layout, priced.alternatives[0].mesh)
    assert plan.choices[0].because.startswith("the fastest that passes when compiled (jax ")
    assert plan.alternatives[-1].mesh == priced.mesh
    assert plan.alternatives[-1].because.startswith("does not fit: ")


def test_those_that_stand_come_first_each_kind_as_priced() -> None:
    why = (Finding("unexpected", "not expected: a", "fix", seconds=1.0),)
    unfit, odd, good = (
        LayoutVerdict("does not fit"),
        LayoutVerdict("findings", why),
        LayoutVerdict("passes"),
    )
    assert order([unfit, odd, good, NOT_ASKED, good]) == [2, 4, 1, 3, 0]
    assert odd.because == "findings: not expected: a"
    over = (Finding("out_of_memory", "the compiler: out of memory", "fix", nbytes=2_000_000),)
    assert LayoutVerdict("does not fit", over).because == "does not fit: 2 MB too many"


def test_without_a_compiler_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(environment, "find_spec", nothing)
    assert main([*TRAIN, "--verify", "2"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "pip install '.[tpu]'" in said.err
    with pytest.raises(MissingExtraError):
        environment.require_compiler("tpu")


@pytest.mark.parametrize("flags", (["0"], ["9"], ["x"], ["2", "--flips"]))
def test_a_count_that_is_none_or_a_question_beside_it_is_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--verify", *flags]) == 2
    assert "--verify" in capsys.readouterr().err
