"""Planned beside measured: a decode step of the engine over batch sizes, on this machine as a chip.

The chip is what `rooflight measure --devices 1` finds, and `planned` what the planner makes of it.
A step is measured at a long and at a short context; what the first takes more is attention. The
matmuls of a step are also timed alone, as one function of the same weights. The fastest of some
rounds counts. A quick run takes a tiny model.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.engine import program_for
from benchmarks.machine import OtherLoad, this_host
from benchmarks.record import Row
from rooflight.algebra.notation import parse_contraction
from rooflight.dtypes import DTYPES
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import Precision, ServingLayout
from rooflight.plan.serving.step.model import StepModel
from rooflight.program.cpu.matmuls import few_rows, few_rows_can
from rooflight.program.decode.form import Unrolled, serving_weights
from rooflight.program.model.params import Tree, init_params
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.device import Device
from rooflight.serve.engine.request import Sampling

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
MATMUL = parse_contraction("x[B,D] * W[D,F] -> y[B,F]")


def run(*, quick: bool) -> Iterator[Row | str]:
    model, context, batches = TINY if quick else WHOLE
    precision = Precision(F32, F32, "f32", F32)
    planned = serving_model(model, this_host(), ServingLayout(), precision)
    device, weights = device_of(model, context, max(batches))
    for batch in batches:
        yield _step(planned, device, weights, batch, context)
    yield f"{model.title} in f32 at {context} positions per sequence."


def fastest(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def matmuls(weights: Tree, batch: int) -> Callable[[], object]:
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
            y = few_rows(MATMUL, x, w) if few_rows_can(MATMUL, x, w) else x @ w
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
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = init_params(program.specs, program.constraints, jax.random.key(0))
        weights = serving_weights(params)
    blocks = -(-(context + 1) // BLOCK)
    sizes = EngineConfig(most, BLOCK, most * blocks, most + BLOCK, context + 1)
    device = Device(program, params, sizes)
    for row in range(most):
        device.open_row(row, Sampling(), 0)
        device.write_table(row, 0, range(row * blocks, (row + 1) * blocks))
    return device, weights


def _step(planned: StepModel, device: Device, weights: Tree, batch: int, context: int) -> Row:
    rows = list(range(batch))

    def generate(at: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return device.generate(rows, [at] * batch).read()

    generate(context)
    alone, load = matmuls(weights, batch), OtherLoad()
    long, short, bare = (
        fastest(c) for c in (lambda: generate(context), lambda: generate(SHORT), alone)
    )
    whole = planned.generate([context] * batch)
    more = {
        "planned_s": whole.expected_s,
        "ratio": long / whole.expected_s,
        "matmuls_planned_s": max(whole.matmul_s, whole.weights_s),
        "matmuls_s": bare,
        "attention_planned_s": whole.expected_s - planned.generate([SHORT] * batch).expected_s,
        "attention_s": long - short,
        "rest_s": short - bare,
    }
    return Row(f"batch {batch}", long, "s", rounds=ROUNDS, load=load.part(), more=more)
