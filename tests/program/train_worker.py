"""Trains a tiny model under many layouts on fake devices, and compares with one device.

Run as a process of its own: `python train_worker.py MODEL DEVICES WHICH`, of
which the last is everyday, all, whole, staged, or how many schemes stand together in one of a few.
Prints one JSON object: for each layout the largest difference of a gradient, relative to the
tensor's largest element, and the largest difference of a loss in six steps; each also as a line of
stderr when it is there. `whole` are the layouts without pipeline stages, `staged` those with.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=16"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compile faster
)

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]
from program_cases import (
    BATCH,
    MICROBATCHES,
    MODELS,
    SEQ,
    STAGES,
    VOCAB,
    Case,
    alone,
    cases,
    covering,
    everyday,
)
from router_margin import watch
from stage_weights import from_stages, to_stages

from rooflight.models.layout.schedules import make_schedule
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree, abstract_params, init_params
from rooflight.program.shardings import device_mesh
from rooflight.program.train import Batch, batch_spec, begin_state, make_train_step

STEPS = 6
# No router score on the curve of one device is nearer to a tie than this; where one was nearer than
# 2e-5 rounding moved it across. Seeds are chosen by that alone: of the first few hundred, those
# whose curve on one device keeps furthest from a tie.
MARGIN = 5e-5
SEEDS = {"dense": 0, "one_kv_head": 0, "pattern": 0, "moe": 51, "latent": 41}


@dataclass
class Run:
    losses: list[float]
    gradients: list[Any]  # of the first step, as numpy arrays
    names: list[str]


def batch_of(step: int, program: Program) -> Batch:
    rng = np.random.default_rng(step)
    tokens, targets = (rng.integers(0, VOCAB, (BATCH, SEQ), np.int32) for _ in range(2))
    weights = rng.integers(0, 2, (BATCH, SEQ)).astype(np.float32)
    return Batch(*(jax.device_put(x, batch_spec(program)) for x in (tokens, targets, weights)))


def start_of(model: str) -> Tree:
    """Weights as numpy arrays, with vectors that are neither zeros nor ones."""
    constraints = alone(model).constraints
    with jax.set_mesh(device_mesh(constraints.axes)):
        key = jax.random.key(SEEDS[model])
        made = init_params(Program(MODELS[model], constraints).specs, constraints, key)
        made = jax.tree.map(np.asarray, made)
    rng = np.random.default_rng(SEEDS[model])

    def stirred(x: Any) -> Any:
        return x + 0.1 * rng.standard_normal(x.shape, np.float32) if np.std(x) == 0 else x

    return jax.tree.map(stirred, made)


def put(x: Any, like: Any) -> jax.Array:
    return jax.device_put(x, like.sharding)


def train(case: Case, start: Tree, microbatches: int) -> Run:
    """Six steps; with momentum, the optimizer's trace after the first is the gradient itself."""
    model = MODELS[case.model]
    table = make_schedule("1f1b", stages=STAGES, microbatches=microbatches)
    schedule = table if case.layout.stages else None
    program = Program(model, case.constraints, remat="dots", zero=1, schedule=schedule)
    optimizer = optax.sgd(0.05, momentum=0.9)
    mesh = device_mesh(program.constraints.axes)
    if program.staging:
        layers = to_stages(model, program.staging, start.layers, np.stack)
        start = start._replace(layers=layers)
    with jax.set_mesh(mesh):
        like = abstract_params(program.specs, program.constraints, mesh)
        params = jax.tree.map(put, start, like)
        state = begin_state(program, optimizer, params)
        step = make_train_step(program, optimizer, microbatches=microbatches)
        losses, found = list[float](), list[Any]()
        for i in range(STEPS):
            state, loss = step(state, batch_of(i, program))
            losses.append(float(loss))
            if i == 0:
                trace = jax.tree.map(np.asarray, state.optimizer[0].trace)  # not yet used up
                if program.staging:
                    layers = from_stages(model, program.staging, trace.layers, np.stack)
                    trace = trace._replace(layers=layers)
                named = jax.tree_util.tree_leaves_with_path(trace)
                found = [(jax.tree_util.keystr(path), x) for path, x in named]
    return Run(losses, [x for _, x in found], [name for name, _ in found])


def compare(run: Run, plain: Run) -> dict[str, Any]:
    worst, name = max(
        (float(np.abs(a - b).max() / (np.abs(b).max() or 1.0)), name)
        for a, b, name in zip(run.gradients, plain.gradients, plain.names, strict=True)
    )
    losses = zip(run.losses, plain.losses, strict=True)
    return {"gradient": worst, "tensor": name, "loss": max(abs(a - b) for a, b in losses)}


def chosen(model: str, devices: int, which: str) -> list[Case]:
    if which == "everyday":
        return everyday(model)
    every = list(cases(model, devices))
    if which.isdigit():
        return covering(every, int(which))
    return [c for c in every if which == "all" or bool(c.layout.stages) == (which == "staged")]


def main(model: str, devices: int, which: str) -> dict[str, Any]:
    start = start_of(model)
    with watch() as margins:
        plain = train(alone(model), start, 1)
    assert min(margins, default=MARGIN) >= MARGIN, min(margins)
    layouts: dict[str, Any] = {}
    for case in chosen(model, devices, which):
        layouts[str(case)] = compare(train(case, start, MICROBATCHES), plain)
        print(json.dumps({str(case): layouts[str(case)]}), file=sys.stderr, flush=True)
    return {"losses": plain.losses, "layouts": layouts}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
