"""Scaling: every point is a plan of its own, and what is read off the curve follows from it."""

from functools import lru_cache

import pytest

from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.questions.scaling import (
    Kind,
    Scaling,
    losses,
    pareto,
    scale,
    smallest_slice,
)
from rooflight.plan.training.questions.why_not import SAME
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import search_training
from rooflight.plan.training.search.slices import largest_slice, slices_up_to


def ask(model: str, on: str, batch: int, seq: int) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(on), batch, seq, DTYPES["bf16"])


@lru_cache
def curve(kind: Kind) -> Scaling:
    return scale(ask("llama3.2-1b", "v5e:8x8", 64, 512), kind)


@pytest.mark.parametrize("chip", chip_names())
def test_slices_grow_from_one_host_and_can_be_typed(chip: str) -> None:
    largest = largest_slice(load_chip(chip))
    slices = slices_up_to(largest)
    sizes = [s.num_chips for s in slices]
    assert sizes == sorted(set(sizes)) and slices[-1] == largest
    assert all(parse_slice(str(s)) == s for s in slices)
    assert sizes[0] == largest.chip.host_chips or len(sizes) == 1


def test_slices_over_dcn_come_after_the_whole_slice() -> None:
    names = [str(s) for s in slices_up_to(parse_slice("4*v5e:4x4"))]
    assert names == ["v5e:2x4", "v5e:4x4", "2*v5e:4x4", "4*v5e:4x4"]


def test_strong_scaling_keeps_the_batch_and_weak_scaling_the_tokens_of_a_chip() -> None:
    strong, weak = curve("strong"), curve("weak")
    assert {p.question.batch for p in strong.points} == {64}
    assert {p.question.batch / p.on.num_chips for p in weak.points} == {1.0}
    assert strong.points[-1].step_s == weak.points[-1].step_s


def test_a_point_is_the_plan_of_its_slice() -> None:
    point = curve("strong").points[1]
    best = search_training(ask("llama3.2-1b", str(point.on), 64, 512), count=1).candidates[0]
    assert point.best and point.best.degrees == best.degrees
    assert point.step_s == best.step_s
    assert point.tokens_per_s == pytest.approx(64 * 512 / best.step_s)


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_no_slice_is_more_efficient_than_the_best(kind: Kind) -> None:
    found = curve(kind)
    parts = [found.efficiency(p) for p in found.points]
    assert max(parts) == 1.0 and min(parts) > 0
    bend = found.bend
    if bend:
        assert found.efficiency(bend) < 0.9 <= found.efficiency(found.points[0])


def test_a_small_batch_bends_and_says_what_it_loses_time_to() -> None:
    bend = curve("strong").bend
    assert bend and bend.best and bend.lost_to
    name, part = bend.lost_to
    assert part == max(losses(bend.best).values()) / (bend.step_s or 0)
    assert name in losses(bend.best)


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_step_is_its_flops_and_its_losses(kind: Kind) -> None:
    for point in curve(kind).points:
        assert point.best and point.step_s
        ideal_s = point.best.time.model_flops / point.best.time.peak_flops
        assert ideal_s + sum(losses(point.best).values()) == pytest.approx(point.step_s)


def test_the_pareto_front_has_no_slice_that_another_beats() -> None:
    points = curve("strong").points
    front = pareto(points)
    for one in front:
        for other in front:
            fewer = one.on.num_chips < other.on.num_chips
            assert not (fewer and one.tokens_per_s >= other.tokens_per_s)
    for left_out in set(map(str, (p.on for p in points))) - {str(p.on) for p in front}:
        point = next(p for p in points if str(p.on) == left_out)
        assert any(p.tokens_per_s * SAME >= point.tokens_per_s for p in front)


def test_dollars_are_chip_hours_at_the_catalogs_price() -> None:
    point = curve("strong").points[0]
    price = point.on.chip.dollars_per_hour
    assert price and point.step_s and point.dollars_per_token
    each = point.on.num_chips * price * point.step_s / 3600 / (64 * 512)
    assert point.dollars_per_token == pytest.approx(each)


def test_the_smallest_slice_is_the_first_that_fits_and_is_fast_enough() -> None:
    question = ask("llama3-8b", "v5e:4x4", 16, 1024)
    fits = smallest_slice(question)
    assert fits.answer and all(p.best is None for p in fits.tried[:-1])
    step_s = fits.answer.step_s
    assert step_s
    faster = smallest_slice(question, limit_s=0.6 * step_s)
    assert faster.answer and faster.answer.on.num_chips > fits.answer.on.num_chips
    assert smallest_slice(question, limit_s=1e-6).answer is None
