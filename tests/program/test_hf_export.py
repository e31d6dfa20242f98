"""What an export writes beside weights, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import jax.numpy as jnp

from rooflight.errors import UsageError
from rooflight.models.huggingface.read import model_from_hf, read_hf_config
from rooflight.program.checkpoint.export import export_huggingface
from rooflight.program.checkpoint.read import import_huggingface
from rooflight.program.model.params import JAX_DTYPES, Specs, Tree, map_specs, tensor_specs

TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 32,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def specs() -> Specs:
    return tensor_specs(model_from_hf(TEXT), "bf16")


@pytest.fixture(scope="module")
def params(specs: Specs) -> Tree:
    return map_specs(lambda s: jnp.ones(s.shape, JAX_DTYPES[s.dtype.name]), specs)


def test_the_config_has_the_dtype_of_the_weights_and_no_packing(
    specs: Specs, params: Tree, tmp_path: Path
) -> None:
    config = TEXT | {"quantization_config": {"quant_method": "fp8"}}
    files = export_huggingface(params, specs, tmp_path, config=config)
    assert [f.name for f in files] == ["model.safetensors"]
    written = json.loads((tmp_path / "config.json").read_text())
    kept = {k: v for k, v in TEXT.items() if k != "torch_dtype"}
    assert written == kept | {"dtype": "bfloat16"}


def test_the_text_model_of_one_that_sees_is_written_as_a_text_model(
    specs: Specs, params: Tree, tmp_path: Path
) -> None:
    outer = {"model_type": "gemma3", "text_config": TEXT, "vision_config": {}}
    export_huggingface(params, specs, tmp_path, config=outer)
    model = read_hf_config(tmp_path)
    assert model.layers == model_from_hf(TEXT).layers
    assert model.not_understood == ()


def test_a_folder_that_has_weights_is_not_written_over(
    specs: Specs, params: Tree, tmp_path: Path
) -> None:
    export_huggingface(params, specs, tmp_path, config=TEXT)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(UsageError, match="already holds"):
        export_huggingface(params, specs, tmp_path, config=TEXT | {"hidden_activation": "relu"})
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize("change", [{"vocab_size": 33}, {"attention_bias": True}])
def test_a_config_of_another_model_is_refused_with_the_weight_that_differs(
    specs: Specs, params: Tree, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"W_embed|attention\.B_"):
        export_huggingface(params, specs, tmp_path / "new", config=TEXT | change)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_weights_without_a_family_are_refused(
    specs: Specs, params: Tree, tmp_path: Path, text: str
) -> None:
    export_huggingface(params, specs, tmp_path, config=TEXT)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="which family") as caught:
        import_huggingface(tmp_path, specs, params)
    assert "model_type" in caught.value.hint
