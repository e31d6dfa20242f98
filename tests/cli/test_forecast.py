"""The verb `forecast`: one's own layout, by degrees or by the files of a framework."""

import json
from pathlib import Path

import pytest

from .command import run

WHERE = "llama3-70b --on h100:8x16"


def test_a_launch_script_is_forecast_as_the_plan_that_it_came_from(tmp_path: Path) -> None:
    planned = run(f"plan train {WHERE} --batch 1Mi --seq 8192 --json".split())
    plan = tmp_path / "plan.json"
    plan.write_text(planned.out)
    script = tmp_path / "run.sh"
    script.write_text(run(["export", str(plan), "--to", "megatron"]).out)
    found = json.loads(run(f"forecast {WHERE} --from {script} --json".split()).out)
    assert found["asked"] == "run.sh" and found["verdict"] == "wins"
    step_s = json.loads(planned.out)["time"]["forecast"]["seconds"]
    assert found["forecast"]["step_s"] == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("--layout tp=8", "needs --batch"),
        ("", "needs --layout"),
        ("--from a.sh --seq 8k", "--seq is in the file already"),
        ("--from a.sh --dtype fp8", "--dtype is in the file already"),
    ],
)
def test_half_a_question_is_refused(rest: str, words: str) -> None:
    outcome = run(f"forecast {WHERE} {rest}".split())
    assert outcome.code == 2 and words in outcome.err


def test_a_batch_is_rounded_by_two_percent_or_not_at_all() -> None:
    near = json.loads(
        run(f"forecast {WHERE} --layout tp=8 --batch 4M --seq 8192 --json".split()).out
    )
    assert near["forecast"] is not None
    far = run(f"forecast {WHERE} --layout tp=8 --batch 110000 --seq 8192".split())
    assert far.code == 2 and "use 106496 or 114688 tokens" in far.err
