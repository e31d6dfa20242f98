"""Experts on many devices: send each token to its experts, or every token to everybody?"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import lab
from rooflight import parse_mesh
from rooflight.costs.network import CollectiveKind, collective_time
from rooflight.measure.microbench.ops import fastest

TOKENS, D, F, EXPERTS, CHOSEN = 1024, 64, 256, 8, 1  # of a layer; one expert a device
LOCAL = TOKENS // 8
ROOMY, TIGHT = LOCAL, LOCAL // EXPERTS  # places a device keeps for each expert


def route(x: jax.Array, router: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gate of each token, and which expert it goes to."""
    gates, experts = lax.top_k(jax.nn.softmax(x @ router), CHOSEN)
    return gates[:, 0], experts[:, 0]


def expert(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w_in) @ w_out


# %% Three ways to compute one layer.
def dense(x: jax.Array, router: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Every expert on every token; the oracle."""
    gate, chosen = route(x, router)
    every = jax.vmap(expert, in_axes=(None, 0, 0))(x, w_in, w_out)
    return gate[:, None] * every[chosen, jnp.arange(x.shape[0])]


def exchange(
    x: jax.Array, router: jax.Array, w_in: jax.Array, w_out: jax.Array, *, places: int
) -> tuple[jax.Array, jax.Array]:
    """Rows go to the device of their expert and come back: two all-to-alls."""
    gate, chosen = route(x, router)
    mine = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)
    place = jnp.take_along_axis(jnp.cumsum(mine, 0) - 1, chosen[:, None], 1)[:, 0]
    kept = place < places
    sent = jnp.zeros((EXPERTS, places, D)).at[chosen, place].set(x, mode="drop")
    sent = lax.all_to_all(sent, "X", 0, 1, tiled=True)
    done = lax.all_to_all(expert(sent[0], w_in[0], w_out[0])[None], "X", 1, 0, tiled=True)
    back = done.at[chosen, place].get(mode="fill", fill_value=0)
    return gate[:, None] * back, lax.psum(jnp.sum(~kept), "X")


def broadcast(x: jax.Array, router: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Every token to every device, which computes its own expert; then the sum comes home."""
    everyone = lax.all_gather(x, "X", tiled=True)
    gate, chosen = route(everyone, router)
    mine = (chosen == lax.axis_index("X")) * gate
    done = mine[:, None] * expert(everyone, w_in[0], w_out[0])
    return lax.psum_scatter(done, "X", tiled=True)


# %% Predict: bytes of each, and their times on a ring of eight v5e chips.
lab.question("what does a layer of eight experts move?")
ring = parse_mesh("X=8,Y=2", on="v5e:4x4").group(("X",))
array = 4 * TOKENS * D
slots = 4 * 8 * EXPERTS * ROOMY * D  # V of the exchange: all devices' places for all experts
tight = slots * TIGHT // ROOMY
predicted: dict[str, dict[CollectiveKind, int]] = {
    "exchange, room for the worst": {"all_to_all": 2 * slots, "all_reduce": 4},
    "exchange, room for the average": {"all_to_all": 2 * tight, "all_reduce": 4},
    "broadcast": {"all_gather": array, "reduce_scatter": array},
}
SCALE = 4096  # a layer of a large model has so many times the tokens and the width together
pod = {
    name: sum(collective_time(k, SCALE * v, ring).expected_s for k, v in kinds.items() if v > 4)
    for name, kinds in predicted.items()
}

# %% Run all three.
rng = np.random.default_rng(0)
values = [
    (0.3 * rng.normal(size=shape)).astype(np.float32)
    for shape in ((TOKENS, D), (D, EXPERTS), (EXPERTS, D, F), (EXPERTS, F, D))
]
truth = np.asarray(jax.jit(dense)(*values))
jax.set_mesh(jax.make_mesh((8,), ("X",)))
specs = P("X"), P(), P("X"), P("X")
arrays = tuple(jax.device_put(a, s) for a, s in zip(values, specs, strict=True))
both = (P("X"), P())
runs = {
    "exchange, room for the worst": jax.shard_map(partial(exchange, places=ROOMY), out_specs=both),
    "exchange, room for the average": jax.shard_map(
        partial(exchange, places=TIGHT), out_specs=both
    ),
    "broadcast": jax.shard_map(broadcast, out_specs=P("X")),
}
steps = {name: lab.compiled(run, *arrays) for name, run in runs.items()}
for name, step in steps.items():
    assert lab.moved(step) == predicted[name], f"{name}: {lab.moved(step)}"
seconds = fastest({n: (jax.jit(run), arrays) for n, run in runs.items()}, rounds=5)

# %% Compare.
rows = [
    [
        name,
        lab.size(sum(predicted[name].values())),
        lab.span(pod[name]),
        f"{(steps[name].flops or 0) / 1e6:.4g} MFLOP",
        lab.span(seconds[name]),
    ]
    for name in runs
]
lab.show(
    ["way", "moves (V)", f"{SCALE:,} times that on v5e", "a device computes", "here, measured"],
    rows,
)
roomy, dropped = jax.jit(runs["exchange, room for the worst"])(*arrays)
_, lost = jax.jit(runs["exchange, room for the average"])(*arrays)
print(
    f"\ntokens without a place: {int(dropped)} with room for the worst, {int(lost)} for the average"
)
np.testing.assert_allclose(roomy, truth, atol=1e-4)
np.testing.assert_allclose(jax.jit(runs["broadcast"])(*arrays), truth, atol=1e-4)
assert int(dropped) == 0 and 0 < int(lost) < TOKENS / 2
flops = {name: step.flops or 0 for name, step in steps.items()}
assert flops["broadcast"] > 6 * flops["exchange, room for the average"], "everybody computes all"
assert pod["exchange, room for the average"] < pod["broadcast"] / 3
print("the exchange moves a token once, over a quarter of the ring; but places must be chosen")
