# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# jax annotates its own functions only in part.
"""Counts the matmul FLOPs of plain JAX transformers off their jaxprs and prints them as JSON.

Knows nothing of the library: sizes come in as JSON, a step is written with einsums as a textbook
has it, and every dot_general of its jaxpr is counted, scan bodies times their length.
"""

import json
import math
import os
import sys
from typing import Any  # jaxprs are untyped

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp


def count(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (left, _), _ = eqn.params["dimension_numbers"]
            summed = math.prod(eqn.invars[0].aval.shape[i] for i in left)
            total += 2 * summed * math.prod(eqn.outvars[0].aval.shape)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(map(count, inner_jaxprs(eqn.params)))
    return total


def inner_jaxprs(params: dict[str, Any]) -> list[Any]:
    """Bodies of scans and calls, closed or not; no step here has a branch."""
    bodies = [getattr(value, "jaxpr", value) for value in params.values()]
    return [body for body in bodies if hasattr(body, "eqns")]


def attend(q: Any, k: Any, v: Any, case: dict[str, Any]) -> Any:
    """Full: every pair, masked afterwards. Causal: each query alone with the keys it may see."""
    t, window = q.shape[1], case["window"] or q.shape[1]
    if not case["causal"]:
        scores = jnp.einsum("btngh,bsnh->btsng", q, k)
        seen = jnp.tril(jnp.ones((t, t)))[None, :, :, None, None]
        weights = jax.nn.softmax(jnp.where(seen > 0, scores, -1e9), axis=2)
        return jnp.einsum("btsng,bsnh->btngh", weights, v)
    rows: list[Any] = []
    for i in range(t):
        keys = slice(max(0, i + 1 - window), i + 1)
        scores = jnp.einsum("bngh,bsnh->bsng", q[:, i], k[:, keys])
        rows.append(jnp.einsum("bsng,bsnh->bngh", jax.nn.softmax(scores, axis=1), v[:, keys]))
    return jnp.stack(rows, axis=1)


def grouped(x: Any, w: Any, case: dict[str, Any]) -> Any:
    q = jnp.einsum("btd,dngh->btngh", x, w["q"])
    k, v = (jnp.einsum("btd,dnh->btnh", x, w[name]) for name in "kv")
    return jnp.einsum("btngh,nghd->btd", attend(q, k, v, case), w["o"])


def latent(x: Any, w: Any, case: dict[str, Any]) -> Any:
    """DeepSeek's, with its fused matrices: one for both halves of q, one for keys and values."""
    h, p, n = case["H"], case["P"], case["N"]
    q = jnp.einsum("btq,qnh->btnh", jnp.einsum("btd,dq->btq", x, w["dq"]), w["uq"])
    down = jnp.einsum("btd,dr->btr", x, w["dkv"])
    kv = jnp.einsum("btr,rnh->btnh", down[..., :-p], w["ukv"])
    k_rope = jnp.broadcast_to(down[:, :, None, -p:], (*kv.shape[:2], n, p))
    k = jnp.concatenate([kv[..., :h], k_rope], axis=-1)
    out = attend(q[:, :, :, None], k, kv[..., h:], case)
    return jnp.einsum("btnh,nhd->btd", out[:, :, :, 0], w["o"])


def dense(x: Any, w: Any) -> Any:
    up = x @ w["in"]
    return (jax.nn.silu(x @ w["gate"]) * up if "gate" in w else jax.nn.gelu(up)) @ w["out"]


def experts(x: Any, w: Any, case: dict[str, Any]) -> Any:
    """Tokens sorted by expert, as many for each; gathers and scatters, not one-hot matmuls."""
    flat, k = x.reshape(-1, x.shape[-1]), case["k"]
    gates, chosen = jax.lax.top_k(jax.nn.softmax(flat @ w["router"]), k)
    order = jnp.argsort(chosen.reshape(-1))
    sent = flat[order // k].reshape(case["E"], -1, x.shape[-1])
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", sent, w["e_gate"]))
    hidden = hidden * jnp.einsum("ecd,edf->ecf", sent, w["e_in"])
    done = jnp.einsum("ecf,efd->ecd", hidden, w["e_out"]).reshape(-1, x.shape[-1])
    done = done * gates.reshape(-1)[order][:, None]
    result = jnp.zeros_like(flat).at[order // k].add(done).reshape(x.shape)
    return result + dense(x, w["shared"]) if "shared" in w else result


def loss(weights: Any, tokens: Any, case: dict[str, Any]) -> Any:
    attention = latent if "R" in case else grouped

    def layer(x: Any, w: Any) -> Any:
        x = x + attention(x, w, case)
        return x + (experts(x, w, case) if "router" in w else dense(x, w)), None

    x = weights["embed"][tokens]
    for run in weights["runs"]:
        x, _ = jax.lax.scan(layer, x, run)
    return jax.nn.logsumexp(x @ weights["head"], axis=-1).sum()


def shapes(case: dict[str, Any]) -> dict[str, Any]:
    """Every weight as a shape; runs of layers have a leading layer dim."""
    d, f, h = case["D"], case["F"], case["H"]
    if "R" in case:
        n, p, v = case["N"], case["P"], case["Hv"]
        attention = {"dq": (d, case["Q"]), "uq": (case["Q"], n, h + p), "o": (n, v, d)}
        attention |= {"dkv": (d, case["R"] + p), "ukv": (case["R"], n, h + v)}
    else:
        k, g = case["K"], case["G"]
        attention = {"q": (d, k, g, h), "k": (d, k, h), "v": (d, k, h), "o": (k, g, h, d)}
    gate = {"gate": (d, f)} if case["gated"] else {}
    runs = [(case["dense_layers"], attention | gate | {"in": (d, f), "out": (f, d)})]
    if "E" in case:
        e, fe, fs = case["E"], case["Fe"], case["Fs"]
        moe: dict[str, Any] = {"router": (d, e), "e_out": (e, fe, d)}
        moe |= {"e_gate": (e, d, fe), "e_in": (e, d, fe)}
        if fs:
            moe["shared"] = {"gate": (d, fs), "in": (d, fs), "out": (fs, d)}
        runs.append((case["moe_layers"], attention | moe))
    stacked = [stack(tree, layers) for layers, tree in runs if layers]
    return {"embed": (case["V"], d), "head": (d, case["V"]), "runs": stacked}


def stack(tree: Any, layers: int) -> Any:
    if isinstance(tree, tuple):
        return (layers, *tree)
    return {name: stack(part, layers) for name, part in tree.items()}


def flops(case: dict[str, Any]) -> dict[str, int]:
    def spec(shape: tuple[int, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    weights = jax.tree.map(spec, shapes(case), is_leaf=lambda s: isinstance(s, tuple))
    tokens = jax.ShapeDtypeStruct((case["B"], case["T"]), jnp.int32)

    def forward(w: Any, t: Any) -> Any:
        return loss(w, t, case)

    step = jax.value_and_grad(forward)
    return {
        "forward": count(jax.make_jaxpr(forward)(weights, tokens).jaxpr),
        "step": count(jax.make_jaxpr(step)(weights, tokens).jaxpr),
    }


if __name__ == "__main__":
    print(json.dumps({name: flops(case) for name, case in json.load(sys.stdin).items()}))
