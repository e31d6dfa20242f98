"""Greedy generation equals `transformers.generate`: seven families, 64 tokens, a ragged batch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")
pytest.importorskip("torch")
pytest.importorskip("transformers")

WORKER = Path(__file__).with_name("generate_hf_worker.py")
TOLERANCE = 1e-4  # of logits near 5, in fp32
NAMES = ("llama", "mistral", "mixtral", "qwen3", "gemma3", "deepseek_v3", "gpt_oss")

Found = dict[str, dict[str, Any]]  # JSON


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, str(WORKER), str(folder), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_that_of_transformers_token_for_token(found: Found, name: str) -> None:
    assert found[name]["tokens"] == 8 * 64
    assert found[name]["different"] == 0
    assert found[name]["distinct"] > 20  # of a vocabulary of 96: no text stands still


@pytest.mark.parametrize("name", NAMES)
def test_logits_along_the_text_are_those_of_transformers(found: Found, name: str) -> None:
    assert found[name]["error"] <= TOLERANCE
