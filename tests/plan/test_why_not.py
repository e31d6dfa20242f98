"""Why not: what is asked for is found and priced as in the whole search, and its verdict holds."""

import math
import random
from dataclasses import replace
from functools import lru_cache

import pytest

from rooflight.algebra.shapes import ways
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.forecast.basis import blocks_of
from rooflight.plan.training.forecast.evidence import evidence
from rooflight.plan.training.memory.count import memory
from rooflight.plan.training.questions.why_not import SAME, WhyNot, why_not
from rooflight.plan.training.search.candidate import Candidate, Question, price_one
from rooflight.plan.training.search.constraint import (
    LayoutConstraint,
    parse_constraint,
    placed_text,
    scheme_axes,
)
from rooflight.plan.training.search.plan import plan_record
from rooflight.plan.training.search.run import search_training


def ask(model: str, on: str, batch: int, seq: int) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(on), batch, seq, DTYPES["bf16"])


def degrees(candidate: Candidate) -> dict[str, int]:
    schemes = scheme_axes(candidate.layout).items()
    return {name: ways(axes, candidate.mesh.axes) for name, axes in schemes}


def wanted_of(candidate: Candidate) -> str:
    return ",".join(f"{name}={degree}" for name, degree in degrees(candidate).items())


def asked(question: Question, text: str) -> WhyNot:
    return why_not(question, parse_constraint(text, question.graph), best_of(question))


@lru_cache
def small() -> Question:
    return ask("llama3-8b", "v5e:4x4", 16, 4096)


def best_of(question: Question) -> Candidate:
    return (
        _best_small() if question is small() else search_training(question, count=1).candidates[0]
    )


@lru_cache
def _best_small() -> Candidate:
    return search_training(small(), count=1).candidates[0]


@pytest.mark.parametrize(
    "question", [("llama3.2-1b", "v5e:2x2", 8, 2048), ("llama3-8b", "v5p:2x2x2", 8, 1024)]
)
def test_the_winner_wins(question: tuple[str, str, int, int]) -> None:
    q = ask(*question)
    best = search_training(q, count=1).candidates[0]
    answer = asked(q, f"{wanted_of(best)},remat={best.remat.name}")
    assert answer.verdict == "wins" and answer.outside == ()
    assert answer.candidate and answer.candidate.degrees == best.degrees


def has(candidate: Candidate, wanted: LayoutConstraint) -> bool:
    """tp means tp or sp, 1 means without."""
    found = degrees(candidate)
    found["tp"] = found.get("tp", 1) * found.get("sp", 1)
    return all(found.get(name, 1) == degree for name, degree in wanted.degrees.items())


@pytest.mark.parametrize("seed", range(2))
def test_what_is_asked_is_the_first_in_the_whole_search_that_has_it(seed: int) -> None:
    rng = random.Random(seed)
    question = ask("llama3.2-1b", ["v5e:2x2", "h100:2x2"][seed], 4, 512)
    question = replace(question, rank="roofline")  # a forecast puts the simplest first
    every = search_training(question, count=10_000).candidates
    for _ in range(4):
        names = rng.sample(["dp", "fsdp", "tp", "cp", "pp"], rng.choice([1, 2]))
        text = ",".join(f"{name}={rng.choice([1, 2])}" for name in names)
        wanted = parse_constraint(text, question.graph)
        answer = why_not(question, wanted, every[0])
        first = next((c for c in every if has(c, wanted)), None)
        if first is None:
            assert answer.verdict in ("does not fit", "does not divide") or answer.outside
            continue
        assert answer.candidate and answer.candidate.degrees == first.degrees, text
        assert answer.candidate.time == first.time
        slower = first.time.expected_s() > every[0].time.expected_s() * SAME
        assert (answer.verdict == "slower") == slower


def test_a_dim_that_does_not_split_is_named() -> None:
    answer = asked(small(), "tp=16")
    assert answer.verdict == "does not divide" and answer.candidate is None
    assert "K=8 of W_q" in answer.because and "does not split 16 ways" in answer.because


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("tp=3", "no mesh of v5e:4x4 has such axes"),
        ("microbatches=3", "16 sequences do not make 3 equal microbatches"),
        ("pp=16,dp=1,fsdp=1", ""),
    ],
)
def test_what_no_mesh_has_says_so(text: str, because: str) -> None:
    answer = asked(small(), text)
    assert because in answer.because and answer.because


def test_more_stages_than_layers_are_counted() -> None:
    question = ask("llama3.2-1b", "v5e:8x8", 64, 1024)  # 16 layers
    answer = asked(question, "pp=32")
    assert answer.because == "16 layers do not fill 32 stages"


