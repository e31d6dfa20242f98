"""Ring attention and gathered keys on fake devices against plain attention of the whole sequence.

Run as a process of its own: `python ring_worker.py`. Prints one JSON object: the error of each
case in values and gradients, the collectives of each, and the tiles that each device computes. With
arguments, `ring` or `gathered`: the errors and collectives of these forms through the kernel.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import attention_worker as plain  # before jax: it asks for the fake devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from rooflight.errors import ShardingError
from rooflight.models.graph.ops import Mask
from rooflight.program.attention.gathered import gathered_attend
from rooflight.program.attention.ring import ring_attend
from rooflight.program.attention.ring_order import Order, ring_positions, unzigzag, zigzag
from rooflight.program.attention.tile import How, visible

LENGTH, RING = 16, 4
SPECS = {"q": P("d", "r"), "k": P("d", "r"), "v": P("d", "r"), "sinks": P()}


def sharded(
    attend: Callable[..., jax.Array], names: tuple[str, ...]
) -> Callable[[plain.Arrays], jax.Array]:
    """The function of whole arrays that maps `attend` over batch and positions."""

    def local(arrays: plain.Arrays) -> jax.Array:
        q, k, v = arrays["q"], arrays["k"], arrays["v"]
        return attend(q, k, v, axis="r", sinks=arrays.get("sinks"))

    specs = {name: SPECS[name] for name in names}
    return jax.shard_map(local, in_specs=(specs,), out_specs=P("d", "r"))


def case(
    attend: Callable[..., jax.Array],
    arrays: plain.Arrays,
    how: How,
    *,
    zigzagged: bool = False,
    ring: int = RING,
) -> tuple[float, Counter[str]]:
    """The error of out and of all gradients; the collectives of the forward pass."""
    said = {"mask": how.mask, "causal": how.causal, "softcap": how.softcap}
    want = plain.run(partial(plain.oracle, **said), arrays)
    run = sharded(partial(attend, how=how), tuple(arrays))

    def move(tree: Any, f: Callable[[jax.Array, int], jax.Array]) -> Any:
        def one(x: jax.Array) -> jax.Array:
            return f(x, ring) if zigzagged and x.ndim > 2 else x

        return jax.tree.map(one, tree)

    devices = jax.devices()[: 2 * ring]
    with jax.set_mesh(jax.make_mesh((2, ring), ("d", "r"), devices=devices)):
        placed = {
            k: jax.device_put(np.asarray(a), SPECS[k]) for k, a in move(arrays, zigzag).items()
        }
        got = plain.run(run, placed)
        jaxpr = str(jax.make_jaxpr(run)(placed))
    ops = Counter({op: jaxpr.count(f" {op}[") for op in ("ppermute", "all_to_all", "all_gather")})
    return plain.error(move(jax.tree.map(jnp.asarray, got), unzigzag), want), ops


def gathered(q: jax.Array, k: jax.Array, v: jax.Array, *, axis: str, **more: Any) -> jax.Array:
    k, v = (jax.lax.all_gather(x, axis, axis=1, tiled=True) for x in (k, v))
    return gathered_attend(q, k, v, axis=axis, **more)


def cases() -> dict[str, tuple[float, Counter[str]]]:
    grouped = plain.draw(2, LENGTH, LENGTH, (4, 2), (8, 4), True)
    few = plain.draw(2, LENGTH, LENGTH, (2, 4), (8, 8), True)
    bare = {k: v for k, v in grouped.items() if k != "sinks"}
    causal = How(Mask(), plain.SCALE)
    capped = replace(causal, softcap=2.0)
    window = How(Mask(6), plain.SCALE, chunk=3)
    both_ways = How(Mask(6), plain.SCALE, causal=False)
    blocks = partial(ring_attend, order="blocks")
    return {
        "zigzag": case(ring_attend, bare, causal, zigzagged=True),
        "zigzag, sinks and softcap": case(ring_attend, grouped, capped, zigzagged=True),
        "blocks and window": case(blocks, grouped, window),
        "gathered": case(gathered, grouped, capped, zigzagged=True),
        "gathered, both ways": case(gathered, few, both_ways, zigzagged=True),
    }


def kernel_case(form: str) -> tuple[float, Counter[str]]:
    """The same through the kernel for TPUs, in its interpreter: two of its tiles in each piece."""
    arrays = plain.draw(2, 1024, 1024, (1, 2), (16, 8), True)
    how = How(Mask(200 if form == "gathered" else None), plain.SCALE, softcap=2.0, block=128)
    attend = {"ring": ring_attend, "gathered": gathered}[form]
    return case(attend, arrays, how, zigzagged=True, ring=2)


def refused(attend: Callable[..., jax.Array], length: int, heads: tuple[int, int]) -> str:
    """What the user reads; a sequence of `length` on four devices."""
    arrays = plain.draw(2, length, length, heads, (8, 8), False)
    run = sharded(partial(attend, how=How(Mask(), plain.SCALE)), tuple(arrays))
    with jax.set_mesh(jax.make_mesh((2, RING), ("d", "r"))):
        placed = {k: jax.device_put(np.asarray(a), SPECS[k]) for k, a in arrays.items()}
        try:
            run(placed)
        except ShardingError as wrong:
            return wrong.render()
    return ""


def tiles(order: Order) -> list[list[int]]:
    """Of each round and device: the pairs of pieces in which some query sees some key."""
    how, size = How(Mask(), 1.0), LENGTH // RING

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
    if forms := sys.argv[1:]:
        print(json.dumps({form: kernel_case(form) for form in forms}))
        sys.exit()
    done = cases()
    report = {
        "errors": {name: error for name, (error, _) in done.items()},
        "ops": {name: ops for name, (_, ops) in done.items()},
        "tiles": {"zigzag": tiles("zigzag"), "blocks": tiles("blocks")},
        "undone": order_is_undone(),
        "refused": {
            "ring": refused(ring_attend, 12, (2, 2)),
        },
    }
    print(json.dumps(report))
