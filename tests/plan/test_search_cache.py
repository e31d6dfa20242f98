"""What a search keeps for the next question changes no answer."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.training.search import cache as search_cache
from rooflight.plan.training.search.cache import SearchCache, search_cache_of
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.run import Search, search_training
from rooflight.plan.training.time.stage_time import OVERLAPS, Overlap

_kept = search_cache._kept  # pyright: ignore[reportPrivateUsage]


def ask(model: str, on: str, batch: int, seq: int, dtype: str, overlap: Overlap) -> Question:
    graph = model_graph(load_model(model))
    return Question(graph, parse_slice(on), batch, seq, DTYPES[dtype], overlap)


def questions(models: list[str], slices: list[str]) -> st.SearchStrategy[Question]:
    return st.builds(
        ask,
        st.sampled_from(models),
        st.sampled_from(slices),
        st.sampled_from([4, 8, 24, 32, 64]),
        st.sampled_from([1024, 4096]),
        st.sampled_from(["bf16", "fp8"]),
        st.sampled_from(OVERLAPS),
    )


SMALL = questions(["llama3.2-1b", "llama3-8b"], ["v5e:2x4", "v5p:2x2x2", "h100:4x2", "2*v5e:2x2"])
LARGE = questions(["llama3-70b", "gpt-oss-20b"], ["v5e:8x8", "v5p:4x4x4", "h100:8x4", "2*v5e:4x4"])


def said(found: Search) -> tuple[object, ...]:
    counts = found.num_priced, found.num_too_large, found.num_too_slow, found.num_unfit
    return *counts, [(c.degrees, str(c.mesh), c.micro, c.remat, c.time) for c in found.candidates]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    _kept.cache_clear()


def check(asked: list[Question]) -> None:
    fresh: list[object] = []
    for question in asked:
        _kept.cache_clear()
        fresh.append(said(search_training(question, count=3)))
    _kept.cache_clear()
    assert [said(search_training(question, count=3)) for question in (*asked, *asked)] == fresh * 2


@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(SMALL, min_size=2, max_size=3))
def test_a_search_after_others_finds_what_the_first_would(asked: list[Question]) -> None:
    check(asked)


@pytest.mark.full
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(LARGE, min_size=2, max_size=4))
def test_large_searches_after_others_find_what_the_first_would(asked: list[Question]) -> None:
    check(asked)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_cache, "_MOST_ROWS", 10)
    ground = SearchCache(model_graph(load_model("llama3-8b")), parse_slice("v5e:4x4"), 4096)
    large = max(ground.templates, key=lambda layout: ground.placed(layout).meshes.count)
    assert ground.placed(large) is not ground.placed(large)
    assert ground.placed(large).meshes.count > 10


def test_another_model_slice_or_length_has_its_own() -> None:
    graph, on = model_graph(load_model("llama3-8b")), parse_slice("v5e:4x4")
    other = model_graph(load_model("llama3.2-1b"))
    first = search_cache_of(graph, on, 4096)
    assert search_cache_of(graph, parse_slice("v5e:4x4"), 4096) is first
    asked = [(other, on, 4096), (graph, parse_slice("v5e:2x8"), 4096), (graph, on, 2048)]
    assert len({id(first), *(id(search_cache_of(*one)) for one in asked)}) == 4


def test_parts_of_the_meshes_read_the_rates_of_all() -> None:
    ground = SearchCache(model_graph(load_model("llama3-8b")), parse_slice("v5p:4x4x4"), 4096)
    layout = next(p for p in ground.templates if p.text == "fsdp=X,sp=Y")
    whole = ground.placed(layout).meshes
    chosen = np.arange(whole.count) % 3 == 1
    part = whole.only(chosen).only(np.ones(int(chosen.sum()), np.bool_))
    rates, all_rates = part.rates("all_gather", ("X",)), whole.rates("all_gather", ("X",))
    assert (rates.near == all_rates.near[chosen]).all()
    assert (part.ways("X") == whole.ways("X")[chosen]).all()
    at = int(np.flatnonzero(chosen)[2])
    assert str(part.mesh(2)) == str(whole.mesh(at))
    assert math.prod(part.mesh(2).axes.values()) == 64
