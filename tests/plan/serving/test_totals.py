"""Closed forms against the step models they bound, and proposals against chance."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, kv_bytes, kv_bytes_per_token
from rooflight.models.presets import load_model
from rooflight.plan.serving.simulate.setup import hand_over
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.totals import Speculation, Totals


@pytest.mark.parametrize("batch", [1, 8, 64, 512])
def test_no_layout_is_faster_than_the_totals(batch: int) -> None:
    """Less the embedding, of which a step reads rows, and nothing else."""
    model, on = load_model("llama3-70b"), parse_slice("v5e:4x4")
    graph = model_graph(model)
    params = count_params(graph) - count_params(graph, parts=["embedding"])
    int8 = DTYPES["int8"]
    totals = Totals(on, params, params, kv_bytes_per_token(graph, int8), "int8")
    for layout in ("tp=16", "tp=16,kv=batch", "tp=8,pp=2", "tp=4,ws=4"):
        steps = serving_model(model, on, parse_serving_layout(layout), parse_precision("int8"))
        found = steps.generate([2048] * batch)
        assert found.matmuls_s >= totals.generate(batch, 2048).expected_s * (1 - 1e-3), layout


def test_proposals_pay_as_often_as_they_are_accepted() -> None:
    rng, plan = random.Random(1), Speculation(0.7, 0.1, lambda q: 1.0)

    def made(ahead: int) -> int:
        accepted = 0
        while accepted < ahead and rng.random() < plan.acceptance:
            accepted += 1
        return accepted + 1

    for ahead in (1, 3, 6):
        mean = sum(made(ahead) for _ in range(40_000)) / 40_000
        assert mean == pytest.approx(plan.tokens(ahead), rel=0.01)


@given(st.floats(0, 0.99), st.floats(0, 2))
def test_the_best_look_ahead_is_never_slower_than_none(acceptance: float, draft_s: float) -> None:
    plan = Speculation(acceptance, draft_s, lambda q: 1 + 0.01 * q)
    assert plan.gain >= 1
    assert all(plan.token_s(plan.best) <= plan.token_s(k) for k in range(20))


def test_a_draft_as_slow_as_the_model_proposes_nothing() -> None:
    assert Speculation(0.5, 1.0, lambda q: 1.0).best == 0
    with pytest.raises(UsageError, match="acceptance"):
        Speculation(1.0, 0.1, lambda q: 1.0)


def test_a_cache_travels_at_the_rate_of_the_slower_side() -> None:
    graph, int8 = model_graph(load_model("llama3-70b")), DTYPES["int8"]
    small, large = parse_slice("v5e:4x4"), parse_slice("v5e:8x8")
    move = hand_over(graph, 8192, int8, small, large)
    assert move == hand_over(graph, 8192, int8, large, small)
    assert move.nbytes == kv_bytes(graph, batch=1, seq=8192, dtype=int8)
    assert hand_over(graph, 8192, int8, large, large).seconds < move.seconds
