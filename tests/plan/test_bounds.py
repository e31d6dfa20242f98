"""What a search leaves out could not have been the answer; what policies share is shared."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.forecast import sweep
from rooflight.plan.training.forecast.sweep import Forecasts
from rooflight.plan.training.forecast.works import ForecastSetting, LeastSeconds
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.search import run as search
from rooflight.plan.training.search.cache import every_point
from rooflight.plan.training.search.candidate import Question, question_basis
from rooflight.plan.training.search.options import allowed_on, options_of
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.plan.training.search.run import (
    cache_of,
    layouts_of,
    search_training,
    sizes_of,
)


def ask(model: str, on: str, batch: int, framework: str, seq: int = 4096) -> Question:
    graph, dtype = model_graph(load_model(model)), DTYPES["bf16"]
    return train_question(graph, parse_slice(on), batch, seq, dtype, framework=framework)


QUESTIONS = [
    ("mixtral-8x7b", "v5p:2x2x4", 32, "maxtext"),
    ("deepseek-v2-lite", "v6e:4x4", 32, "rooflight"),
    ("gpt-oss-20b", "2*v5e:4x4", 64, "maxtext"),
    ("mixtral-8x7b", "h100:8x4", 64, "megatron"),
    ("llama3-8b", "h100:8x2", 32, "torchtitan"),
]


@pytest.mark.parametrize(("model", "on", "batch", "framework"), QUESTIONS)
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.full)])
def test_no_layout_takes_less_than_the_least_seconds(
    model: str, on: str, batch: int, framework: str, every: int
) -> None:
    question = ask(model, on, batch, framework)
    values, ground, sizes = question_basis(question).values, cache_of(question), sizes_of(question)
    setting = ForecastSetting(question.dtype, values, in_step=question.framework.in_step)
    tightest = 0.0
    for layout in layouts_of(question)[::every]:
        for points in every_point(question, sizes, ground.placed(layout)):
            few, of = points.alike
            least = LeastSeconds(few, setting)
            forecasts = Forecasts(points, ground.asked(layout), setting)
            for micro, remat in options_of(layout, question):
                allowed = allowed_on(micro, points, question)
                if allowed.any():
                    ratio = least.seconds(micro, remat)[of] / forecasts.seconds(micro, remat).total
                    assert ratio[allowed].max() <= 1 + 1e-9
                    tightest = max(tightest, float(ratio[allowed].max()))
    assert tightest > 0.8  # some layout has few collectives: the bound is worth asking


def test_a_bound_that_promises_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask("llama3-8b", "h100:8x4", 64, "megatron")
    best = search_training(question, count=8).candidates
    honest = LeastSeconds.seconds

    def too_much(self: LeastSeconds, *option: Any) -> Any:
        return 10 * honest(self, *option)

    monkeypatch.setattr(LeastSeconds, "seconds", too_much)
    changed = search_training(question, count=8).candidates
    assert [c.degrees for c in changed] != [c.degrees for c in best]


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, calls: Counter[str]) -> None:
    honest: Callable[..., Any] = getattr(where, name)

    def call(*args: Any, **more: Any) -> Any:
        calls[name] += 1
        return honest(*args, **more)

    monkeypatch.setattr(where, name, call)


def test_what_policies_share_is_derived_and_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls and collectives of a layer are those of its strategies, whatever is recomputed."""
    calls: Counter[str] = Counter()
    counted(monkeypatch, sweep, "derive_again", calls)
    counted(monkeypatch, Forecasts, "_rate", calls)
    counted(monkeypatch, sweep, "combinations_of", calls)
    maxtext = FRAMEWORKS["maxtext"]
    found: list[Counter[str]] = []
    for remats in (maxtext.remats[-2:-1], maxtext.remats):
        framework = replace(maxtext, remats=remats)
        question = replace(ask("mixtral-8x7b", "v5p:2x2x4", 32, "maxtext"), framework=framework)
        calls.clear()
        state = search.SearchState(question, count=1)
        for layout in layouts_of(question)[:40]:
            state.add(layout)
        found.append(calls.copy())
    one, every = found
    assert one["derive_again"] == every["derive_again"] > 0
    assert one["combinations_of"] == every["combinations_of"] > 0


def test_most_layouts_of_experts_are_left_out_by_their_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced: list[int] = []
    honest = Forecasts.seconds

    def seconds(self: Forecasts, *option: Any) -> Any:
        found = honest(self, *option)
        priced.append(len(found.total))
        return found

    monkeypatch.setattr(Forecasts, "seconds", seconds)
    found = search_training(ask("mixtral-8x7b", "v5p:4x4x4", 256, "maxtext"))
    assert found.num_priced > 2_000_000
    assert sum(priced) < found.num_priced / 50


def test_a_batch_that_divides_is_found_without_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("nothing needs a price")

    monkeypatch.setattr(search, "_rank", refuse)
    with pytest.raises(UsageError, match="no layout divides 1 sequences") as caught:
        plan_training(ask("llama3-8b", "v5p:4x4x5", 1, "maxtext", seq=128))
    assert caught.value.hint and "use " in caught.value.hint
