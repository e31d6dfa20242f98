"""Utilisation: the published formulas, and what no run can reach."""

import pytest

from rooflight.errors import ModelError
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, training_flops
from rooflight.models.graph.utilisation import REMATS, Remat, utilisation
from rooflight.models.presets import load_model, model_names

_PEAK = 1e18


def _flops(name: str, seq: int, remat: Remat = "none") -> dict[str, float]:
    graph = model_graph(load_model(name))
    found = utilisation(graph, tokens_per_s=1e3, seq=seq, peak_flops=_PEAK, remat=remat)
    for one in found:
        assert one.fraction == one.flops_per_token * 1e3 / _PEAK and one.used_by
    return {one.convention: one.flops_per_token for one in found}


def test_palm_appendix_b_is_6n_plus_12lhqt() -> None:
    model = load_model("llama3-8b")
    expected = 6 * count_params(model_graph(model)) + 12 * 32 * 32 * 128 * 8192
    assert _flops("llama3-8b", 8192)["6ND + full attention"] == expected


def test_torchtitan_leaves_out_the_lookup_table_and_norms_cost_nothing() -> None:
    graph = model_graph(load_model("llama3-8b"))
    norms = sum(p.count * 4096 for p in graph.params if p.tensor.name == "Scale")
    weights = count_params(graph) - norms - 128256 * 4096
    expected = 6 * weights + 6 * 32 * 32 * (128 + 128) * 8192
    assert _flops("llama3-8b", 8192)["matmuls + full attention"] == expected


@pytest.mark.parametrize("name", model_names())
def test_causal_is_less_than_full_and_remat_more_than_none(name: str) -> None:
    none, attention, full = (_flops(name, 2048, r) for r in REMATS)
    assert none["matmuls + causal attention"] < none["matmuls + full attention"]
    assert none["hardware FLOPs"] == none["matmuls + causal attention"]
    assert none["hardware FLOPs"] < attention["hardware FLOPs"] < full["hardware FLOPs"]
    assert full["hardware FLOPs"] <= 4 / 3 * none["hardware FLOPs"]


def test_a_run_above_the_peak_is_an_error_that_says_what_is_possible() -> None:
    graph = model_graph(load_model("llama3-8b"))
    step = training_flops(graph, batch=1, seq=8192, causal=True)
    with pytest.raises(ModelError, match="630%") as caught:
        utilisation(graph, tokens_per_s=6.3 * 8192 * _PEAK / step, seq=8192, peak_flops=_PEAK)
    assert "whole slice" in caught.value.hint
