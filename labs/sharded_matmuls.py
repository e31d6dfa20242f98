"""Sharded matmuls: which collective does each sharding need, and how long does it take here?"""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

import lab
from rooflight import Slice, parse_mesh
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import Tensor, parse_contraction
from rooflight.costs.choose import choose
from rooflight.dtypes import DTYPES
from rooflight.measure.microbench.ops import fastest
from rooflight.program.execute import execute, input_spec

DIMS = {"I": 1024, "J": 1024, "K": 1024}
CASES = {
    "nobody splits the sum": "A[I_X,J] * B[J,K] -> C[I_X,K]",
    "one operand is split along the sum": "A[I,J_X] * B[J,K] -> C[I,K]",
    "both are split along the sum": "A[I,J_X] * B[J_X,K] -> C[I,K]",
    "the same, and the result may stay split": "A[I,J_X] * B[J_X,K] -> C[I_X,K]",
    "rows of A, and B along the sum": "A[I_X,J] * B[J_X,K] -> C[I_X,K]",
}
F32 = DTYPES["f32"]

# %% Measure this machine once; every prediction below follows from these few numbers.
lab.question("five shardings of one matmul on eight devices")
host = lab.this_host()
mesh = parse_mesh("X=8", on=Slice(host.chip, (lab.DEVICES,)))
jax_mesh = jax.make_mesh((8,), ("X",), axis_types=(AxisType.Auto,))
fabric = host.chip.switched
assert fabric is not None
peak, egress = host.chip.flops["f32"] / 1e9, fabric.chip_egress_bytes_per_s / 1e9
print(f"a device: {peak:.3g} GFLOP/s, {egress:.3g} GB/s out, {lab.span(fabric.launch_s)} latency\n")


def array(tensor: Tensor, seed: int) -> jax.Array:
    shape = tuple(DIMS[d] for d in tensor.dims)
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return jax.device_put(values, NamedSharding(jax_mesh, input_spec(tensor)))


# %% Derive, run, and read what was compiled.
rows: list[list[str]] = []
times: dict[str, tuple[float, float]] = {}
for name, text in CASES.items():
    contraction = parse_contraction(text)
    best = choose(strategies(contraction), dims=DIMS, mesh=mesh, dtype=F32).best
    operands = [array(t, seed) for seed, t in enumerate(contraction.operands)]
    run = execute(best.strategy.steps, contraction.operands, jax_mesh)
    found = lab.moved(lab.compiled(run, *operands))
    derived = {s.step.op: s.nbytes for s in best.steps if s.network}
    assert found == derived, f"{text}: derived {derived}, compiled {found}"

    blocks = np.asarray(jax.jit(run)(*operands))  # the block of each device, in order
    whole = np.asarray(operands[0]) @ np.asarray(operands[1])
    split = contraction.result.axes[0] == ("X",)
    expected = whole.reshape(8, -1, DIMS["K"]) if split else np.stack([whole] * 8)
    np.testing.assert_allclose(blocks, expected, rtol=1e-3, atol=1e-2)

    seconds = fastest({name: (jax.jit(run), tuple(operands))}, rounds=4)[name]
    times[name] = (best.upper_s, seconds)
    moves = ", ".join(f"{kind} of {lab.size(v)}" for kind, v in derived.items()) or "nothing"
    rows.append([text, moves, lab.span(best.upper_s), lab.span(seconds)])
lab.show(["contraction", "moves", "predicted", "measured"], rows)

# %% What it teaches.
free = times["nobody splits the sum"]
reduced, scattered = (times[n] for n in list(CASES)[2:4])
assert all(lab.within(m, p, 5) for p, m in times.values()), times
assert reduced[0] > scattered[0] > free[0], "an all-reduce is a reduce-scatter and an all-gather"
print(
    "\nno collective where no device splits the sum; splitting the result halves what a sum costs"
)
