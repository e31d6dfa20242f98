"""Flips: on both sides of each, a plan of its own agrees."""

import pytest

from rooflight.algebra.shapes import ways
from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.flips import Flips, Side, flips
from rooflight.plan.training.questions.what_if import changed
from rooflight.plan.training.questions.why_not import SAME, why_not
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.constraint import LayoutConstraint, scheme_axes
from rooflight.plan.training.search.run import search_training


def ask(model: str, on: str, batch: int, seq: int) -> Question:
    graph = model_graph(load_model(model))
    return Question(graph, parse_slice(on), batch, seq, DTYPES["bf16"], rank="roofline")


def exactly(side: Side) -> LayoutConstraint:
    """The schemes of a side with their degrees, and no others."""
    assert side.best
    axes = scheme_axes(side.best.layout)
    none = dict.fromkeys(("dp", "fsdp", "tp", "cp", "ulysses", "pp"), 1)
    found = {name: ways(a, side.best.mesh.axes) for name, a in axes.items()}
    if "sp" in found:
        none.pop("tp")  # tp=1 would be without sp as well
    return LayoutConstraint("", none | found)


def check(answer: Flips) -> None:
    """What holds is tied with a direct plan; what is lost is another layout's."""
    for flip in answer.found:
        held = search_training(flip.held.question, count=1).candidates[0].time.expected_s()
        assert flip.held.best and flip.held.best.time.expected_s() <= held * SAME
        direct = search_training(flip.lost.question, count=1).candidates
        if flip.lost.best is None:
            assert not direct
            continue
        assert direct[0].degrees == flip.lost.best.degrees != flip.held.best.degrees
        again = why_not(flip.lost.question, exactly(flip.held), flip.lost.best)
        assert again.verdict == flip.verdict
        if flip.ratio:
            assert again.candidate
            mine = again.candidate.time.expected_s()
            assert mine == pytest.approx(flip.ratio * direct[0].time.expected_s())


def test_flips_are_in_order_and_narrow_and_agree_with_a_direct_plan_on_both_sides() -> None:
    """Slow links make the layout follow the batch."""
    question = changed(ask("llama3.2-1b", "v5e:2x4", 16, 512), {"ici": 0.5})
    best = search_training(question, count=1).candidates[0]
    answer = flips(question, best, within=2)
    assert {f.is_above for f in answer.found} == {True, False}
    assert {f.verdict for f in answer.found} == {"slower"}
    check(answer)
    ends = [sorted((f.held.question.batch, f.lost.question.batch)) for f in answer.found]
    assert ends == sorted(ends)
    for flip, (low, high) in zip(answer.found, ends, strict=True):
        assert flip.held.best
        unit = ways(flip.held.best.layout.stream["B"], flip.held.best.mesh.axes)
        assert high - low <= max(unit, low // 32)


def test_below_one_sequence_a_shard_a_layout_does_not_divide() -> None:
    question = ask("llama3.2-1b", "v5e:2x2", 4, 4096)
    best = search_training(question, count=1).candidates[0]
    assert best.layout.text == "dp=Z"
    answer = flips(question, best, within=2)
    assert [(f.verdict, f.held.question.batch) for f in answer.found] == [("does not divide", 4)]


def test_along_the_sequence_the_tokens_of_a_step_stay() -> None:
    question = ask("llama3.2-1b", "v5e:2x2", 4, 1024)
    best = search_training(question, count=1).candidates[0]
    answer = flips(question, best, along="seq", within=4)
    assert answer.found
    assert {f.lost.tokens for f in answer.found} == {4096}
