"""Latent attention as decoding does it computes what the expanded form computes."""

import numpy as np
import pytest

from rooflight.algebra.notation import Contraction
from rooflight.dtypes import DTYPES
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params, kv_bytes_per_token
from rooflight.models.graph.ops import Graph
from rooflight.models.presets import load_model
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Repeat

Arrays = dict[str, np.ndarray]
ATTENTION = Attention(4, 4, 8, latent=Latent(query_rank=None, kv_rank=6, rope_dim=2, value_dim=5))
MODEL = ModelSpec("small", "Small", 16, 32, (Repeat((Block(ATTENTION, Mlp(8)),), 1),))


def _einsum(contraction: Contraction, arrays: Arrays) -> np.ndarray:
    letters = {d: chr(ord("a") + i) for i, d in enumerate(contraction.dims)}
    left = ",".join("".join(letters[d] for d in t.dims) for t in contraction.operands)
    right = "".join(letters[d] for d in contraction.result.dims)
    return np.einsum(f"{left}->{right}", *(arrays[t.name] for t in contraction.operands))


def attended(graph: Graph, arrays: Arrays) -> np.ndarray:
    """Runs the ops from the queries on; scores add up, the softmax is over the keys."""
    made = dict(arrays)
    for op in graph.ops:
        result = op.contraction.result.name
        if op.part != "attention" or op.name in ("attention.kv_down", "attention.k_rope"):
            continue
        if op.name == "attention.softmax":
            raised = np.exp(made["scores"])
            made["weights"] = raised / raised.sum(axis=2, keepdims=True)
        elif op.name in ("attention.scores", "attention.rope_scores"):
            made["scores"] = made.get("scores", 0) + _einsum(op.contraction, made)
        elif op.kind == "matmul" or op.kind == "attention":
            made[result] = _einsum(op.contraction, made)
    return made["attended"]


def test_absorbed_and_expanded_attention_agree() -> None:
    rng = np.random.default_rng(0)
    sizes = dict(model_graph(MODEL).sizes) | {"B": 2, "T": 3, "S": 3}
    arrays = {
        p.tensor.name: rng.normal(size=[sizes[d] for d in p.tensor.dims])
        for p in model_graph(MODEL).params
    }
    arrays |= {"h": rng.normal(size=(2, 3, 16)), "kv_latent": rng.normal(size=(2, 3, 6))}
    arrays["k_rope"] = rng.normal(size=(2, 3, 2))
    plain, absorbed = (attended(model_graph(MODEL, absorbed=a), arrays) for a in (False, True))
    np.testing.assert_allclose(absorbed, plain, rtol=1e-10)


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "llama3-8b"])
def test_absorbing_changes_no_parameter_and_no_cache(name: str) -> None:
    plain, absorbed = (model_graph(load_model(name), absorbed=a) for a in (False, True))
    assert count_params(absorbed) == count_params(plain)
    bf16 = DTYPES["bf16"]
    assert kv_bytes_per_token(absorbed, bf16) == kv_bytes_per_token(plain, bf16)
