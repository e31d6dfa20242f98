# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Planned beside measured: a decode step of the engine over batch sizes, on this machine as a chip.

Run it: `python tests/engine/steps_table.py [--write]`, which writes the table into docs/serve.md.
`--tiny` takes a model and batches for a test, `--json` prints the numbers.

The chip is what `rooflight measure --devices 1` finds, and `planned` what the planner makes of it.
A step is measured at a long and at a short context; what the first takes more is attention. The
products of a step are also timed alone, as one function of the same weights. The fastest of some
rounds counts; `load` is the part of the machine that others used meanwhile.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from speed import busy_ticks, program_for, write_block  # pyright: ignore[reportMissingImports]

from rooflight.algebra import parse_contraction
from rooflight.dtypes import DTYPES
from rooflight.engine import EngineConfig, Sampling
from rooflight.engine.device import Device
from rooflight.measure.child import measure
from rooflight.measure.host_chip import host_of
from rooflight.plan.serving.derive_model import serving_model
from rooflight.plan.serving.layout import ServingLayout
from rooflight.plan.serving.precision import Precision
from rooflight.plan.serving.step_model import StepModel
from rooflight.program.decode_form import Unrolled, serving_weights
from rooflight.program.params import Tree, init_params
from rooflight.program.products_native import few_rows, few_rows_can
from rooflight.program.shardings import device_mesh
from rooflight.report.table import table
from rooflight.specs.catalog import load_chip
from rooflight.specs.chip import Source
from rooflight.specs.model import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.specs.slice import Slice
from rooflight.units import format_seconds, format_si

BLOCK, ROUNDS, SHORT = 32, 15, 8
LLAMA = Block(Attention(4, 2, 128), Mlp(1408))
WHOLE = (
    ModelSpec("llama-50m", "Llama 50M", 512, 8192, (Repeat((LLAMA,), 14),)),
    192,
    (1, 2, 4, 8, 16, 32),
)
TINY = (
    ModelSpec("tiny", "Tiny", 64, 96, (Repeat((Block(Attention(4, 2, 16), Mlp(128)),), 2),)),
    48,
    (1, 4),
)
F32 = DTYPES["f32"]
PRODUCT = parse_contraction("x[B,D] * W[D,F] -> y[B,F]")


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one step, as planned and as measured."""

    batch: int
    planned_s: float
    measured_s: float
    planned_products_s: float
    products_s: float
    planned_attention_s: float
    attention_s: float
    load: float


def this_host() -> Slice:
    rows = measure("microbench:host", devices=1, rounds=5)
    source = Source("measured", "rooflight measure", "", str(date.today()))
    return Slice(host_of(rows, load_chip("this-host"), devices=1, source=source).chip, (1,))


def fastest(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def products(weights: Tree, batch: int) -> Callable[[], object]:
    """Every matrix of the model times as many rows, and nothing else."""
    run: Any = weights.layers[0]  # of a type of its own where it is unrolled
    assert isinstance(run, Unrolled), "this is for a CPU"
    run = tuple(run)
    named = [pair for layer in run for block in layer for pair in block.items()]
    named += [pair for pair in weights.frame.items() if pair[0].startswith("head.")]
    flat = [_matrix(name, w) for name, w in named if w.ndim > 1]

    def every(flat: list[jax.Array], seed: jax.Array) -> jax.Array:
        total = seed
        for w in flat:  # one after another, as in a step
            x = jnp.broadcast_to(total, (batch, w.shape[0]))
            y = few_rows(PRODUCT, x, w) if few_rows_can(PRODUCT, x, w) else x @ w
            total = jnp.tanh(y[:1, :1])
        return total

    with jax.set_mesh(device_mesh({"Y": 1})):
        run_all = jax.jit(every).lower(flat, jnp.ones((1, 1))).compile()
    return lambda: run_all(flat, jnp.ones((1, 1))).block_until_ready()


def _matrix(name: str, w: jax.Array) -> jax.Array:
    """Inputs by outputs; all take the model's D but those that give it."""
    gives = name in ("attention.W_o", "mlp.W_out")
    return w.reshape(-1, w.shape[-1]) if gives else w.reshape(w.shape[0], -1)


def device_of(model: ModelSpec, context: int, most: int) -> tuple[Device, Tree]:
    program = program_for(model)
    with jax.set_mesh(device_mesh(program.pins.axes)):
        params = init_params(program.specs, program.pins, jax.random.key(0))
        weights = serving_weights(params)
    blocks = -(-(context + 1) // BLOCK)
    sizes = EngineConfig(most, BLOCK, most * blocks, most + BLOCK, context + 1)
    device = Device(program, params, sizes)
    for row in range(most):
        device.open_row(row, Sampling(), 0)
        device.write_table(row, 0, range(row * blocks, (row + 1) * blocks))
    return device, weights


def steps(on: Slice, model: ModelSpec, context: int, batches: Sequence[int]) -> list[Step]:
    planned = serving_model(model, on, ServingLayout(), Precision(F32, F32, "f32", F32))
    device, weights = device_of(model, context, max(batches))
    return [_step(planned, device, weights, batch, context) for batch in batches]


def _step(planned: StepModel, device: Device, weights: Tree, batch: int, context: int) -> Step:
    rows = list(range(batch))

    def generate(at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return device.generate(rows, [at] * batch).read()

    generate(context)
    alone = products(weights, batch)
    ticks, own, begin = busy_ticks(), time.process_time(), time.perf_counter()
    long, short, bare = (
        fastest(c) for c in (lambda: generate(context), lambda: generate(SHORT), alone)
    )
    used = (busy_ticks() - ticks) / os.sysconf("SC_CLK_TCK") - (time.process_time() - own)
    load = max(0.0, used) / (time.perf_counter() - begin) / (os.cpu_count() or 1)
    whole = planned.generate([context] * batch)
    attention = whole.expected_s - planned.generate([SHORT] * batch).expected_s
    least = max(whole.matmul_s, whole.weights_s)
    return Step(batch, whole.expected_s, long, least, bare, attention, long - short, load)


def page(on: Slice, model: ModelSpec, context: int, found: Sequence[Step]) -> str:
    chip = on.chip
    rows = [
        [
            str(s.batch),
            format_seconds(s.planned_s),
            format_seconds(s.measured_s),
            f"{s.measured_s / s.planned_s:.1f}x",
            f"{format_seconds(s.planned_products_s)} / {format_seconds(s.products_s)}",
            f"{format_seconds(s.planned_attention_s)} / {format_seconds(s.attention_s)}",
            format_seconds(s.measured_s - s.products_s - s.attention_s),
            f"{s.load:.2f}",
        ]
        for s in found
    ]
    header = ("batch", "planned", "measured", "ratio", "products", "attention", "the rest", "load")
    rate = format_si(chip.hbm_bytes_per_s or 0, "B/s")
    return (
        f"{table(header, rows, align='r' * 8)}\n\n"
        f"{model.title} in f32 at {context} positions a row, {date.today()}; this host as a chip:"
        f" {format_si(chip.flops['f32'], 'FLOP/s')}, {rate}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--write", "--tiny", "--json"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    on, what = this_host(), TINY if options.tiny else WHOLE
    found = steps(on, *what)
    if options.json:
        print(json.dumps([asdict(s) for s in found]))
        return
    text = page(on, *what[:2], found)
    print(text)
    if options.write:
        write_block("steps", text)


if __name__ == "__main__":
    main()
