"""Compiles a train step for fake devices, and counts the sums over devices in it.

Run as a process of its own: `python accumulation_worker.py MODEL LAYOUT MICROBATCHES...`. Prints
one JSON object: by number of microbatches, runs in a step and bytes of each all-reduce.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import optax  # pyright: ignore[reportMissingTypeStubs]
from program_cases import BATCH, MODELS, SEQ, STAGES, Case, cases
from train_worker import device_mesh, make_schedule, make_train_step  # asks for fake devices

from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import read_step
from rooflight.program.model.forward import Program
from rooflight.program.train import abstract_batch, abstract_state


def sums(case: Case, microbatches: int) -> list[tuple[int | None, int]]:
    table = make_schedule("1f1b", stages=STAGES, microbatches=microbatches)
    schedule = table if case.layout.stages else None
    program = Program(MODELS[case.model], case.constraints, remat="dots", schedule=schedule)
    optimizer, mesh = optax.sgd(0.1), device_mesh(case.constraints.axes)
    with jax.set_mesh(mesh):
        state = abstract_state(program, optimizer, mesh)
        batch = abstract_batch(program, mesh, batch=BATCH, seq=SEQ)
        step = make_train_step(program, optimizer, microbatches=microbatches)
        text = step.lower(state, batch).compile().as_text()
    found = read_step(parse_module(text)).collectives
    return [(c.count, c.nbytes) for c in found if c.kind == "all_reduce"]


if __name__ == "__main__":
    model, layout, *counts = sys.argv[1:]
    chosen = next(c for c in cases(model, 8) if c.layout.text == layout)
    print(json.dumps({count: sums(chosen, int(count)) for count in counts}))
