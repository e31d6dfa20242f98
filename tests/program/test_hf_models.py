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
NAMES = (
    *("llama", "mistral", "mixtral", "qwen3", "gemma3", "deepseek_v3", "gpt_oss", "qwen2"),
    *("qwen3_moe", "gemma2", "olmo2", "phi3", "glm4", "granite"),
    *("gemma", "qwen2_moe", "glm4_moe", "deepseek_v2"),
    "phi3 with longrope, half turned",
    "qwen2 with windows, tied",
    "qwen3_moe with windows, every other layer",
    "llama with biases, tied",
    "qwen3 with windows",
    "deepseek without a query latent",
    "gemma with a cap",
)

Found = dict[str, dict[str, Any]]  # JSON


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder), *NAMES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(everything: Found) -> Found:
    return everything["models"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(found: Found, name: str) -> None:
    assert found[name]["size"] > 1  # the weights are large enough for a difference to show
    assert found[name]["error"] <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_a_step_are_those_of_transformers(found: Found, name: str) -> None:
    step = found[name]["step"]
    assert step["moving"] > 20  # tensors
    assert step["loss_error"] <= TOLERANCE
    assert step["error"] <= TOLERANCE  # of the largest element of its tensor
    assert step["still"] <= 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_what_we_write(found: Found, name: str) -> None:
    assert found[name]["export_error"] <= 1e-6
    assert found[name]["files"] > 1
    assert found[name]["largest_file"] < FILE_BYTES * 1.2


@pytest.mark.parametrize("name", NAMES)
def test_in_and_out_again_every_tensor_is_the_same_bit_for_bit(found: Found, name: str) -> None:
    assert found[name]["different"] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_config_or_the_files_is_left_over(found: Found, name: str) -> None:
    assert found[name]["not_understood"] == []
    assert found[name]["left_out"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_split_over_devices_the_weights_are_the_same(found: Found, name: str) -> None:
    split = found[name]["split"]
    assert len(split) == 3
    assert set(split.values()) == {0}


def test_every_family_with_names_is_held_against_the_oracle(found: Found) -> None:
    assert {found[n]["family"] for n in NAMES} == set(LAYERS)


def test_four_bit_weights_decode_to_what_transformers_decodes(everything: Found) -> None:
    assert everything["packed"]["equal"]
    assert everything["packed"]["largest"] > 1e6


def test_a_published_model_at_full_size_has_just_the_tensors_we_read(everything: Found) -> None:
    assert len(everything["full_size"]) == len(LAYERS)
    for name, found in everything["full_size"].items():
        assert found["tensors"] == found["used"] > 100, name
        assert found["left_out"] == {}, name
