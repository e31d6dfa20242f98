"""The training planner: what it recommends fits, divides, and recomputes no more than it must."""

import random
import re
from dataclasses import replace

import pytest

from rooflight.algebra import Tensor, local_shape
from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UsageError
from rooflight.graph import dim_sizes, model_graph
from rooflight.plan.candidate import Question
from rooflight.plan.recipe import RECIPES
from rooflight.plan.training import plan_training
from rooflight.specs import load_model, parse_slice


def ask(model: str, on: str, batch: int, seq: int) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(on), batch, seq, DTYPES["bf16"])


@pytest.mark.parametrize("seed", range(5))
def test_no_recommendation_is_too_large_or_does_not_divide(seed: int) -> None:
    rng = random.Random(seed)
    model = rng.choice(["llama3-8b", "mixtral-8x7b", "gemma2-9b", "qwen3-8b"])
    on = rng.choice(["v5p:4x4x4", "v5p:2x4x4", "v6e:4x8", "h100:8x4"])
    question = ask(model, on, 2 ** rng.randint(6, 9), 2 ** rng.randint(9, 12))
    try:
        recipe = RECIPES[rng.choice(["10", "16", "18"])]
        found = plan_training(replace(question, recipe=recipe))
    except RooflightError as error:
        assert error.hint
        return
    for candidate in found.candidates:
        assert candidate.memory.fits
        assert question.batch % candidate.micro.count == 0
        dims = dim_sizes(
            question.graph, batch=question.batch // candidate.micro.count, seq=question.seq
        )
        stream = candidate.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
        weights = [candidate.layout.of_weight(p.tensor) for p in question.graph.params]
        for tensor in (stream, *weights):
            local_shape(tensor, dims, candidate.mesh.axes)


def test_memory_to_spare_means_nothing_is_recomputed() -> None:
    """A small model on a large slice keeps everything; a tight one recomputes its layers."""
    roomy = plan_training(ask("llama3-8b", "v5p:4x4x4", 64, 1024))
    tight = plan_training(ask("llama3-70b", "v5p:8x8x8", 512, 8192))
    assert roomy.candidates[0].remat.name == "none"
    assert tight.candidates[0].micro.count > 1 or tight.candidates[0].remat.name != "none"
    filled = [
        found.candidates[0].memory.total_bytes / found.candidates[0].memory.hbm_bytes
        for found in (roomy, tight)
    ]
    assert filled[0] < 0.5 and filled[1] > 0.9


def test_a_batch_that_nothing_divides_is_told_the_nearest_two_that_work() -> None:
    with pytest.raises(UsageError, match="no layout divides 977 sequences") as caught:
        plan_training(ask("llama3-70b", "v5p:16x20x28", 977, 4096))
    found = re.search(r"use (\d+) or (\d+) sequences", caught.value.hint)
    assert found and int(found[1]) < 977 < int(found[2])
    for batch in map(int, found.groups()):
        assert plan_training(ask("llama3-70b", "v5p:16x20x28", batch, 4096)).candidates


def test_what_cannot_fit_at_all_says_so() -> None:
    with pytest.raises(RooflightError, match="even recomputing every layer") as caught:
        plan_training(ask("llama3-70b", "v5e:4x4", 16, 4096))
    assert caught.value.exit_code == 1  # a finding, not a wrong request
