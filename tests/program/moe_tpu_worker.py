"""Compiles routed experts for eight TPU v5e with libtpu, no chip attached.

Run as a process of its own, to which the test gives the environment of the compiler: with the word
`ragged` it counts the exchanges of the ragged layer and its gradients, with `overlap` the
all-to-alls that have a product between start and end.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rooflight.models.spec import Mlp, Moe
from rooflight.program.moe.all_to_all import ASYNC, moe_all_to_all
from rooflight.program.moe.layer import Experts
from rooflight.program.moe.ragged import moe_ragged
from rooflight.program.moe.routing import Routed, route

E, K, TOKENS, D, F = 8, 2, 8 * 512, 512, 1024
MOE = Moe(E, K, Mlp(F))
ExpertsOf: Any = Experts  # of specs or shapes
SPLIT = ExpertsOf(P("X"), P("X"), P("X"))


def compiled_text(
    layer: Callable[[jax.Array, Routed, Experts], jax.Array],
    options: Mapping[str, str],
    transform: Callable[[Callable[..., jax.Array]], Callable[..., Any]] = lambda f: f,
) -> str:
    devices = topologies.get_topology_desc("v5e:2x4", platform="tpu").devices
    mesh = jax.make_mesh((8,), ("X",), devices=devices)

    def abstract(spec: P, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    weights = ExpertsOf(*(abstract(P("X"), E, *s) for s in ((D, F), (F, D), (D, F))))
    with jax.set_mesh(mesh):
        mapped = jax.shard_map(
            lambda x, router, experts: layer(x, route(MOE, x @ router), experts),
            in_specs=(P("X"), P(), SPLIT),
            out_specs=P("X"),
        )
        arguments = abstract(P("X"), TOKENS, D), abstract(P(), D, E), weights
        lowered = jax.jit(transform(mapped)).lower(*arguments)
        return str(lowered.compile(compiler_options=dict(options)).as_text())


def gradients(layer: Callable[..., jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda *arrays: layer(*arrays).astype(jnp.float32).sum(), (0, 1, 2))


def ragged() -> dict[str, dict[str, int]]:
    def layer(x: jax.Array, routed: Routed, experts: Experts) -> jax.Array:
        return moe_ragged(x, routed, experts, axis="X", chunks=2)

    def count(text: str) -> dict[str, int]:
        return {
            "ragged-all-to-all": len(re.findall(r" ragged-all-to-all(?:-start)?\(", text)),
            "all-gather of rows": len(re.findall(rf"\[[\d,]*,{D}\]\S* all-gather", text)),
        }

    return {
        "forward": count(compiled_text(layer, {})),
        "gradients": count(compiled_text(layer, {}, gradients)),
    }


def overlap() -> dict[str, int]:
    def layer(x: jax.Array, routed: Routed, experts: Experts) -> jax.Array:
        return moe_all_to_all(x, routed, experts, axis="X", capacity=128, chunks=2)[0]

    text = compiled_text(layer, ASYNC)
    lines = text[text.index("ENTRY") :].splitlines()
    spans: list[tuple[int, int]] = []
    for start, line in enumerate(lines):
        if found := re.match(r"\s*%(\S+) = .* all-to-all-start\(", line):
            end = next(
                i for i, other in enumerate(lines) if f"all-to-all-done(%{found[1]})" in other
            )
            spans.append((start, end))
    product = re.compile(r"experts\.(in|gate|out)/.*dot_general")
    hidden = [span for span in spans if any(map(product.search, lines[slice(*span)]))]
    return {"exchanges": len(spans), "hidden": len(hidden)}


if __name__ == "__main__":
    print(json.dumps({"ragged": ragged, "overlap": overlap}[sys.argv[1]]()))
