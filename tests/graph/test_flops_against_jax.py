"""FLOPs off the graph against FLOPs off the jaxprs of transformers written without the library.

Convention: `full` multiplies all T x T pairs and masks afterwards; `causal` multiplies each query
with the keys it may see and no other, window included.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any  # JSON

import pytest

from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import forward_flops, training_flops
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Repeat

pytest.importorskip("jax")

WORKER = Path(__file__).with_name("jaxpr_worker.py")
_BASE = {"B": 2, "T": 24, "D": 48, "F": 80, "V": 96, "H": 16, "dense_layers": 3, "window": None}
_HEADS = {"K": 2, "G": 3}
_LATENT = {"N": 4, "Q": 20, "R": 12, "P": 8, "Hv": 10}
_MOE = {"E": 8, "k": 2, "Fe": 28, "Fs": 36, "moe_layers": 4, "dense_layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "dense": _BASE | {"K": 6, "G": 1, "gated": False},
    "gqa": _BASE | _HEADS | {"gated": True},
    "mqa": _BASE | {"K": 1, "G": 6, "gated": True},
    "window": _BASE | _HEADS | {"gated": True, "window": 7},
    "moe": _BASE | _HEADS | _MOE | {"gated": True},
    "moe without shared": _BASE | _HEADS | _MOE | {"gated": True, "Fs": 0, "dense_layers": 0},
    "mla": _BASE | _LATENT | {"gated": True},
    "mla and moe": _BASE | _LATENT | _MOE | {"gated": True},
}
CASES = {
    f"{name}, {'causal' if causal else 'full'}": case | {"causal": causal}
    for (name, case), causal in product(KINDS.items(), (False, True))
    if causal or case["window"] is None  # a full window is no textbook matmul
}


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, str(WORKER)], input=json.dumps(CASES), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def _model(case: dict[str, Any]) -> ModelSpec:
    if "R" in case:
        latent = Latent(case["Q"], case["R"], case["P"], case["Hv"])
        attention = Attention(case["N"], case["N"], case["H"], latent=latent)
    else:
        heads = case["K"] * case["G"]
        attention = Attention(heads, case["K"], case["H"], window=case["window"])
    runs = [
        Repeat((Block(attention, Mlp(case["F"], is_gated=case["gated"])),), case["dense_layers"])
    ]
    if "E" in case:
        shared = Mlp(case["Fs"]) if case["Fs"] else None
        moe = Moe(case["E"], case["k"], Mlp(case["Fe"]), shared=shared)
        runs.append(Repeat((Block(attention, moe),), case["moe_layers"]))
    layers = tuple(r for r in runs if r.times)
    return ModelSpec("case", "Case", case["D"], case["V"], layers)


@pytest.mark.parametrize("name", CASES)
def test_flops_off_the_graph_are_those_of_the_jaxpr(
    name: str, counted: dict[str, dict[str, int]]
) -> None:
    case = CASES[name]
    graph = model_graph(_model(case))
    forward = forward_flops(graph, batch=case["B"], seq=case["T"], causal=case["causal"])
    step = training_flops(graph, batch=case["B"], seq=case["T"], causal=case["causal"])
    assert {"forward": forward, "step": step} == counted[name]
