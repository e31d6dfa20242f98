# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Ring and all-to-all attention on fake devices against plain attention of the whole sequence.

Run as a process of its own: `python ring_worker.py`. Prints one JSON object: the error of each
case in values and gradients, the collectives of each, and the tiles that each device computes.
"""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import attention_worker as plain  # before jax: it asks for the fake devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from rooflight.graph import Mask
from rooflight.program.attention_tile import How, visible
from rooflight.program.ring import ring_attend
from rooflight.program.ring_order import Order, ring_positions, unzigzag, zigzag
from rooflight.program.ulysses import ulysses_attend

LENGTH, RING = 16, 4
SPECS = {"q": P("d", "r"), "k": P("d", "r"), "v": P("d", "r"), "sinks": P()}


def sharded(
    attend: Callable[..., jax.Array], names: tuple[str, ...], lengths: bool
) -> Callable[[plain.Arrays, jax.Array | None], jax.Array]:
    """The function of whole arrays that maps `attend` over batch and positions."""

    def local(arrays: plain.Arrays, length: jax.Array | None) -> jax.Array:
        q, k, v = arrays["q"], arrays["k"], arrays["v"]
        return attend(
            q, k, v, axis="r", scale=plain.SCALE, sinks=arrays.get("sinks"), kv_length=length
        )

    specs = {name: SPECS[name] for name in names}
    return jax.shard_map(
        local, in_specs=(specs, P("d") if lengths else None), out_specs=P("d", "r")
    )


def case(
    attend: Callable[..., jax.Array],
    arrays: plain.Arrays,
    lengths: Any,
    zigzagged: bool,
    **words: Any,
) -> tuple[float, Counter[str]]:
    """The error of out and of all gradients; the collectives of the forward pass."""
    want = plain.run(partial(plain.oracle, kv_length=lengths, **words), arrays)
    run = sharded(partial(attend, **words), tuple(arrays), lengths is not None)

    def move(tree: Any, f: Callable[[jax.Array, int], jax.Array]) -> Any:
        def one(x: jax.Array) -> jax.Array:
            return f(x, RING) if zigzagged and x.ndim > 2 else x

        return jax.tree.map(one, tree)

    with jax.set_mesh(jax.make_mesh((2, RING), ("d", "r"))):
        placed = {
            k: jax.device_put(np.asarray(a), SPECS[k]) for k, a in move(arrays, zigzag).items()
        }
        length = None if lengths is None else jax.device_put(np.asarray(lengths), P("d"))
        got = plain.run(lambda x: run(x, length), placed)
        jaxpr = str(jax.make_jaxpr(run)(placed, length))
    ops = Counter({op: jaxpr.count(f" {op}[") for op in ("ppermute", "all_to_all", "all_gather")})
    return plain.error(move(jax.tree.map(jnp.asarray, got), unzigzag), want), ops


def cases() -> dict[str, tuple[float, Counter[str]]]:
    grouped = plain.draw(2, LENGTH, LENGTH, (4, 2), (8, 4), True)
    few = plain.draw(2, LENGTH, LENGTH, (2, 4), (8, 8), True)
    bare = {k: v for k, v in grouped.items() if k != "sinks"}
    lengths = jnp.array([11, 16])
    zig, blocks = (
        partial(ring_attend, order="zigzag"),
        partial(ring_attend, order="blocks", chunk=3),
    )
    causal: dict[str, Any] = {"mask": Mask(), "causal": True}
    return {
        "zigzag": case(zig, bare, None, True, **causal),
        "zigzag, sinks and softcap": case(zig, grouped, lengths, True, softcap=2.0, **causal),
        "blocks and window": case(blocks, grouped, None, False, mask=Mask(6), causal=True),
        "ulysses": case(ulysses_attend, grouped, lengths, False, softcap=2.0, **causal),
        "ulysses, few kv heads": case(ulysses_attend, few, None, False, mask=Mask(6), causal=False),
    }


def tiles(order: Order) -> list[list[int]]:
    """Of each round and device: the pairs of pieces in which some query sees some key."""
    how, size = How(Mask(), True, 1.0, None, LENGTH), LENGTH // RING

    def positions() -> jax.Array:
        return ring_positions(size, axis="r", order=order)

    with jax.set_mesh(jax.make_mesh((RING,), ("r",), devices=jax.devices()[:RING])):
        at = jax.shard_map(positions, in_specs=(), out_specs=P("r"))()
    pieces = np.asarray(at).reshape(RING, 2, 1, -1)
    return [
        [
            sum(
                bool(visible(jnp.asarray(q), jnp.asarray(k), how).any())
                for q in pieces[device]
                for k in pieces[(device - turn) % RING]
            )
            for device in range(RING)
        ]
        for turn in range(RING)
    ]


def order_is_undone() -> bool:
    x = jnp.arange(2 * LENGTH).reshape(2, LENGTH)
    return bool((unzigzag(zigzag(x, RING), RING) == x).all())


if __name__ == "__main__":
    done = cases()
    report = {
        "errors": {name: error for name, (error, _) in done.items()},
        "ops": {name: ops for name, (_, ops) in done.items()},
        "tiles": {"zigzag": tiles("zigzag"), "blocks": tiles("blocks")},
        "undone": order_is_undone(),
    }
    print(json.dumps(report))
