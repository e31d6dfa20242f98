"""Arithmetic intensity: how many rows must share a matrix so that memory is no longer the limit?"""

from dataclasses import replace

import jax
import jax.numpy as jnp

import lab
from rooflight.costs.roofline import critical_batch, matmul_time, ridge_point
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.measure.microbench.ops import fastest

N = 4096  # a matrix of 64 MB, more than a cache holds
ROWS = (1, 2, 8, 32, 128, 512)
F32, BF16 = DTYPES["f32"], DTYPES["bf16"]

# %% Predict. Two numbers make a roof: the fastest product, and the rate at which memory is read.
lab.question("x[m,n] * W[n,n]: what does a row cost, alone and in company?")
weights = jnp.ones((N, N), jnp.float32)
product = jax.jit(lambda x, w: x @ w)
inputs = {m: jnp.ones((m, N), jnp.float32) for m in ROWS}
seconds = fastest({str(m): (product, (x, weights)) for m, x in inputs.items()}, rounds=3)
measured = {m: seconds[str(m)] for m in ROWS}

nbytes = {m: 4 * (2 * m * N + N * N) for m in ROWS}
flops = {m: 2 * m * N * N for m in ROWS}
chip = replace(
    load_chip("this-host"),
    flops={"f32": flops[512] / measured[512]},
    hbm_bytes_per_s=nbytes[1] / measured[1],
)
predicted = {m: matmul_time(chip, m=m, k=N, n=N, lhs=F32, rhs=F32, out=F32).lower_s for m in ROWS}

# %% Compare. The ends were used to fit the roof, so only the rows between them are evidence.
lab.show(
    ["rows", "FLOP/B", "predicted", "measured", "of the peak", "a row"],
    [
        [
            str(m),
            f"{flops[m] / nbytes[m]:.3g}",
            lab.span(predicted[m]),
            lab.span(measured[m]),
            f"{flops[m] / measured[m] / chip.flops['f32']:.0%}",
            lab.span(measured[m] / m),
        ]
        for m in ROWS
    ],
)
ridge = ridge_point(chip, "f32")
print(f"\nthis machine bends at {ridge:.3g} FLOP/B")
for name in ("v5e", "v5p", "h100"):
    other = load_chip(name)
    tokens = critical_batch(other, weight=BF16, activation=BF16, compute="bf16")
    print(f"{name} bends at {ridge_point(other, 'bf16'):.0f} FLOP/B: {tokens:.0f} tokens")

# %% What it teaches.
assert flops[1] / measured[1] < chip.flops["f32"] / 4, "one row alone does not reach the peak"
assert measured[8] < 6 * measured[1], "the matrix is read once for eight rows"
assert measured[512] / 512 < measured[1] / 6, "in company a row costs a fraction"
assert 1 < ridge < 512
assert all(lab.within(measured[m], predicted[m], 6) for m in (2, 8, 32, 128))
print("\nalone, a row pays for the whole matrix; past the ridge it pays for its own FLOPs")
