"""Each product of a layer under each layout, run on fake devices: all strategies and gradients."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from rooflight.models.layout.rules import SCHEMES, parse_layout

WORKER = Path(__file__).with_name("layout_worker.py")
MATMULS = 9  # of a dense layer: q, k, v, scores, mix, out, gate, in, out
LAYOUTS = (
    "fsdp=X,tp=Y",
    "fsdp=X,sp=Y",
    "dp=X,mp=Y",
    "fsdp=X,cp=Y",
    "fsdp=X,ulysses=Y",
    "ws=X,tp=Y",
    "fsdp=X,qtp=Y",
    "fsdp=X,ulysses=Y,tp=Z",
)


def test_every_product_under_every_layout_equals_the_unsharded_einsum() -> None:
    done = subprocess.run(
        [sys.executable, str(WORKER), "7", *LAYOUTS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    tally = json.loads(done.stdout)
    assert not tally["wrong"], "\n".join(tally["wrong"][:5])
    assert tally["cases"] == MATMULS * len(LAYOUTS)
    assert tally["by_op"]["all_to_all"] >= 4


def test_no_scheme_of_a_dense_layer_is_left_out() -> None:
    """Experts need a routed layer, and stages split no tensor."""
    run = {
        part.partition("=")[0] for text in LAYOUTS for part in parse_layout(text).text.split(",")
    }
    assert run == set(SCHEMES) - {"ep", "pp"}
