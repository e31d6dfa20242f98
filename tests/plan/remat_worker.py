# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Asks `jax.checkpoint` what a plain layer keeps and recomputes, and prints it as JSON.

Knows nothing of the library: sizes and policies come in as JSON. Saved: the shapes of the residuals
that are not arguments. Again: FLOPs of forward and backward less those without a policy.
"""

import contextlib
import io
import json
import math
import os
import re
import sys
from typing import Any  # jaxprs are untyped

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def layer(w: dict[str, Any], x: Any) -> Any:
    h = norm(x, w["scale"])
    q = checkpoint_name(jnp.einsum("btd,dkgh->btkgh", h, w["q"]), "q")
    k = checkpoint_name(jnp.einsum("btd,dkh->btkh", h, w["k"]), "k")
    v = checkpoint_name(jnp.einsum("btd,dkh->btkh", h, w["v"]), "v")
    weights = jax.nn.softmax(jnp.einsum("btkgh,bskh->btskg", q, k), axis=2)
    heads = checkpoint_name(jnp.einsum("btskg,bskh->btkgh", weights, v), "attended_heads")
    attended = checkpoint_name(jnp.einsum("btkgh,kghd->btd", heads, w["o"]), "attended")
    x = x + attended
    m = norm(x, w["mlp_scale"])
    up = checkpoint_name(jnp.einsum("btd,df->btf", m, w["in"]), "up")
    gate = checkpoint_name(jnp.einsum("btd,df->btf", m, w["gate"]), "gate") if "gate" in w else 1.0
    return x + jnp.einsum("btf,fd->btd", jax.nn.gelu(up) * gate, w["out"])


def under(policy: str) -> Any:
    known = jax.checkpoint_policies
    if policy == "block":
        return jax.checkpoint(layer)
    if policy == "dots":
        return jax.checkpoint(layer, policy=known.dots_with_no_batch_dims_saveable)
    return jax.checkpoint(layer, policy=known.save_only_these_names(*policy.split("+")))


def flops(function: Any, w: Any, x: Any) -> int:
    def step(w: Any, x: Any) -> Any:
        y, gradient = jax.vjp(function, w, x)
        return gradient(y)

    return count(jax.make_jaxpr(step)(w, x).jaxpr)


def count(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (left, _), _ = eqn.params["dimension_numbers"]
            summed = math.prod(eqn.invars[0].aval.shape[i] for i in left)
            total += 2 * summed * math.prod(eqn.outvars[0].aval.shape)
        bodies = [getattr(value, "jaxpr", value) for value in eqn.params.values()]
        total += sum(count(body) for body in bodies if hasattr(body, "eqns"))
    return total


def saved(function: Any, w: Any, x: Any) -> list[list[int]]:
    """The shapes, sorted, from the text that jax prints for people: `f32[2,8,16] output of ...`."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(function, w, x)
    lines = [line for line in text.getvalue().splitlines() if "from the argument" not in line]
    found = [re.match(r"\w+\[([\d,]+)\]", line) for line in lines]
    return sorted([int(n) for n in match[1].split(",")] for match in found if match)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    shapes: dict[str, list[int]] = case["weights"]
    w = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct(case["x"], jnp.float32)
    function = under(case["policy"])
    again = flops(function, w, x) - flops(layer, w, x)
    return {"saved": saved(function, w, x), "again": again}


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
