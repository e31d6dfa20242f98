"""The training planner: what it recommends fits, divides, and recomputes no more than it must."""

import random
import re
from dataclasses import replace

import pytest

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import local_shape
from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.job import RECIPES
from rooflight.plan.training.search.candidate import Question
from rooflight.plan.training.search.plan import (
    better_batch,
    plan_training,
    rounded_batch,
    train_question,
)


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


def test_a_batch_of_broken_sequences_becomes_one_that_splits() -> None:
    gpus = ask("llama3-8b", "h100:8x2048", 1953, 8192)
    assert rounded_batch(gpus, 16_000_000) == 2048  # 2**24 tokens, what people mean by 16M
    v5e = ask("llama3-8b", "v5e:8x8", 244, 4096)
    assert rounded_batch(v5e, 1_000_000) == 256
    assert rounded_batch(ask("llama3-8b", "h100:8", 122, 8192), 1_000_000) == 128
    assert rounded_batch(gpus, 2048 * 8192 + 1) == 2048
    torus = ask("llama3-8b", "v5p:16x20x28", 1953, 8192)
    assert rounded_batch(torus, 16_000_000) == 1960  # the 5 and 7 of 8,960 chips divide it
    for tokens in range(1 << 22, 1 << 23, 99_991):
        found = rounded_batch(torus, tokens)
        assert abs(found * 8192 / tokens - 1) <= 0.05
    with pytest.raises(UsageError, match=r"is 2\.5 sequences of 8,192") as caught:
        rounded_batch(gpus, 20_480)
    assert "use 16384 or 24576 tokens" in caught.value.hint


def test_a_batch_that_suits_the_slice_is_named() -> None:
    graph, on = model_graph(load_model("llama3.1-405b")), parse_slice("h100:8x2048")
    question = train_question(graph, on, 1920, 8192, DTYPES["bf16"])
    best = plan_training(question, count=1).candidates[0]
    found = better_batch(question, best)
    assert found and found[0] == 2048
    question = replace(question, batch=2048)
    assert better_batch(question, plan_training(question, count=1).candidates[0]) is None


def test_what_cannot_fit_at_all_says_so() -> None:
    with pytest.raises(RooflightError, match="even recomputing every layer") as caught:
        plan_training(ask("llama3-70b", "v5e:4x4", 16, 4096))
    assert caught.value.exit_code == 1  # a finding, not a wrong request
