"""What cannot be served is refused before anything is read, and in advance by the same words."""

import json
from pathlib import Path
from typing import Any  # JSON

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import numpy as np
import safetensors.numpy

from rooflight.errors import UsageError
from rooflight.models.huggingface.read import model_from_hf
from rooflight.program.checkpoint.match import published
from rooflight.program.model.params import tensor_specs
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.load import Placement, check_folder, load_engine

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
}
LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
WORDS: dict[str, dict[str, Any]] = {
    "of kind dynamic": {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "longer than 128 tokens": {
        "model_type": "phi3",
        **SIZES,
        "original_max_position_embeddings": 128,
        "rope_scaling": LONGROPE,
    },
    "ALiBi": {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 96},
    "family of checkpoints": {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2}
    | {"vocab_size": 96},
    "does not have 21 tensors": LLAMA,
}
CONFIG = EngineConfig(
    max_rows=2, block_tokens=16, num_blocks=32, max_step_tokens=64, max_model_tokens=256
)


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({}, folder / "model.safetensors")
    return folder


def refusal(does: Any, *arguments: Any) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        does(*arguments)
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize("words", WORDS)
def test_a_model_is_refused_in_advance_as_when_it_is_loaded(words: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", WORDS[words])
    before = refusal(check_folder, folder, CONFIG, Placement())
    assert words in before[0] and before[1]
    assert refusal(load_engine, folder, CONFIG, Placement()) == before


def test_a_draft_model_is_refused_in_advance_too(tmp_path: Path) -> None:
    own = folder_of(tmp_path / "own", LLAMA)
    stores = published("llama", tensor_specs(model_from_hf(LLAMA)))
    shapes = {p.name: s.form.shape(s.sizes) for s in stores.every() for p in s.places()}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(zeros, own / "model.safetensors")
    check_folder(own, CONFIG, Placement())
    drafter = folder_of(tmp_path / "drafter", WORDS["ALiBi"])
    placement = Placement(drafter=str(drafter))
    before = refusal(check_folder, own, CONFIG, placement)
    assert "ALiBi" in before[0]
    assert refusal(load_engine, own, CONFIG, placement) == before


def test_a_cache_split_by_sequences_is_refused_in_advance_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", LLAMA)
    with pytest.raises(UsageError, match="splits the cache by sequences"):
        check_folder(folder, CONFIG, Placement("v5e:2x2", "tp=4,kv=batch"))
