"""Greedy generation equals `transformers.generate`: every family, 64 tokens, a ragged batch."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from workers import report

TOLERANCE = 1e-4  # of logits near 5, in fp32
# Every day those whose parts no other family has; llama, experts and norms on both sides of a block
# generate against `transformers` in tests/engine/test_engine_texts.py.
EVERYDAY = ("gemma3", "deepseek_v3", "gpt_oss", "glm4_moe", "granite")
REST = (
    *("llama", "mixtral", "olmo2"),
    *("mistral", "qwen3", "qwen2", "qwen3_moe", "gemma2", "phi3", "glm4"),
    *("gemma", "qwen2_moe", "deepseek_v2"),
)
NAMES = (*EVERYDAY, *(pytest.param(name, marks=pytest.mark.full) for name in REST))

Found = dict[str, dict[str, Any]]  # JSON


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def found(folder: Path, name: str) -> dict[str, Any]:
    """What the worker says of one model."""
    names = EVERYDAY if name in EVERYDAY else REST
    return report("generate_hf_worker.py", str(folder / names[0]), *names)[name]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_that_of_transformers_token_for_token(found: dict[str, Any]) -> None:
    assert found["tokens"] == 8 * 64
    assert found["different"] == 0
    assert found["distinct"] > 20  # of a vocabulary of 96: no text stands still
    assert found["margin"] > 2 * TOLERANCE  # so that rounding turns no choice over


@pytest.mark.parametrize("name", NAMES)
def test_logits_along_the_text_are_those_of_transformers(found: dict[str, Any]) -> None:
    assert found["error"] <= TOLERANCE
