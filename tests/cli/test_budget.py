"""The verb `budget`: the answer first, sources beside it, half-asked questions refused."""

import json
import math

import pytest

from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.budget import Budget, Terms, run_flops

from .command import run

_RUN = ["budget", "llama3-70b", "--on", "v5p:16x20x28", "--tokens", "15T", "--mfu", "40%"]


def test_the_first_line_is_days_chips_and_dollars() -> None:
    outcome = run(_RUN)
    assert outcome.code == 0
    first = outcome.out.splitlines()[0]
    assert first == "Llama 3 70B on 15 T tokens: 44.7 days on 8,960 x TPU v5p, price $40.3 M"
    assert "price: 4.2 dollars per chip-hour, SkyPilot's catalog of clouds" in outcome.out
    assert "power: unknown" in outcome.out


def test_json_has_what_the_library_has() -> None:
    document = json.loads(run([*_RUN, "--seq", "8192", "--mtbf-hours", "50k", "--json"]).out)
    terms = Terms(parse_slice("v5p:16x20x28"), mfu=0.4, mtbf_hours=50_000)
    expected = run_flops(model_graph(load_model("llama3-70b")), tokens=15 * 10**12, seq=8192)
    assert [r["convention"] for r in document["runs"]] == list(expected)
    for row in document["runs"]:
        budget = Budget(expected[row["convention"]], terms)
        assert (row["flops"], row["days"]) == (budget.flops, budget.days)
        assert (row["dollars"], row["kwh"]) == (budget.dollars, None)
        assert row["expected_failures"] == budget.expected_failures
    assert document["price_source"]["checked"]


def test_a_part_is_written_as_a_percentage_or_a_fraction() -> None:
    assert run([*_RUN[:-1], "0.4"]).out == run(_RUN).out


def test_dollars_are_spent_to_the_last() -> None:
    argv = ["budget", "--dollars", "1M", "--on", "v5e:16x16", "--mfu", "40%", "--json"]
    document = json.loads(run(argv).out)
    assert math.isclose(document["runs"][0]["dollars"], 1e6)
    for split in document["allocations"]:
        assert math.isclose(6 * split["params"] * split["tokens"], document["flops"])


def test_flops_alone_need_no_hardware() -> None:
    outcome = run(["budget", "--flops", "6.3e24"])
    assert outcome.code == 0
    assert "extrapolated" in outcome.out and "days" not in outcome.out
    timed = run(["budget", "--flops", "6.3e24", "--on", "v5p:16x20x28", "--mfu", "40%"])
    assert timed.out.startswith(outcome.out.rstrip()) and "44.3 days" in timed.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "one of them"),
        ("--flops 1e20 --dollars 5", "one of them"),
        ("llama3-8b --flops 1e20", "--flops is a budget"),
        ("llama3-8b --on v5e --mfu 40%", "needs --tokens"),
        ("llama3-8b --on v5e --tokens 1T", "without --mfu the budget of a model needs --seq"),
        ("--dollars 1M", "needs --on and --mfu"),
        ("--flops 1e20 --price 3", "needs --on and --mfu"),
        ("--flops 1e20 --dtype fp8", "needs --on and --mfu"),
        ("--flops 1e20 --tokens 1T", "goes with a model"),
        ("--flops 12", "out of range"),
        ("--flops 1e20 --on v5e --mfu 140%", "not a part of the peak"),
        ("--flops 1e20 --on v5e --mfu 1e-300", "not a part of the peak"),
        ("--flops 1e20 --on v5e --mfu nan", "not a number"),
        ("--flops 1e20 --on v5e --mfu 40% --price 0", "--price must be a price, got 0"),
        ("--dollars 1M --on v3:4x4 --mfu 40%", "no price in its catalog"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(line: str, message: str) -> None:
    outcome = run(["budget", *line.split()])
    assert outcome.code == 2 and outcome.out == ""
    assert message in outcome.err and "hint: " in outcome.err


def test_without_an_mfu_the_pace_is_that_of_the_best_plan() -> None:
    line = "budget llama3-8b --on h100:64 --tokens 1T --seq 8k --batch 4Mi --json"
    found = json.loads(run(line.split()).out)
    where = ["--on", "h100:64", "--batch", "4Mi", "--seq", "8k", "--json"]
    planned = json.loads(run(["plan", "train", "llama3-8b", *where]).out)
    days = 1e12 / planned["tokens_per_s"] / 86_400
    assert [row["convention"] for row in found["runs"]] == ["matmuls + causal attention"]
    assert found["runs"][0]["days"] == pytest.approx(days)
    assert found["plan"]["batch"] == 4 << 20
    usual = run(["budget", "llama3-8b", "--on", "h100:64", "--tokens", "1T", "--seq", "8k"])
    assert "a step of 4.19 M tokens, 80 % between" in usual.out


@pytest.mark.parametrize(
    ("rest", "words"),
    [("", "needs --seq"), ("--seq 8k --mfu 40% --batch 4Mi", "--batch goes with a plan")],
)
def test_a_budget_of_a_plan_needs_a_sequence_and_no_mfu(rest: str, words: str) -> None:
    outcome = run(f"budget llama3-8b --on h100:64 --tokens 1T {rest}".split())
    assert outcome.code == 2 and words in outcome.err
