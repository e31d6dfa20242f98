"""What a policy keeps and recomputes, against `jax.checkpoint` on a layer written without us.

Policy `none` is left out: unfused, JAX keeps pieces of norms and activation functions that a
compiler recomputes, and scores that an attention kernel never stores.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any  # JSON

import pytest

from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, op_flops
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.memory.remat import keep, parse_remat

pytest.importorskip("jax")

WORKER = Path(__file__).with_name("remat_worker.py")
B, T, D, F, K, G, H = 2, 8, 16, 56, 2, 3, 4
POLICIES = ("block", "dots", "up", "q+k+v", "attended_heads", "attended", "q+attended_heads+up")
CASES = list(product(POLICIES, (True, False)))


def _question(policy: str, is_gated: bool) -> dict[str, Any]:
    norms = {"scale": (D,), "mlp_scale": (D,)}
    heads = {"q": (D, K, G, H), "k": (D, K, H), "v": (D, K, H), "o": (K, G, H, D)}
    mlp = {"in": (D, F), "out": (F, D)} | ({"gate": (D, F)} if is_gated else {})
    weights = norms | heads | mlp
    return {"policy": policy, "weights": weights, "x": (B, T, D)}


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, bool], dict[str, Any]]:
    questions = json.dumps([_question(*case) for case in CASES])
    done = subprocess.run(
        [sys.executable, str(WORKER)], input=questions, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("policy", "is_gated"), CASES)
def test_a_layer_keeps_and_redoes_what_jax_keeps_and_redoes(
    policy: str, is_gated: bool, answers: dict[tuple[str, bool], dict[str, Any]]
) -> None:
    block = Block(Attention(K * G, K, H), Mlp(F, is_gated=is_gated))
    graph = model_graph(ModelSpec("toy", "Toy", D, 32, (Repeat((block,), 1),)))
    layer = [op for op in graph.ops if op.block == 0]
    found = keep(layer, parse_remat(policy, graph))
    sizes = dim_sizes(graph, batch=B, seq=T)
    shapes = sorted([sizes[d] for d in t.dims] for t in found.tensors if t.name != "x")
    # Without a kernel the scores are made again in any case; a kernel's gradient does so itself.
    redone = [op for op in layer if op in found.ops or op.name == "attention.scores"]
    again = sum(op_flops(op, sizes, causal=False) for op in redone)
    assert {"saved": shapes, "again": again} == answers[policy, is_gated]
