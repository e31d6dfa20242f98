"""Tiny models of `transformers` in every family, through our program and back."""

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

from rooflight.program.checkpoint.names import LAYERS

WORKER = Path(__file__).with_name("hf_worker.py")
TOLERANCE = 1e-4  # of logits near 5, in fp32
FILE_BYTES = 60_000  # asked of the worker; one tensor may be larger, and a header comes on top
# Every day those that between them have each part of a model that a checkpoint can name; a scaled
# rope and experts by a softmax of scores are also in tests/engine/test_engine_texts.py.
EVERYDAY = (
    *("gemma3", "deepseek_v3", "gpt_oss", "olmo2", "glm4_moe", "granite"),
    *("phi3 with longrope, half turned", "qwen2 with windows, tied"),
)
REST = (
    *("llama", "mixtral", "mistral", "qwen3", "qwen2", "qwen3_moe", "gemma2", "phi3", "glm4"),
    *("gemma", "qwen2_moe", "deepseek_v2"),
    "qwen3_moe with windows, every other layer",
    "llama with biases, tied",
    "qwen3 with windows",
    "deepseek without a query latent",
    "gemma with a cap",
)
NAMES = (*EVERYDAY, *(pytest.param(name, marks=pytest.mark.full) for name in REST))

Found = dict[str, dict[str, Any]]  # JSON


def report(folder: Path, *names: str) -> Found:
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder), *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return report(tmp_path_factory.mktemp("models"), *EVERYDAY)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return report(tmp_path_factory.mktemp("rest"), *REST)


@pytest.fixture
def found(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """What the worker says of one model."""
    source: Found = request.getfixturevalue("everything" if name in EVERYDAY else "rest")
    return source["models"][name]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(found: dict[str, Any]) -> None:
    assert found["size"] > 1  # the weights are large enough for a difference to show
    assert found["error"] <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_a_step_are_those_of_transformers(found: dict[str, Any]) -> None:
    step = found["step"]
    assert step["moving"] > 20  # tensors
    assert step["loss_error"] <= TOLERANCE
    assert step["error"] <= TOLERANCE  # of the largest element of its tensor
    assert step["still"] <= 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_what_we_write(found: dict[str, Any]) -> None:
    assert found["export_error"] <= 1e-6
    assert found["files"] > 1
    assert found["largest_file"] < FILE_BYTES * 1.2


@pytest.mark.parametrize("name", NAMES)
def test_in_and_out_again_every_tensor_is_the_same_bit_for_bit(found: dict[str, Any]) -> None:
    assert found["different"] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_config_or_the_files_is_left_over(found: dict[str, Any]) -> None:
    assert found["not_understood"] == []
    assert found["left_out"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_split_over_devices_the_weights_are_the_same(found: dict[str, Any]) -> None:
    split = found["split"]
    assert len(split) == 3
    assert set(split.values()) == {0}


@pytest.mark.full
def test_every_family_with_names_is_held_against_the_oracle(everything: Found, rest: Found) -> None:
    models = [*everything["models"].values(), *rest["models"].values()]
    assert {found["family"] for found in models} == set(LAYERS)


def test_four_bit_weights_decode_to_what_transformers_decodes(everything: Found) -> None:
    assert everything["packed"]["equal"]
    assert everything["packed"]["largest"] > 1e6


def test_a_published_model_at_full_size_has_just_the_tensors_we_read(everything: Found) -> None:
    assert len(everything["full_size"]) == len(LAYERS)
    for name, found in everything["full_size"].items():
        assert found["tensors"] == found["used"] > 100, name
        assert found["left_out"] == {}, name
