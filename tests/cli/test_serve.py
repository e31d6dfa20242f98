"""`rooflight serve` before it starts anything: what it says of its limits and of mistakes."""

import pytest

from .command import run


@pytest.mark.parametrize("model", ["./nope", "llama3-8b"])
def test_a_model_that_is_no_folder_has_no_weights(model: str) -> None:
    outcome = run(["serve", model])
    assert outcome.code == 2
    assert f"'{model}' is no folder" in outcome.err
    assert "hint: give a folder with config.json" in outcome.err


def test_the_hint_of_a_bound_is_within_it() -> None:
    outcome = run(["serve", "llama3-8b", "--max-tokens", "1", "--dry-run"])
    assert outcome.code == 2
    assert "--max-tokens 1 is not from 2 to 10,000,000" in outcome.err
    assert "hint: write --max-tokens 2" in outcome.err


def test_the_time_of_a_step_is_planned_or_unknown() -> None:
    unknown = run(["serve", "llama3-8b", "--dry-run"])
    assert "how long a full step takes is unknown: give --on" in unknown.out
    planned = run(["serve", "llama3-8b", "--dry-run", "--on", "v5e:2x4", "--dtype", "bf16"])
    assert "ms, predicted" in planned.out and "give --on" not in planned.out
