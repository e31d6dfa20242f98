"""A whole run: its days are its steps, its failures its chip-hours, its checkpoints the best."""

import math

import pytest

from rooflight.dtypes import DTYPES
from rooflight.hardware.failures import load_failure_rates
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.run_cost import CheckpointCost, RunCost, run_cost
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.plan.training.search.run import search_training


def cost(on: str, write_s: float | None = None) -> RunCost:
    graph = model_graph(load_model("llama3.2-1b"))
    question = Question(graph, parse_slice(on), 8, 512, DTYPES["bf16"])
    best = search_training(question, count=1).candidates[0]
    found = run_cost(question, best, 10**12, write_s=write_s)
    assert found.budget.days == pytest.approx(found.steps * best.step_s / 86400)
    return found


def test_days_are_steps_and_failures_are_chip_hours() -> None:
    found = cost("h100:2x1", write_s=30.0)
    assert found.steps == 10**12 / 4096
    rate = load_failure_rates()["h100"]
    assert not found.is_assumed
    assert found.budget.expected_failures == pytest.approx(
        found.budget.chip_hours * rate.interruptions / (rate.days * 24 * rate.chips)
    )
    assert found.budget.kwh and found.budget.dollars
    assert found.days_with_failures and found.days_with_failures > found.budget.days


def test_what_is_not_known_stays_unknown_or_is_called_assumed() -> None:
    found = cost("v5e:2x1")
    assert found.is_assumed and found.budget.kwh is None
    assert found.checkpoints is None


def test_without_checkpoints_goodput_is_what_was_reported() -> None:
    """Llama 3 made progress in 90 % of its time, on 16,384 chips; fewer chips lose less."""
    found = cost("h100:2x1")
    assert found.goodput and 0.998 < found.goodput < 1
    days = found.budget.days / found.goodput
    assert found.days_with_failures == pytest.approx(days)
    assert found.chip_hours_with_failures == pytest.approx(days * 24 * 2)
    rate = load_failure_rates()["h100"]
    assert rate.goodput_on(16384) == pytest.approx(0.9) and rate.goodput_on(10**9) == 0


def test_the_budget_of_llama_3_is_near_its_model_card() -> None:
    """30.84 M H100-hours for 405B, by its model card."""
    graph, on = model_graph(load_model("llama3.1-405b")), parse_slice("h100:8x2048")
    question = train_question(graph, on, 2048, 8192, DTYPES["bf16"])
    best = plan_training(question, count=1).candidates[0]
    found = run_cost(question, best, 15_600_000_000_000).chip_hours_with_failures
    assert found and abs(found / 30.84e6 - 1) < 0.25


@pytest.mark.parametrize("write_s", [5.0, 60.0, 300.0])
def test_no_other_interval_between_checkpoints_loses_less(write_s: float) -> None:
    between_s = 20_000.0
    best = CheckpointCost(write_s, 100.0, between_s)
    assert best.goodput

    def goodput(interval_s: float) -> float:
        return 1 - write_s / interval_s - interval_s / 2 / between_s - 100.0 / between_s

    assert best.goodput == pytest.approx(goodput(best.interval_s))
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert goodput(best.interval_s * factor) < best.goodput


def test_first_order_is_not_used_where_failures_are_as_frequent_as_checkpoints() -> None:
    assert CheckpointCost(600.0, None, 1000.0).goodput is None
    assert math.isclose(CheckpointCost(600.0, None, 1000.0).interval_s, math.sqrt(1.2e6))
