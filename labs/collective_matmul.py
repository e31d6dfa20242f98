"""Collective matmul: can the gather of an operand hide behind the product that needs it?"""

import sys
import tempfile
from importlib.util import find_spec
from math import prod
from pathlib import Path

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import lab
from ring import COLS, ROWS, around, gathered
from rooflight import parse_mesh
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import compile_all, read_compilation
from rooflight.costs.choose import choose

A, B = (1024, 512), (512, 1024)
TEXT = "A[I_X,J] * B[J,K_X] -> C[I,K_X]"

# %% Predict, on eight chips of v5e: the gather alone, the product alone, both together.
lab.question("gather first, or block by block: what is there to win?")
mesh = parse_mesh("X=8", on="v5e:2x4")
rows: list[list[str]] = []
hides: list[float] = []  # of the gather
for columns in (COLS // 8, COLS):
    dims = {"I": ROWS, "J": ROWS, "K": columns}
    price = choose(strategies(parse_contraction(TEXT)), dims=dims, mesh=mesh, dtype=lab.BF16).best
    apart = price.network_s + price.local_s
    hides.append((apart - price.expected_s) / price.network_s)
    times = (price.network_s, price.local_s, apart, price.expected_s)
    rows.append([f"{columns:,}", *map(lab.span, times), f"{hides[-1]:.0%}"])
lab.show(["columns", "gather", "product", "one after the other", "block by block", "hidden"], rows)
assert hides[0] < 0.7 and hides[1] > 0.99, "it hides where a block's product outlasts its hop"

# %% Run both here. Eight devices on a few cores hide nothing, so no time is compared.
rng = np.random.default_rng(0)
a, b = (rng.normal(size=s).astype(np.float32) for s in (A, B))
jax.set_mesh(jax.make_mesh((8,), ("X",)))
arrays = jax.device_put(a, P("X", None)), jax.device_put(b, P(None, "X"))
plain, ring = (jax.shard_map(f, out_specs=P(None, "X")) for f in (gathered, around))
for run in (plain, ring):
    np.testing.assert_allclose(jax.jit(run)(*arrays), a @ b, rtol=1e-3, atol=1e-3)
at_once, in_blocks = lab.compiled(plain, *arrays), lab.compiled(ring, *arrays)
hops = len(in_blocks.collectives)
print(f"\nplain: {lab.moved(at_once)}; the ring: {lab.moved(in_blocks)} in {hops} hops")
assert lab.moved(at_once) == {"all_gather": 4 * prod(A)}
assert lab.moved(in_blocks) == {"permute": 4 * prod(A) * 7 // 8}, "its own block need not travel"
assert hops == 7

# %% Ask the TPU compiler, if it is installed: does a product run while a block is under way?
lab.question("what does the TPU compiler make of the ring?")
if find_spec("libtpu") is None:
    print("it is not installed here: pip install '.[tpu]'")
    sys.exit()
with tempfile.TemporaryDirectory() as cache:
    here = str(Path(__file__).parent)
    request = CompileRequest("ring:build", mesh, folder=here)
    step = read_compilation(compile_all([request], cache=Path(cache))[0])
matmuls = {work.name for work in step.work if work.flops}
permutes = [c for c in step.collectives if c.kind == "permute"]
hidden = [c for c in permutes if matmuls & set(c.overlapped or ())]
print(f"{len(hidden)} of {len(permutes)} permutes have a product between their start and their end")
assert len(permutes) == 7 and len(hidden) == 7
