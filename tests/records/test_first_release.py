"""Files that release 0.1.0 wrote: its commands made both, and its commands answer the same."""

import json
from pathlib import Path

import pytest

import rooflight as rf

from ..cli.command import run

PLAN = Path(__file__).with_name("first_release_plan.json")
FLEET = Path(__file__).with_name("first_release_fleet.json")


def test_a_plan_of_the_first_release_is_loaded_with_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = rf.load_plan(PLAN)
    assert capsys.readouterr().err == "note: read schema 1 of a plan file as schema 3\n"
    assert (plan.model.name, plan.slice, plan.layout) == ("llama3-8b", "v5e:4x4", "fsdp=X,sp=Y")
    assert plan.time.roofline_s == json.loads(PLAN.read_text())["time"]["expected_s"]
    plan.save(tmp_path / "plan.json")
    assert rf.load_plan(tmp_path / "plan.json") == plan
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (PLAN, "4,003 collectives of 89.6 GB per step"),
        (FLEET, "65 collectives of 136 MB per step"),
    ],
)
def test_the_program_of_a_file_of_the_first_release_is_the_one_it_was(
    file: Path, expected: str
) -> None:
    outcome = run(["verify", str(file), "--expect"])
    assert (
        outcome.code == 0
        and f"on v5e:{'4x4' if file == PLAN else '2x2'}: {expected}" in outcome.out
    )


@pytest.mark.parametrize(
    ("file", "to", "line"),
    [
        (PLAN, "maxtext", "ici_fsdp_parallelism"),
        (PLAN, "torchtitan", "[parallelism]"),
        (FLEET, "vllm", "vllm serve llama3-8b --tensor-parallel-size 4"),
        (FLEET, "sglang", "--tp"),
        (FLEET, "kubernetes", "kind: Deployment"),
    ],
)
def test_a_file_of_the_first_release_is_exported(file: Path, to: str, line: str) -> None:
    outcome = run(["export", str(file), "--to", to])
    assert outcome.code in (0, 1) and line in outcome.out, outcome.err
