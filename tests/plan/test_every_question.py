"""Any model on any slice: a plan or a sentence, in seconds, and never an internal error."""

import random
from functools import partial
from itertools import product

import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import ModelError, RooflightError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model, model_names
from rooflight.plan.training.search.plan import plan_training, train_question

from ..reference_loop import standard_s

TPUS = (
    *("v4:2x2x1", "v4:4x4x4", "v4:8x8x12", "v5e:1x1", "v5e:2x4", "v5e:4x8", "v5e:16x16"),
    *("4*v5e:16x16", "v5p:2x2x2", "v5p:4x4x4", "v5p:8x8x8", "v5p:8x12x12", "v5p:16x20x28"),
    *("2*v5p:8x16x16", "v6e:2x2", "v6e:8x8", "v6e:16x16", "8*v6e:16x16", "tpu7x:4x4x4", "v3:4x4"),
)
GPUS = (
    *("h100:1", "h100:8", "h100:8x3", "h100:8x16", "h100:8x37", "h100:2048", "h100:8x2048"),
    *("a100:8x8", "a100:8x128", "h200:8x32", "h800:2048", "h20:8x4", "b200:8x32", "b300:8x8"),
    *("gb200:72", "gb200:64x4", "gb300:72x8", "mi300x:8x16", "mi355x:8", "gh200:32"),
)
TOKENS: tuple[int, ...] = (1 << 18, 1 << 22, 15_000_000)
SEQ = 4096
_MOST_S = 40.0  # standard seconds: most take one


def every_question() -> list[tuple[str, str, int]]:
    """All of them, in an order of no meaning."""
    found = list(product(model_names(), (*TPUS, *GPUS), TOKENS))
    random.Random(0).shuffle(found)
    return found


def answer(model: str, on: str, tokens: int) -> str:
    """How a question ends; an internal error is raised."""
    graph = model_graph(load_model(model))
    try:
        question = train_question(graph, parse_slice(on), tokens // SEQ, SEQ, DTYPES["bf16"])
        found = plan_training(question, count=8).candidates
    except ModelError:
        raise
    except RooflightError as error:
        assert str(error) and error.hint
        return "a sentence"
    assert all(0 < c.mfu < 1 and c.memory.fits for c in found)
    return "a plan"


@pytest.mark.parametrize(("model", "on", "tokens"), every_question()[:6])
def test_any_model_on_any_slice_gets_a_plan_or_a_sentence(model: str, on: str, tokens: int) -> None:
    assert answer(model, on, tokens) in ("a plan", "a sentence")


@pytest.mark.full
def test_three_hundred_questions_take_seconds_each() -> None:
    slow: list[tuple[str, str, int, float]] = []
    for asked in every_question()[:300]:
        took_s = standard_s(partial(answer, *asked), rounds=1)
        slow += [(*asked, took_s)] if took_s > _MOST_S else []
    assert slow == []


def test_forty_slices_of_both_kinds() -> None:
    assert len(TPUS) == len(GPUS) == 20
    assert {parse_slice(on).chip.kind for on in TPUS} == {"tpu"}
    assert {parse_slice(on).chip.kind for on in GPUS} == {"gpu"}
