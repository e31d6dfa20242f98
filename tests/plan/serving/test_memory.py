"""Bytes of served models against counts of the graph, and what fits against trying it."""

import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError, UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import kv_bytes, param_bytes
from rooflight.models.presets import load_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout, precision_of
from rooflight.plan.serving.step.memory import ServingMemory

CASES = (
    ("llama3-70b", "v5e:4x4", "tp=16,kv=batch", "int8"),
    ("llama3-70b", "v5e:4x4", "tp=16,kv=sequence", "int8"),
    ("llama3-70b", "h100:8", "tp=4,pp=2", "bf16"),
    ("deepseek-v3", "h100:8x4", "dp=32,ep=32", "fp8"),
    ("gemma3-27b", "h100:2", "tp=2", "bf16"),
)


def built(name: str, on: str, layout: str, dtypes: str) -> ServingMemory:
    return ServingMemory(
        load_model(name), parse_slice(on), parse_serving_layout(layout), parse_precision(dtypes)
    )


@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-4b", "qwen3-8b", "deepseek-v2"])
def test_one_chip_holds_the_bytes_of_the_graph(name: str) -> None:
    held = built(name, "h100", "tp=1", "int8/bf16/int8").held(3, 5000)
    graph = model_graph(load_model(name))
    assert held.weights_bytes == param_bytes(graph, DTYPES["int8"])
    assert held.kv_bytes == kv_bytes(graph, batch=3, seq=5000, dtype=DTYPES["bf16"])


@pytest.mark.parametrize("case", CASES)
def test_the_chips_of_a_slice_hold_at_least_the_model(case: tuple[str, str, str, str]) -> None:
    memory = built(*case)
    held, graph = memory.held(64, 4096), model_graph(memory.model)
    chips = memory.on.num_chips
    assert held.weights_bytes * chips >= param_bytes(graph, memory.precision.weights)
    caches = kv_bytes(graph, batch=64, seq=4096, dtype=memory.precision.kv)
    assert held.kv_bytes * chips >= caches


@pytest.mark.parametrize("case", CASES)
def test_the_most_that_fits_fits_and_one_more_does_not(case: tuple[str, str, str, str]) -> None:
    memory = built(*case)
    most, longest = memory.most_sequences(4096), memory.longest_context(4)
    assert memory.held(most, 4096).fits and not memory.held(most + 1, 4096).fits
    assert memory.held(4, longest).fits and not memory.held(4, longest + 1).fits


def test_a_cache_past_the_heads_fits_twice_as_often_when_it_is_split() -> None:
    heads, batch = (
        built("llama3-70b", "v5e:4x4", f"tp=16,kv={kv}", "int8") for kv in ("heads", "batch")
    )
    assert batch.held(64, 2048).kv_bytes * 2 == heads.held(64, 2048).kv_bytes


def test_a_model_too_large_for_a_slice_holds_no_sequence() -> None:
    assert built("deepseek-v3", "h100:8", "tp=8", "fp8").most_sequences(1) == 0


def test_a_model_is_served_as_its_weights_are_published_unless_told() -> None:
    """gpt-oss has experts in mxfp4 and the rest in bf16: 65 GB on one GPU, 234 GB if all were."""
    model = load_model("gpt-oss-120b")
    on, layout = parse_slice("h100"), parse_serving_layout("tp=1")
    own, told = (ServingMemory(model, on, layout, precision_of(model, d)) for d in (None, "bf16"))
    assert str(own.precision) == "mxfp4@experts/bf16/mxfp4"
    assert parse_precision(str(own.precision)) == own.precision
    graph = model_graph(model)
    assert 60e9 < own.held(1, 4096).weights_bytes < 70e9 and own.held(1, 4096).fits
    assert told.held(1, 4096).weights_bytes == param_bytes(graph, DTYPES["bf16"])
    assert str(precision_of(load_model("llama3-8b"), None)) == "bf16/bf16/bf16"


def test_dtypes_of_experts_are_of_a_model_that_has_some() -> None:
    with pytest.raises(UsageError, match="llama3-8b has no experts") as refused:
        precision_of(load_model("llama3-8b"), "fp8@experts")
    assert refused.value.hint == "write fp8 alone"
    with pytest.raises(ParseError, match="'fp8@expert' names a part"):
        parse_precision("fp8@expert")
    held = parse_precision("fp8@experts")
    assert {p: held.of_part(p).name for p in ("experts", "shared", "mlp", "embedding")} == {
        "experts": "fp8",
        **dict.fromkeys(("shared", "mlp", "embedding"), "bf16"),
    }
