"""Reading a trace: where did the time of a step go, and did we know what would be in it?"""

import tempfile
from pathlib import Path

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import lab
from rooflight.measure.trace.overlap import overlaps
from rooflight.measure.trace.read import read_trace
from rooflight.measure.trace.table import step_table

B, D, F, STEPS = 512, 256, 1024, 4
MATMULS = (
    "x[B_X,D] * W_in[D_X,F] -> h[B_X,F]",
    "h[B_X,F] * W_out[F,D_X] -> y[B_X,D]",
)


def layer(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """A feed-forward layer whose weights are split and gathered when needed."""
    with jax.named_scope("in"):
        h = jax.nn.relu(x @ lax.all_gather(w_in, "X", axis=0, tiled=True))
    with jax.named_scope("out"):
        return h @ lax.all_gather(w_out, "X", axis=1, tiled=True)


# %% Predict: two matmuls and two gathers a step; FLOPs follow from the shapes.
lab.question("what is in a step of a feed-forward layer under FSDP?")
prices = lab.best(MATMULS, {"B": B, "D": D, "F": F})
lab.show(["product", "best"], [[t, p.summary] for t, p in zip(MATMULS, prices, strict=True)])
flops = 2 * 2 * B * D * F / lab.DEVICES  # of a device

# %% Run a few steps under the profiler.
jax.set_mesh(jax.make_mesh((8,), ("X",)))
rng = np.random.default_rng(0)
specs = P("X", None), P("X", None), P(None, "X")
shapes = (B, D), (D, F), (F, D)
arrays = [
    jax.device_put(rng.normal(size=shape).astype(np.float32), spec)
    for shape, spec in zip(shapes, specs, strict=True)
]
step = jax.jit(jax.shard_map(layer, out_specs=P("X", None)))
jax.block_until_ready(step(*arrays))
with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                jax.block_until_ready(step(*arrays))
    trace = read_trace(next(Path(folder).rglob("*.xplane.pb")))
    by_class, by_layer = (step_table(trace, by=by) for by in ("class", "layer"))
    flown = {one.kind: one for one in overlaps(trace)}

# %% Compare.
for name, table in (("class", by_class), ("layer", by_layer)):
    print()
    rows = [
        [row.key, lab.span(row.seconds), f"{row.seconds / table.seconds:.1%}", f"{row.count:.3g}"]
        for row in table.rows
    ]
    lab.show([name, "a step", "of it", "times"], rows)
    assert abs(sum(row.seconds for row in table.rows) - table.seconds) < 1e-9, "each instant once"

# %% What it teaches.
assert len(by_class.steps) == STEPS and by_class.num_devices == lab.DEVICES
found = {row.key: row for row in by_class.rows}
assert found["all-gather"].count == 2, "the two gathers that were derived"
assert found["matmul"].count == 2
assert found["matmul"].flops == flops, "FLOPs of the trace are those of the shapes"
assert {"in", "out"} <= {row.key for row in by_layer.rows}, "scopes name the layers"
exposed = lab.span(flown["all-gather"].exposed_s)
print(f"\nall-gathers: {exposed} exposed a step; nothing to hide behind")
