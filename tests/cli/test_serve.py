"""`rooflight serve` before it starts anything: what it says of its limits and of mistakes."""

import json
from pathlib import Path

import pytest

from .command import run

FLEET = {
    "on": "v5e:2x4",
    "layout": "tp=8",
    "dtypes": "int8/int8/bf16",
    "max_rows": 48,
    "max_step_tokens": 1024,
    "longest_request": 3000,
    "block_tokens": 64,
    "pool_tokens": 64 * 1000,
}


def write_plan(folder: Path, model: str = "llama3-8b", **other: object) -> str:
    path = folder / "plan.json"
    document = {"question": "serve", "model": model, "fleet": {**FLEET, **other}}
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize("model", ["./nope", "llama3-8b"])
def test_a_model_that_is_no_folder_has_no_weights(model: str) -> None:
    outcome = run(["serve", model])
    assert outcome.code == 2
    assert f"must be in a folder, got '{model}'" in outcome.err
    assert "hint: give a folder with config.json" in outcome.err


def test_the_hint_of_a_bound_is_within_it() -> None:
    outcome = run(["serve", "llama3-8b", "--max-tokens", "1", "--dry-run"])
    assert outcome.code == 2
    assert "--max-tokens 1 is not from 2 to 10,000,000" in outcome.err
    assert "hint: write --max-tokens 2" in outcome.err


def test_the_time_of_a_step_is_planned_or_unknown() -> None:
    unknown = run(["serve", "llama3-8b", "--dry-run"])
    assert "how long a full step takes is unknown: give --on" in unknown.out
    planned = run(["serve", "llama3-8b", "--dry-run", "--on", "v5e:2x4", "--dtypes", "bf16"])
    assert "ms, predicted" in planned.out and "give --on" not in planned.out


def test_a_plan_says_how_large_and_a_flag_says_otherwise(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    asked = ["serve", "llama3-8b", "--plan", plan, "--dry-run", "--json"]
    limits = json.loads(run(asked).out)["limits"]
    assert (limits["max_rows"], limits["max_step_tokens"]) == (48, 1024)
    assert (limits["num_blocks"], limits["block_tokens"]) == (1000, 64)
    assert json.loads(run([*asked, "--rows", "8"]).out)["limits"]["max_rows"] == 8


def test_a_plan_has_a_place_of_its_own_and_is_for_one_model(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    both = run(["serve", "llama3-8b", "--plan", plan, "--on", "v5e:2x4", "--dry-run"])
    assert both.code == 2 and "--plan already says --on" in both.err
    other = run(["serve", "llama3.2-1b", "--plan", plan, "--dry-run"])
    assert other.code == 2 and "is for llama3-8b" in other.err
    broken = run(["serve", "llama3-8b", "--plan", str(tmp_path / "none"), "--dry-run"])
    assert broken.code == 2 and "cannot read" in broken.err


def test_a_layout_takes_as_many_chips_as_there_are() -> None:
    asked = ["serve", "llama3-8b", "--on", "v5e:2x4", "--dtypes", "bf16", "--dry-run"]
    assert run([*asked, "--layout", "tp=4,ws=2"]).code == 0
    outcome = run([*asked, "--layout", "tp=4"])
    assert outcome.code == 2 and "takes 4 chips, --on has 8" in outcome.err


@pytest.mark.parametrize(
    ("dtypes", "what"), [("mxfp4", "weights in mxfp4"), ("int8@experts", "weights in int8@experts")]
)
def test_dtypes_that_the_engine_has_not_are_refused_before_it_starts(
    dtypes: str, what: str
) -> None:
    """They were planned as asked and served as the checkpoint has them."""
    outcome = run(["serve", "mixtral-8x7b", "--on", "v5e:2x4", "--dtypes", dtypes, "--dry-run"])
    assert outcome.code == 2 and f"the program has no {what}" in outcome.err
    assert "hint: take one of bf16" in outcome.err
