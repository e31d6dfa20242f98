"""What if: more of a rate never makes the best plan slower, and words become factors."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UnknownNameError, UsageError
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.what_if import (
    KNOBS,
    changed,
    parse_changes,
    sensitivity,
    what_if,
)
from rooflight.plan.training.questions.why_not import SAME
from rooflight.plan.training.search.candidate import Candidate, Question
from rooflight.plan.training.search.run import search_training


@lru_cache
def planned(on: str) -> tuple[Question, Candidate]:
    graph = model_graph(load_model("llama3.2-1b"))
    question = Question(graph, parse_slice(on), 8, 512, DTYPES["bf16"])
    return question, search_training(question, count=1).candidates[0]


@pytest.mark.parametrize("on", ["v5e:2x2", "h100:2x2"])
@pytest.mark.parametrize("knob", list(KNOBS))
def test_more_of_a_rate_is_never_slower(on: str, knob: str) -> None:
    question, before = planned(on)
    more = what_if(question, {knob: 2.0}, before).change
    less = what_if(question, {knob: 0.5}, before).change
    assert more and less
    if KNOBS[knob].is_time:
        more, less = less, more
    assert more <= SAME and less >= 1 / SAME


def test_twice_everything_takes_half_the_time() -> None:
    """At the roofline; launches and the host keep a forecast above that."""
    question, before = planned("v5e:2x2")
    factors = {"flops": 2.0, "hbm_bandwidth": 2.0, "ici": 2.0, "latency": 0.5}
    change = what_if(question, factors, before).change
    assert change and 0.5 < change < 0.6
    roofline = replace(question, rank="roofline")
    before = search_training(roofline, count=1).candidates[0]
    assert what_if(roofline, factors, before).change == pytest.approx(0.5)


def test_the_same_chip_is_the_same_plan() -> None:
    question, before = planned("v5e:2x2")
    assert changed(question, dict.fromkeys(KNOBS, 1.0)).on == question.on
    assert what_if(question, {"ici": 1.0}, before).change == 1.0


def test_too_little_memory_leaves_no_plan() -> None:
    question, before = planned("v5e:2x2")
    assert what_if(question, {"hbm": 0.01}, before).after is None


def test_a_sensitivity_is_a_tenth_more_and_the_largest_is_first() -> None:
    question, before = planned("v5e:2x2")
    found = sensitivity(question, before)
    effects = [abs((w.change or 1.0) - 1) for w in found]
    assert effects == sorted(effects, reverse=True)
    assert {k for w in found for k in w.factors} == set(KNOBS)
    flops = next(w for w in found if "flops" in w.factors)
    assert flops.change and 1 / 1.1 - 1e-9 <= flops.change <= 1.0


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("ici=0.5x", {"ici": 0.5}),
        ("hbm_bytes_per_s=1.64e12", {"hbm_bandwidth": 2.0}),
        ("torus.link_bytes_per_s=90GB,latency=0", {"ici": 2.0, "latency": 0.0}),
        ("latency=3e-6", {"latency": 3.0}),
        ("flops=394T", {"flops": 2.0}),
    ],
)
def test_rates_are_factors_or_values(text: str, factors: dict[str, float]) -> None:
    assert parse_changes(text, load_chip("v5e")) == pytest.approx(factors)


@pytest.mark.parametrize(
    "text", ["ici", "ici=0", "ici=-1x", "ici=2x,ici=3x", "hbm=x", "flops=1e9x"]
)
def test_what_is_no_rate_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_changes(text, load_chip("v5e"))
    assert caught.value.hint


def test_an_unknown_rate_gets_a_did_you_mean() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_changes("hbm_bandwith=2x", load_chip("v5e"))
    assert "hbm_bandwidth" in caught.value.hint


@settings(max_examples=300)
@given(st.text("flopsicdhbm=x,.0123456789eGT_ ", max_size=24))
def test_any_text_is_factors_or_one_of_our_errors(text: str) -> None:
    try:
        found = parse_changes(text, load_chip("h100"))
    except RooflightError as error:
        assert error.hint
        return
    assert found and set(found) <= set(KNOBS)
