"""Budgets: consistent in their units, unknown where nothing is known, and their own inverse."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, training_flops
from rooflight.models.graph.utilisation import six_nd
from rooflight.models.presets import load_model
from rooflight.models.scaling_laws import ScalingLaw, load_scaling_laws
from rooflight.plan.training.questions.budget import (
    Budget,
    Terms,
    affordable_flops,
    allocations,
    optimal_params,
    run_flops,
)

LAWS = load_scaling_laws().laws
POD = parse_slice("v5p:16x20x28")
NODE = parse_slice("h100:8")


def near(value: float | None, expected: float, *, rel: float = 1e-9) -> bool:
    """Whether a value is known, and the expected one."""
    return value is not None and math.isclose(value, expected, rel_tol=rel)


_flops = st.floats(1e15, 1e30)
_mfu = st.floats(0.01, 1.0)


def test_the_book_trains_70b_on_a_pod_in_44_days() -> None:
    run = Budget(six_nd(70e9, 15e12), Terms(POD, mfu=0.4))
    assert near(run.days, 44.3, rel=1e-3)  # chapter 6
    assert near(run.dollars, run.days * 24 * 8960 * 4.2)


def test_a_run_by_hand() -> None:
    """One chip of eight does 1e15 x 0.5 a second: 3.6e18 FLOPs take 7200 chip-seconds."""
    chip = replace(NODE.chip, flops={"bf16": 1e15}, watts=500.0, prices={"own": 3.0})
    run = Budget(3.6e18, Terms(replace(NODE, chip=chip), mfu=0.5, mtbf_hours=4.0))
    assert near(run.seconds, 900)
    assert near(run.chip_hours, 2)
    assert near(run.dollars, 6)
    assert near(run.kwh, 1)
    assert near(run.expected_failures, 0.5)
    assert near(run.petaflop_days, 1 / 24)


@given(_flops, _mfu)
def test_units_agree_with_each_other(flops: float, mfu: float) -> None:
    run = Budget(flops, Terms(NODE, mfu=mfu, mtbf_hours=1000.0))
    watts = NODE.chip.watts
    assert run.kwh is not None and watts is not None and run.expected_failures is not None
    assert near(run.days * 86400, run.seconds)
    assert near(run.chip_hours, run.days * 24 * NODE.num_chips)
    assert near(run.kwh * 3.6e6, run.seconds * watts * NODE.num_chips)
    assert near(run.expected_failures * 1000, run.chip_hours)
    chips_at_peak = NODE.num_chips * NODE.chip.peak_flops("bf16") * mfu
    assert near(run.petaflop_days, chips_at_peak / 1e15 * run.days)


@given(_flops, st.floats(1.01, 100.0), _mfu)
def test_more_flops_take_more_of_everything_and_better_use_takes_less(
    flops: float, factor: float, mfu: float
) -> None:
    def all_of(c: float, use: float) -> list[float]:
        run = Budget(c, Terms(NODE, mfu=use, mtbf_hours=1e4))
        found = (run.days, run.chip_hours, run.dollars, run.kwh, run.expected_failures)
        return [n for n in found if n is not None]

    base = all_of(flops, mfu)
    assert len(base) == 5
    assert all(m > b for m, b in zip(all_of(flops * factor, mfu), base, strict=True))
    assert all(m > b for m, b in zip(all_of(flops, mfu / factor), base, strict=True))


def test_more_chips_are_faster_and_cost_the_same() -> None:
    small, large = (Budget(1e24, Terms(parse_slice(f"v5e:{s}"), mfu=0.4)) for s in ("4x4", "8x8"))
    assert near(large.days, small.days / 4)
    assert small.dollars is not None and near(large.dollars, small.dollars)


def test_what_nobody_states_stays_unknown() -> None:
    run = Budget(1e24, Terms(parse_slice("v3:4x4"), mfu=0.4))
    assert (run.dollars, run.expected_failures) == (None, None)
    assert Budget(1e24, Terms(POD, mfu=0.4)).kwh is None
    with pytest.raises(UsageError, match="no price"):
        affordable_flops(1e6, run.terms)


def test_a_price_of_ones_own_replaces_the_catalogs_and_has_no_source() -> None:
    listed, own = Terms(POD, mfu=0.4), Terms(POD, mfu=0.4, price=2.1)
    assert listed.price_source is not None and listed.price_source.checked
    assert own.price_source is None
    halved = Budget(1e24, own).dollars
    assert halved is not None and near(Budget(1e24, listed).dollars, 2 * halved)


@pytest.mark.parametrize("mfu", [0.0, -0.1, 1.01, 40.0, math.nan])
def test_a_utilisation_is_a_part_of_the_peak(mfu: float) -> None:
    with pytest.raises(UsageError, match="not a part of the peak"):
        Terms(POD, mfu=mfu)


@given(st.floats(1.0, 1e12), _mfu)
def test_dollars_buy_the_flops_that_cost_them(dollars: float, mfu: float) -> None:
    terms = Terms(POD, mfu=mfu)
    assert near(Budget(affordable_flops(dollars, terms), terms).dollars, dollars)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gemma3-4b"])
def test_the_flops_of_a_run_are_the_graphs(name: str) -> None:
    graph = model_graph(load_model(name))
    without = run_flops(graph, tokens=1e12)
    assert without == {"6ND": six_nd(count_params(graph, active=True), 1e12)}
    found = run_flops(graph, tokens=1e12, seq=4096)
    assert found["6ND"] == without["6ND"] < found["6ND + full attention"]
    causal = training_flops(graph, batch=1, seq=4096, causal=True) / 4096 * 1e12
    assert near(found["matmuls + causal attention"], causal)


def _least(law: ScalingLaw, flops: float) -> float:
    """Parameters of least loss, by golden-section search over their logarithm."""

    def loss(log_params: float) -> float:
        params = math.exp(log_params)
        # E is left out: it is the same everywhere and hides the last digits of the rest.
        return replace(law, E=0.0).loss(params, flops / (6 * params))

    low, high, ratio = 0.0, math.log(flops / 6), (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return math.exp((low + high) / 2)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("flops", [1e16, 1e20, 5.76e23, 6.3e24, 1e28])
def test_the_closed_form_is_where_a_search_finds_the_least_loss(
    law: ScalingLaw, flops: float
) -> None:
    assert near(optimal_params(flops, law), _least(law, flops), rel=1e-5)


@given(st.floats(1e12, 1e36))
def test_the_budget_of_every_split_is_the_budget_it_came_from(flops: float) -> None:
    for split in allocations(flops):
        assert near(six_nd(split.params, split.tokens), flops)


@given(st.floats(1e14, 1e32), st.floats(1.1, 1e3))
def test_more_compute_buys_more_of_both_and_less_loss(flops: float, factor: float) -> None:
    for small, large in zip(allocations(flops), allocations(flops * factor), strict=True):
        assert large.params > small.params and large.tokens > small.tokens
        assert all(large.losses[law.name] < small.losses[law.name] for law in LAWS)


@given(st.floats(1e14, 1e32))
def test_no_other_split_has_less_loss_by_a_law_than_its_own(flops: float) -> None:
    splits = {a.by: a for a in allocations(flops)}
    for law in LAWS:
        least = splits[law.name].losses[law.name]
        assert all(a.losses[law.name] >= least - 1e-12 for a in splits.values())


def test_the_papers_own_predictions_come_out() -> None:
    """Gopher's FLOPs: 40B by approach 3 as published, 20 tokens per parameter by the refit."""
    found = {a.by: a for a in allocations(5.76e23)}
    assert near(found["chinchilla"].params, 40e9, rel=0.02)
    assert 15 < found["replication"].tokens_per_param < 25
    assert near(found["20 a param"].tokens_per_param, 20)
    refit = next(law for law in LAWS if law.name == "replication")
    assert near(refit.beta / (refit.alpha + refit.beta), 0.5126, rel=1e-3)


def test_a_split_beyond_the_fitted_runs_says_so() -> None:
    assert not any(a.is_extrapolated for a in allocations(1e21))
    assert all(a.is_extrapolated for a in allocations(6.3e24))


def test_every_law_has_a_source_and_a_date() -> None:
    known = load_scaling_laws()
    for source in (*(law.source for law in LAWS), known.rule.source, known.fitted.source):
        assert source.title and source.url.startswith("https://") and source.checked
