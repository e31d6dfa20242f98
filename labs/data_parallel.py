"""Data parallelism by hand: what must eight devices tell each other to train as one?"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import lab
from rooflight import parse_mesh
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.costs.choose import choose

B, D, F, STEPS, RATE = 512, 64, 256, 5, 0.1
Weights = tuple[jax.Array, jax.Array]


# %% A model of two matrices, and a step for one device.
def loss_of(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    w_in, w_out = weights
    return jnp.mean((jnp.tanh(x @ w_in) @ w_out - y) ** 2)


def step(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, grads), loss


# %% The same step where each device has its own rows: gradients are averaged, nothing else moves.
def step_of_a_device(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
    own = jax.tree.map(lambda w: lax.pcast(w, "X", to="varying"), weights)  # else jax sums for us
    loss, grads = jax.value_and_grad(loss_of)(own, x, y)
    grads = lax.pmean(grads, "X")
    return jax.tree.map(lambda w, g: w - RATE * g, weights, grads), lax.pmean(loss, "X")


# %% Predict: the gradient of W_in sums over rows, and rows are split.
lab.question("which collectives does a data-parallel step need, and how many bytes?")
gradients = "x[B_X,D] * dh[B_X,F] -> dW_in[D,F]", "h[B_X,F] * dy[B_X,D] -> dW_out[F,D]"
prices = lab.best(gradients, {"B": B, "D": D, "F": F})
lab.show(["product", "best"], [[t, p.summary] for t, p in zip(gradients, prices, strict=True)])
predicted = lab.derived(prices)
predicted["all_reduce"] += 4  # the loss, for us to read

# %% Run both, from the same weights on the same rows.
keys = jax.random.split(jax.random.key(0), 4)
weights = (0.1 * jax.random.normal(keys[0], (D, F)), 0.1 * jax.random.normal(keys[1], (F, D)))
x, y = jax.random.normal(keys[2], (B, D)), jax.random.normal(keys[3], (B, D))
alone, losses = weights, list[float]()
for _ in range(STEPS):
    alone, loss = jax.jit(step)(alone, x, y)
    losses.append(float(loss))

jax.set_mesh(jax.make_mesh((8,), ("X",)))
rows = tuple(jax.device_put(np.asarray(a), P("X")) for a in (x, y))
shared = jax.tree.map(lambda w: jax.device_put(np.asarray(w), P()), weights)
many = jax.jit(jax.shard_map(step_of_a_device, out_specs=(P(), P())))
compiled = lab.moved(lab.compiled(many, shared, *rows))
together = list[float]()
for _ in range(STEPS):
    shared, loss = many(shared, *rows)
    together.append(float(loss))

# %% Compare.
print(f"\npredicted {predicted}, compiled {compiled}\n")
pairs = enumerate(zip(losses, together, strict=True))
lab.show(["step", "one device", "eight"], [[str(i), f"{a:.6f}", f"{b:.6f}"] for i, (a, b) in pairs])
assert compiled == predicted, "one all-reduce of every weight, whatever the batch"
np.testing.assert_allclose(losses, together, rtol=1e-5)

# %% How many tokens must a chip have, so that the sum hides behind the backward pass?
lab.question("tokens per chip from which the all-reduce hides, on a whole v5p cube")
cube = parse_mesh("X=64", on="v5p:4x4x4")
tokens, hides = 32, False
while not hides:
    tokens *= 2
    dims = {"B": 64 * tokens, "D": 8192, "F": 32768}
    found = strategies(parse_contraction(gradients[0]))
    price = choose(found, dims=dims, mesh=cube, dtype=lab.BF16).best
    backward = 2 * price.local_s  # dW and dx
    hides = price.network_s <= backward
    print(f"{tokens:6} tokens: sum {lab.span(price.network_s)}, matmuls {lab.span(backward)}")
assert 512 <= tokens <= 2048, (
    "the threshold is C over the bandwidth of three axes, not far above 850"
)
