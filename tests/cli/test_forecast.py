"""The verb `forecast`: one's own layout, by degrees or by the files of a framework."""

import json
from pathlib import Path

import pytest

from rooflight.units import format_seconds

from .command import run

WHERE = "llama3-70b --on h100:8x16"
BRIEF = ["step", "memory", "bound by", "rests on", "best", "to change"]


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


def test_a_batch_is_rounded_by_five_percent_or_not_at_all() -> None:
    near = json.loads(
        run(f"forecast {WHERE} --layout tp=8 --batch 4M --seq 8192 --json".split()).out
    )
    assert near["forecast"] is not None
    far = run(f"forecast {WHERE} --layout tp=8 --batch 37000 --seq 8192".split())
    assert far.code == 2 and "use 32768 or 40960 tokens" in far.err


def test_a_brief_forecast_has_the_numbers_of_the_document_in_six_lines() -> None:
    asked = f"forecast {WHERE} --layout tp=8 --batch 1Mi --seq 8192"
    lines = run(f"{asked} --brief".split()).out.splitlines()
    document = json.loads(run(f"{asked} --json".split()).out)
    assert [line[:11].strip() for line in lines] == BRIEF
    told = dict(zip(BRIEF, (line[11:] for line in lines), strict=True))
    assert told["step"].startswith(
        f"{format_seconds(document['forecast']['step_s'])}, 80 % between"
    )
    assert told["best"].endswith(f"takes {format_seconds(document['best']['step_s'])}")
    assert told["to change"] == document["because"]


def test_a_brief_roofline_has_no_interval() -> None:
    asked = f"forecast {WHERE} --layout tp=8 --batch 1Mi --seq 8192 --brief --rank roofline"
    step, *_ = run(asked.split()).out.splitlines()
    assert "at the roofline" in step and "80 %" not in step
