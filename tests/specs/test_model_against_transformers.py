"""Parameter counts are those of `transformers`' own models, to the last bias.

The models are built on torch's meta device, so their full sizes cost no memory.
"""

import importlib
import json
from functools import cache
from typing import Any  # torch and transformers are optional here, and transformers is untyped

import pytest

from rooflight.errors import UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.huggingface.read import FAMILIES, model_from_hf
from rooflight.models.presets import load_model

from .hf_configs import CONFIGS, WITHOUT_PRESET, Config

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the oracle's own warnings are not ours

EVERY = CONFIGS | WITHOUT_PRESET
ONE_A_FAMILY = {str(c["model_type"]): name for name, c in EVERY.items()}

# Options that no preset has, each a change to a preset.
VARIANTS: dict[str, Config] = {
    "llama with biases": CONFIGS["llama3-8b"] | {"attention_bias": True, "mlp_bias": True},
    "llama with a wide head": CONFIGS["llama3-8b"] | {"head_dim": 192},
    "qwen2 with windows": CONFIGS["qwen2-7b"] | {"use_sliding_window": True, "sliding_window": 512},
    "qwen3 with biases": CONFIGS["qwen3-8b"] | {"attention_bias": True},
    "qwen3 moe with dense layers": CONFIGS["qwen3-30b-a3b"]
    | {"mlp_only_layers": [0, 3], "decoder_sparse_step": 2},
    "gemma 1": CONFIGS["gemma2-9b"] | {"model_type": "gemma"},
    "gemma 2 with biases": CONFIGS["gemma2-9b"] | {"attention_bias": True},
    "deepseek without a query latent": CONFIGS["deepseek-v2"] | {"q_lora_rank": None},
    "deepseek with biases": CONFIGS["deepseek-v3"] | {"attention_bias": True},
    "olmo 2 tied": CONFIGS["olmo2-7b"] | {"tie_word_embeddings": True},
    "gpt-oss without biases": CONFIGS["gpt-oss-20b"] | {"attention_bias": False},
}


def _theirs(config: Config) -> int:
    """By what the config says: a preset and its published config are one model."""
    return _built(json.dumps(config, sort_keys=True))


@cache
def _built(text: str) -> int:
    config: Config = json.loads(text)
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    with torch.device("meta"):
        described = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(described)
    return sum(int(p.numel()) for p in model.parameters())


@pytest.mark.parametrize("name", EVERY)
def test_a_published_config_has_as_many_parameters_as_the_real_model(name: str) -> None:
    assert count_params(model_graph(model_from_hf(EVERY[name]))) == _theirs(EVERY[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_has_as_many_parameters_as_the_real_model(name: str) -> None:
    assert count_params(model_graph(load_model(name))) == _theirs(CONFIGS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_an_option_changes_the_count_as_it_changes_the_real_model(name: str) -> None:
    assert count_params(model_graph(model_from_hf(VARIANTS[name]))) == _theirs(VARIANTS[name])


@pytest.mark.parametrize("family", ONE_A_FAMILY)
def test_a_key_left_out_is_refused_or_has_the_default_of_transformers(family: str) -> None:
    whole = {k: v for k, v in EVERY[ONE_A_FAMILY[family]].items() if k != "layer_types"}
    whole |= {"num_hidden_layers": 4} if "num_hidden_layers" in whole else {}
    defaulted = 0
    for key in set(whole) - {"model_type"}:
        config = {k: v for k, v in whole.items() if k != key}
        try:
            ours = count_params(model_graph(model_from_hf(config)))
        except UsageError:
            continue
        assert ours == _theirs(config), key
        defaulted += 1
    assert defaulted


def test_every_family_of_the_reader_is_held_against_the_oracle() -> None:
    tested = {str(c["model_type"]) for c in (*EVERY.values(), *VARIANTS.values())}
    assert tested == set(FAMILIES)
    assert len(CONFIGS) >= 25
