"""Collective matmuls on fake devices against the plain product: values, gradients, steps.

Run as a process of its own: `python collective_matmul_worker.py`. Prints one JSON object: for each
form, ring size and direction the error and the longest chain of permutes, forward and backward.
"""

import json
import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"  # compiling is what takes time here
)
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from rooflight.errors import ShardingError
from rooflight.program.collective_matmul.matmul import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
)
from rooflight.program.model.fused_block import fused_block

Specs = tuple[P, ...]
FORMS: dict[str, tuple[Callable[..., jax.Array], Specs, P]] = {
    "gather rows": (
        partial(all_gather_matmul, dim="rows"),
        (P(("X", "Y"), None), P(None, "Y")),
        P("X", "Y"),
    ),
    "gather contract": (
        partial(all_gather_matmul, dim="contract"),
        (P("X", "Y"), P(None, "Y")),
        P("X", "Y"),
    ),
    "scatter rows": (
        partial(matmul_reduce_scatter, dim="rows"),
        (P("X", "Y"), P("Y", None)),
        P(("X", "Y"), None),
    ),
    "scatter columns": (
        partial(matmul_reduce_scatter, dim="columns"),
        (P("X", "Y"), P("Y", None)),
        P("X", "Y"),
    ),
    "all-reduce": (
        partial(matmul_all_reduce, tiles=4),
        (P("X", "Y"), P("Y", None)),
        P("X", None),
    ),
    "block by model": (
        partial(fused_block, split="model"),
        (P("X", "Y"), P(None, "Y"), P("Y", None)),
        P("X", "Y"),
    ),
    "block by tokens": (
        partial(fused_block, split="tokens"),
        (P(("X", "Y"), None), P(None, "Y"), P("Y", None)),
        P(("X", "Y"), None),
    ),
}


def plain(*arrays: jax.Array) -> jax.Array:
    a, b, *rest = arrays
    return a @ b if not rest else jax.nn.gelu(a @ b) @ rest[0]


def chain(jaxpr: Any) -> int:
    """The most permutes that wait for one another, in a program without loops."""
    depth: dict[Any, int] = {}

    def of(variables: Any) -> int:
        return max((depth.get(v, 0) for v in variables if not hasattr(v, "val")), default=0)

    for eqn in jaxpr.eqns:
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        own = 1 if eqn.primitive.name == "ppermute" else 0
        for p in inner:
            own = max(own, chain(getattr(p, "jaxpr", p)))
        for v in eqn.outvars:
            depth[v] = of(eqn.invars) + own
    return max(depth.values(), default=0)


def value_and_gradients(f: Callable[..., jax.Array], arrays: list[Any]) -> Any:
    def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = f(*arrays)
        return 0.5 * (out**2).sum(), out

    run = jax.jit(jax.grad(loss, argnums=tuple(range(len(arrays))), has_aux=True))
    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, run(*arrays))


def error(got: Any, want: Any) -> float:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs)


def run(name: str, shape: tuple[int, int], two_way: bool) -> dict[str, Any]:
    form, specs, out = FORMS[name]
    rng = np.random.default_rng(3)
    sizes = (24 * shape[0], 48, 96, 48)
    arrays = [rng.normal(size=s).astype(np.float32) for s in pairwise(sizes)][: len(specs)]
    devices = jax.devices()[: shape[0] * shape[1]]
    with jax.set_mesh(jax.make_mesh(shape, ("X", "Y"), devices=devices)):
        local = partial(form, axis="Y", two_way=two_way)
        mapped = jax.shard_map(local, in_specs=specs, out_specs=out)
        placed = [jax.device_put(a, s) for a, s in zip(arrays, specs, strict=True)]
        got = value_and_gradients(mapped, placed)
        jaxpr = jax.make_jaxpr(mapped)(*placed).jaxpr
    want = value_and_gradients(plain, arrays)
    return {"error": error(got, want), "steps": chain(jaxpr)}


def refused() -> str:
    a, b = jnp.ones((6, 8)), jnp.ones((8, 4))
    with jax.set_mesh(jax.make_mesh((4,), ("Y",), devices=jax.devices()[:4])):
        local = partial(matmul_reduce_scatter, axis="Y", dim="rows")
        mapped = jax.shard_map(local, in_specs=(P(None, "Y"), P("Y")), out_specs=P("Y"))
        try:
            mapped(jax.reshard(a, P(None, "Y")), jax.reshard(b, P("Y")))
        except ShardingError as wrong:
            return wrong.render()
    return ""


if __name__ == "__main__":
    ways = (False, True)
    cases = [(name, (1, 8), way) for name in FORMS for way in ways]
    cases += [(name, (2, 3), True) for name in FORMS]  # an odd ring has no far block
    cases += [(name, (4, 2), True) for name in ("gather rows", "scatter columns")]
    cases += [(name, (2, 1), True) for name in ("gather contract", "scatter rows")]
    report = [
        {"form": name, "ring": shape[1], "two_way": way} | run(name, shape, way)
        for name, shape, way in cases
    ]
    print(json.dumps({"cases": report, "refused": refused()}))
