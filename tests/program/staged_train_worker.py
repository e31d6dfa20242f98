"""Trains a model of unlike layers under every schedule on fake devices, and compares with one.

Run as a process of its own: `python staged_train_worker.py few|all SCHEDULE,STAGES,VIRTUAL...`.
Prints one JSON object: for each schedule and layout the largest difference of a gradient, relative
to the tensor's largest element, and of the loss.
"""

import json
import math
import os
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]
import train_worker as plain  # asks for the fake devices, before any is there
from program_cases import BATCH, D_MODEL, MODELS, SEQ, VOCAB
from stage_weights import from_stages, to_stages

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.models.layout.slots import Schedule
from rooflight.models.spec import ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.plan.training.time.stages import schedule_table
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree, abstract_params, init_params
from rooflight.program.shardings import device_mesh
from rooflight.program.train import begin_state, make_train_step

MICROBATCHES = 4
SLICES = {1: "v5e:1x1", 2: "v5e:1x2", 4: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4"}
LAYOUTS = (  # with the sizes of the axes beside P
    ("fsdp=X,pp=P", {"X": 1}),
    ("fsdp=X,pp=P", {"X": 2}),
    ("dp=Z,sp=Y,pp=P", {"Z": 2, "Y": 2}),
    ("dp=Z,ep=Z,pp=P", {"Z": 2}),
)
FEW = LAYOUTS[2:]


def model() -> ModelSpec:
    """Two dense layers, then nine with experts: stages are unlike, and no cut is even."""
    (dense,), (routed,) = (MODELS[name].layers[0].blocks for name in ("dense", "moe"))
    layers = (Repeat((dense,), 2), Repeat((routed,), 9))
    return ModelSpec("mixed", "Mixed", D_MODEL, VOCAB, layers)


def pins_for(layout: str, axes: dict[str, int]) -> Constraints:
    graph = model_graph(model())
    dims = dim_sizes(graph, batch=BATCH // MICROBATCHES, seq=SEQ)
    text = ",".join(f"{axis}={size}" for axis, size in axes.items())
    placed = parse_mesh(text, on=SLICES[math.prod(axes.values())])
    return constraints_of(graph, parse_layout(layout), mesh=placed, dims=dims, dtype=DTYPES["bf16"])


def step(program: Program, start: Tree) -> tuple[float, Tree]:
    """Loss and gradients: with momentum, the optimizer's trace after a step is the gradient."""
    optimizer, mesh = optax.sgd(0.05, momentum=0.9), device_mesh(program.constraints.axes)
    with jax.set_mesh(mesh):
        like = abstract_params(program.specs, program.constraints, mesh)
        state = begin_state(program, optimizer, jax.tree.map(plain.put, start, like))
        run = make_train_step(program, optimizer)
        state, loss = run(state, plain.batch_of(0, program))
        return float(loss), jax.tree.map(np.asarray, state.optimizer[0].trace)


def compare(
    schedule: Schedule, constraints: Constraints, alone: tuple[Tree, float, Tree]
) -> dict[str, float]:
    start, loss, gradients = alone
    program = Program(model(), constraints, remat="dots", schedule=schedule)
    assert program.staging
    staged = start._replace(layers=to_stages(model(), program.staging, start.layers, np.stack))
    there, found = step(program, staged)
    found = found._replace(layers=from_stages(model(), program.staging, found.layers, np.stack))
    errors = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), found, gradients)
    return {"gradient": float(max(jax.tree.leaves(errors))), "loss": abs(there - loss)}


def main(layouts: tuple[tuple[str, dict[str, int]], ...], texts: list[str]) -> dict[str, Any]:
    program = Program(model(), pins_for("fsdp=X", {"X": 1}))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        made = init_params(program.specs, program.constraints, jax.random.key(0))
        start = jax.tree.map(np.asarray, made)
    alone = (start, *step(program, start))
    found: dict[str, Any] = {}
    for text in texts:
        name, stages, virtual = text.split(",")
        sizes = {"stages": int(stages), "virtual": int(virtual), "microbatches": MICROBATCHES}
        schedule = schedule_table(name, **sizes)
        for layout, axes in layouts:
            constraints = pins_for(layout, {"P": schedule.stages, **axes})
            case = f"{text} {layout} on {dict(constraints.axes)}"
            found[case] = compare(schedule, constraints, alone)
            print(case, found[case], file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    print(json.dumps(main(FEW if sys.argv[1] == "few" else LAYOUTS, sys.argv[2:])))
