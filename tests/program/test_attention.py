"""Attention against plain softmax attention: values, gradients, memory, and the TPU kernel."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

HERE = Path(__file__).parent
CLOSE = 2e-6  # of the largest entry, in fp32
TPU_COMPILER = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@cache
def report(worker: str) -> Any:  # JSON
    """What a worker printed; each runs once."""
    environment = os.environ | (TPU_COMPILER if "tpu" in worker else {})
    command = [sys.executable, str(HERE / worker)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "case",
    [
        "causal",
        "window both ways",
        "sinks, window and softcap",
        "full, of some lengths, in one tile",
        "rows at their own positions",
    ],
)
def test_tiles_give_the_values_and_gradients_of_plain_attention(case: str) -> None:
    assert report("attention_worker.py")["errors"][case] < CLOSE


@pytest.mark.parametrize("case", ["batch and heads", "groups, so k and v are copies"])
def test_attention_is_the_same_on_an_explicit_mesh(case: str) -> None:
    assert report("attention_worker.py")["errors"][case] < CLOSE


def test_queries_may_be_split_over_positions_when_told_where_they_begin() -> None:
    assert report("attention_worker.py")["query shards"] < CLOSE


def test_the_kernel_for_tpus_gives_the_same_values() -> None:
    assert report("attention_worker.py")["errors"]["splash"] < CLOSE


def test_states_merge_in_any_order_and_no_keys_change_nothing() -> None:
    assert report("attention_worker.py")["merge"] < CLOSE


def test_memory_of_the_gradient_is_linear_in_the_length() -> None:
    """Four times the length, at most four times the bytes; the matrix of scores would take 16."""
    short, long = report("attention_worker.py")["bytes"]
    assert short < long <= 4 * short


def test_split_positions_are_refused_with_a_way_out() -> None:
    text = report("attention_worker.py")["refused"]
    assert "float32[4,16@a,2,2,8]" in text
    assert "ring_attend" in text


@pytest.mark.full
def test_attention_compiles_for_a_tpu_with_the_kernel_that_ships_with_jax() -> None:
    """Forward, dq and dkv are a kernel each; a ring, inside a map, is plain jax."""
    pytest.importorskip("libtpu")
    assert report("attention_tpu_worker.py") == {"plain": 3, "ring": 0}
