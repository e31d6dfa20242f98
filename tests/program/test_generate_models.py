"""Greedy generation equals `transformers.generate`: every family, 64 tokens, a ragged batch."""

from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from workers import report

TOLERANCE = 1e-4  # of logits near 5, in fp32
NAMES = (
    *("llama", "mistral", "mixtral", "qwen3", "gemma3", "deepseek_v3", "gpt_oss", "qwen2"),
    *("qwen3_moe", "gemma2", "olmo2", "phi3", "glm4", "granite"),
    *("gemma", "qwen2_moe", "glm4_moe", "deepseek_v2"),
)

Found = dict[str, dict[str, Any]]  # JSON


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("models")
    return report("generate_hf_worker.py", str(folder), *NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_that_of_transformers_token_for_token(found: Found, name: str) -> None:
    assert found[name]["tokens"] == 8 * 64
    assert found[name]["different"] == 0
    assert found[name]["distinct"] > 20  # of a vocabulary of 96: no text stands still
    assert found[name]["margin"] > 2 * TOLERANCE  # so that rounding turns no choice over


@pytest.mark.parametrize("name", NAMES)
def test_logits_along_the_text_are_those_of_transformers(found: Found, name: str) -> None:
    assert found[name]["error"] <= TOLERANCE