def test_what_does_not_fit_names_its_bytes_and_a_change_that_fits() -> None:
    answer = asked(small(), "dp=16")
    assert answer.verdict == "does not fit" and answer.candidate
    held = answer.candidate.memory
    assert not held.fits
    assert held.largest(1)[0].name in answer.because
    assert answer.fixes and memory(answer.fixes[-1].job).fits


def test_a_layout_outside_the_space_is_priced_and_said_to_be_outside() -> None:
    question = small()
    answer = asked(question, "mp=4,fsdp=4")
    assert answer.outside and answer.candidate
    c = answer.candidate
    alone = price_one(question, c.layout, c.mesh, c.micro, c.remat)
    assert degrees(c) == {"mp": 4, "fsdp": 4}
    assert alone.time == c.time


@pytest.mark.parametrize("text", ["remat=offload", "schedule=gpipe"])
def test_options_that_are_not_searched_are_answered(text: str) -> None:
    answer = asked(ask("llama3-8b", "v5p:2x2x2", 8, 1024), text)
    assert text.partition("=")[2] in answer.outside[0]
    assert answer.candidate


def test_experts_inside_a_data_axis_keep_both_degrees() -> None:
    question = ask("mixtral-8x7b", "v5p:2x2x2", 8, 1024)
    answer = asked(question, "ep=2,fsdp=8")
    assert answer.candidate and degrees(answer.candidate) == {"ep": 2, "fsdp": 8}
    with pytest.raises(UsageError, match="no routed experts"):
        asked(small(), "ep=2")


@pytest.mark.parametrize("text", ["pp=4", "fsdp=16", "remat=block"])
def test_the_terms_make_up_the_step(text: str) -> None:
    """At the roofline matmuls and collectives overlap, then comes the bubble."""
    forecast = asked(small(), text)
    assert forecast.verdict == "slower" and forecast.candidate
    assert sum(t.seconds for t in forecast.terms) == pytest.approx(forecast.candidate.step_s)
    assert sum(t.best_s for t in forecast.terms) == pytest.approx(forecast.best.step_s)
    answer = asked(replace(small(), rank="roofline"), text)
    assert answer.verdict == "slower" and answer.candidate
    for candidate, side in ((answer.candidate, "seconds"), (answer.best, "best_s")):
        seconds: dict[str, float] = {t.name: getattr(t, side) for t in answer.terms}
        collectives = sum(s for name, s in seconds.items() if name.startswith("collectives"))
        matmuls = seconds["matmuls"] + seconds.get("recomputed", 0.0)
        step = max(matmuls, collectives) + seconds.get("bubble", 0.0)
        assert step == pytest.approx(candidate.time.expected_s())


def test_the_reason_is_the_term_that_costs() -> None:
    assert "its matmuls take" in asked(small(), "remat=block").because
    question = replace(small(), rank="roofline")
    assert "remat block recomputes" in asked(question, "remat=block").because
    assert "of collectives, most of them over ws" in asked(question, "ws=4,tp=4").because


def test_a_faster_layout_of_the_table_is_not_said_to_be_outside_it() -> None:
    question = replace(ask("llama3.2-1b", "v5e:2x2", 8, 8192), rank="forecast")
    best, *others = search_training(question, count=8).candidates
    faster = [c for c in others if c.step_s * SAME < best.step_s]
    assert any(c.unseen for c in faster)
    for candidate in faster:
        answer = asked(question, placed_text(candidate))
        assert answer.verdict == "faster" and answer.candidate is not None
        assert answer.candidate.unseen == candidate.unseen
        assert ("worth measuring" in answer.because) == bool(candidate.unseen)
        assert "were it in the space" not in answer.because


def test_splits_of_positions_are_told_apart() -> None:
    question = replace(ask("llama3.2-1b", "v5e:2x2", 8, 8192), rank="forecast")
    shown = [placed_text(c) for c in search_training(question, count=12).candidates]
    assert len(set(shown)) == len(shown)
    assert {"dp=2@x,cp=2@y", "dp=2@x,ulysses=2@y"} <= set(shown)


def test_the_plan_file_says_which_orders_are_not_known() -> None:
    question = replace(ask("llama3.2-1b", "v5e:2x2", 8, 8192), rank="forecast")
    found = search_training(question, count=8)
    plan = plan_record(load_model("llama3.2-1b"), question, found)
    close = evidence().paired[blocks_of(question.graph)].within
    for lost in plan.alternatives:
        apart = abs(math.log(lost.step_s / found.candidates[0].step_s))
        assert lost.because.endswith("too close to call") == (apart < close)
        faster = lost.step_s * SAME < found.candidates[0].step_s
        assert ("worth measuring" in lost.because) == faster
    short = replace(found, candidates=found.candidates[:2])
    few = plan_record(load_model("llama3.2-1b"), question, short)
    assert "worth measuring" in few.alternatives[-1].because
