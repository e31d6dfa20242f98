"""Reads a Hugging Face config.json into a `ModelSpec`; what it cannot say is named, not dropped.

In: a path to a config.json or its folder. Out: a `ModelSpec`, with `not_understood`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from rooflight.errors import UnknownNameError, UsageError
from rooflight.files import read_file
from rooflight.hardware.chip import Source
from rooflight.models.huggingface import expert_families as moe
from rooflight.models.huggingface import families as dense
from rooflight.models.huggingface.config import HfConfig
from rooflight.models.spec import ModelSpec

FAMILIES: Mapping[str, Callable[[HfConfig], ModelSpec]] = {
    "deepseek_v2": moe.deepseek_v2,
    "deepseek_v3": moe.deepseek_v3,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3_text,
    "glm4": dense.glm4,
    "glm4_moe": moe.glm4_moe,
    "gpt2": dense.gpt2,
    "gpt_oss": moe.gpt_oss,
    "granite": dense.granite,
    "llama": dense.llama,
    "llama4_text": moe.llama4_text,
    "mistral": dense.mistral,
    "mixtral": moe.mixtral,
    "mpt": dense.mpt,
    "olmo2": dense.olmo2,
    "phi3": dense.phi3,
    "qwen2": dense.qwen2,
    "qwen2_moe": moe.qwen2_moe,
    "qwen3": dense.qwen3,
    "qwen3_moe": moe.qwen3_moe,
}
_OUTER = {"gemma3": "gemma3_text", "llama4": "llama4_text"}  # inside a model that also sees
_SAME = {"kimi_k2": "deepseek_v3"}  # another name of a family


def read_hf_config(path: str | Path) -> ModelSpec:
    """Reads `config.json`, or the one in a folder."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    hint = "give a config.json of Hugging Face, or a preset from `rooflight model`"
    try:
        values: object = json.loads(read_file(file, hint=hint))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the model config {file}: {error}", hint=hint) from None
    if not isinstance(values, dict):
        raise UsageError(f"{file} holds no JSON object", hint="give a config.json of Hugging Face")
    model = model_from_hf(cast(Mapping[str, object], values), where=str(file))
    source = Source("config", f"Hugging Face config {file}", "", "")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return replace(model, name=name, title=name, source=source)


def model_from_hf(values: Mapping[str, object], *, where: str = "the config") -> ModelSpec:
    """The model that a parsed config describes."""
    config = HfConfig(values, where)
    kind = str(config.get("model_type"))
    outer: tuple[str, ...] = ()
    if kind in _OUTER and config.get("text_config") is not None:
        inner, kind = config.inner("text_config"), _OUTER[kind]
        if config.get("vision_config") is not None:
            config.notes.append("vision_config (the vision tower is left out)")
        config.used |= {"dtype", "torch_dtype", "tie_word_embeddings"}
        outer = config.left_over()
        config = inner
    kind = _SAME.get(kind, kind)
    if kind not in FAMILIES:
        raise _unknown(kind, where)
    model = FAMILIES[kind](config)
    stored = config.weights()
    return replace(model, weights=stored, not_understood=(*outer, *config.left_over()))


def _unknown(kind: str, where: str) -> UsageError:
    known = (*FAMILIES, *_OUTER, *_SAME)
    if kind == "None":
        words = ", ".join(known)
        return UsageError(f"{where} has no 'model_type'", hint=f'add "model_type", one of {words}')
    return UnknownNameError(f"model_type in {where}:", kind, known)
