"""Configs from Hugging Face: every key is understood, known to be irrelevant, or named."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.huggingface.read import model_from_hf, read_hf_config

from .hf_configs import CONFIGS, WITHOUT_PRESET

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


# What configs say that a record does not hold, on purpose.
LEFT_OUT = {
    "deepseek-v3": ["num_nextn_predict_layers"],
    "glm-4.5": ["num_nextn_predict_layers"],
    "glm-4.5-air": ["num_nextn_predict_layers"],
    "llama4-scout": ["attention_chunk_size", "use_qk_norm"],
    "llama4-maverick": ["attention_chunk_size"],
}


@pytest.mark.parametrize("name", CONFIGS | WITHOUT_PRESET)
def test_nothing_of_a_published_config_is_left_over_but_on_purpose(name: str) -> None:
    notes = model_from_hf((CONFIGS | WITHOUT_PRESET)[name]).not_understood
    assert [note.split()[0] for note in notes] == LEFT_OUT.get(name, [])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_key_nobody_knows_is_named(name: str) -> None:
    config = CONFIGS[name] | {"frobnication_rank": 7}
    assert "frobnication_rank" in model_from_hf(config).not_understood


def test_what_is_left_out_on_purpose_is_named() -> None:
    assert "num_nextn_predict_layers" in model_from_hf(CONFIGS["deepseek-v3"]).not_understood[0]
    config = CONFIGS["gpt-oss-20b"] | {"quantization_config": {"quant_method": "bitnet"}}
    assert model_from_hf(config).not_understood == ("quantization_config",)


def test_how_weights_are_stored_is_read_from_their_packing() -> None:
    for method, stored in (("mxfp4", "mxfp4@experts"), ("fp8", "fp8")):
        config = CONFIGS["gpt-oss-20b"] | {"quantization_config": {"quant_method": method}}
        model = model_from_hf(config)
        assert (model.weights, model.not_understood) == (stored, ())
    assert model_from_hf(CONFIGS["gpt-oss-20b"]).weights == "bf16"


def test_the_text_model_inside_one_that_sees_is_read_and_the_rest_named() -> None:
    # The published file gives only these sizes: the others are defaults of its family.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "mystery": 1}
    model = model_from_hf(config)
    assert model.layers == model_from_hf(CONFIGS["gemma3-4b"]).layers
    assert [gap.split()[0] for gap in model.not_understood] == ["vision_config", "mystery"]


def test_a_file_and_its_folder_read_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]))
    model = read_hf_config(folder)
    assert model == read_hf_config(folder / "config.json")
    assert (model.name, model.dtype) == ("my-model", "bf16")
    assert count_params(model_graph(model)) == 8_030_261_248


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot read"),
        ("[]", "no JSON object"),
        ("{}", "no 'model_type'"),
        ('{"model_type": "mamba"}', "unknown model_type"),
        ('{"model_type": "llama"}', "has no 'num_attention_heads'"),
        ('{"model_type": "llama", "attention_bias": 3}', "attention_bias = 3"),
    ],
)
def test_a_wrong_file_is_refused_with_a_hint(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_hf_config(path)
    assert problem in str(caught.value) and str(path) in str(caught.value) and caught.value.hint


def test_a_kind_of_layer_that_is_not_modelled_is_refused() -> None:
    config = CONFIGS["qwen3-8b"] | {"layer_types": ["linear_attention"] * 36}
    with pytest.raises(UsageError, match="linear_attention"):
        model_from_hf(config)


def test_the_factors_of_granite_are_read() -> None:
    model = model_from_hf(WITHOUT_PRESET["granite3-8b"])
    assert (model.embedding_scale, model.residual_scale, model.logit_scale) == (12, 0.22, 1 / 16)
    assert model.blocks[0].attention.scale == 0.0078125


LONGROPE = {"type": "longrope", "short_factor": [1.5] * 48, "long_factor": [9.0] * 48}
LONG_PHI = CONFIGS["phi3-mini"] | {
    "rope_scaling": LONGROPE,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
}


def test_positions_of_longrope_have_the_factors_of_short_sequences() -> None:
    rope = model_from_hf(LONG_PHI).blocks[0].attention.rope
    assert rope is not None and rope.scaling is not None
    assert (rope.scaling.factors, rope.scaling.original_seq) == ((1.5,) * 48, 4096)
    assert rope.scaling.attention_factor == pytest.approx(
        (1 + math.log(32) / math.log(4096)) ** 0.5
    )


@pytest.mark.parametrize("factors", [[1.5] * 47, [0.0] * 48, ["x"], [], 3, None])
def test_wrong_factors_of_longrope_are_refused(factors: object) -> None:
    with pytest.raises(UsageError, match="factor"):
        model_from_hf(LONG_PHI | {"rope_scaling": LONGROPE | {"short_factor": factors}})


def test_the_part_of_a_head_that_turns_is_read_from_either_place() -> None:
    old = CONFIGS["phi4"] | {"partial_rotary_factor": 0.75}
    new = CONFIGS["phi4"] | {"rope_parameters": {"partial_rotary_factor": 0.75}}
    rope = model_from_hf(new).blocks[0].attention.rope
    assert rope is not None and rope.dim == 96
    assert model_from_hf(old).layers == model_from_hf(new).layers


def test_biases_that_are_not_modelled_are_refused() -> None:
    with pytest.raises(UsageError, match="mlp_bias"):
        model_from_hf(CONFIGS["deepseek-v2"] | {"mlp_bias": True})


@pytest.mark.parametrize("window", [0, None, 4096])
def test_a_window_that_no_layer_has_may_be_anything(window: int | None) -> None:
    config = CONFIGS["qwen2-7b"] | {"use_sliding_window": False, "sliding_window": window}
    assert model_from_hf(config).layers == model_from_hf(CONFIGS["qwen2-7b"]).layers


def test_experts_are_counted_under_either_name() -> None:
    config = dict(CONFIGS["qwen3-30b-a3b"])
    config["num_local_experts"] = config.pop("num_experts")
    assert model_from_hf(config).layers == model_from_hf(CONFIGS["qwen3-30b-a3b"]).layers


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_no_value_of_any_key_breaks_the_reader(name: str, data: st.DataObject) -> None:
    config = CONFIGS[name]
    key = data.draw(st.sampled_from(sorted(config)))
    try:
        model = model_from_hf(config | {key: data.draw(_JSON)})
    except UsageError as error:
        assert error.hint
        return
    assert model.num_layers >= 1 and model.d_model >= 1
