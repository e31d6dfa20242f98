"""Training steps of the small model under several layouts, run on the devices of this host.

Runs in a child (`child.measure`). Steps are those of `program.train`, in f32 with Adam; layouts
take turns, and the state that a step leaves goes into its next.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any  # what jit returns

import jax
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]

from rooflight.hardware.catalog import read_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.microbench.ops import Call, fastest
from rooflight.measure.microbench.small_model import BATCH, DEVICES, DTYPE, MODEL, SEQ
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.model.forward import Program
from rooflight.program.shardings import device_mesh
from rooflight.program.train import Batch, batch_spec, init_state, make_train_step

_LEARNING_RATE = 1e-3


def steps(*, chip: str, layouts: Sequence[tuple[str, str]], rounds: int) -> list[float]:
    """Seconds of a step under each layout on its mesh; `chip` is the text of the host's file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "this-host.toml"
        path.write_text(chip, encoding="utf-8")
        whole = Slice(read_chip(path), (DEVICES,))
    calls = {f"{text} {axes}": _call(_program(text, axes, whole)) for text, axes in layouts}
    seconds = fastest(calls, rounds=rounds)
    return [seconds[f"{text} {axes}"] for text, axes in layouts]


def _program(text: str, axes: str, on: Slice) -> Program:
    """What the planner derives on the measured host, so the steps that are priced are run."""
    graph, mesh = model_graph(MODEL), parse_mesh(axes, on=on)
    dims = dim_sizes(graph, batch=BATCH, seq=SEQ)
    constraints = constraints_of(graph, parse_layout(text), mesh=mesh, dims=dims, dtype=DTYPE)
    return Program(MODEL, constraints, zero=1)


def _call(program: Program) -> Call:
    mesh, optimizer = device_mesh(program.constraints.axes), optax.adam(_LEARNING_RATE)
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, MODEL.vocab, (BATCH, SEQ), np.int32) for _ in range(2))
    rows = (tokens, targets, np.ones((BATCH, SEQ), np.float32))
    with jax.set_mesh(mesh):
        held = [init_state(program, optimizer, jax.random.key(0))]
        batch = Batch(*(jax.device_put(x, batch_spec(program)) for x in rows))
        jax.block_until_ready((held, batch))  # two programs at once wait for each other's devices
        step = make_train_step(program, optimizer)

    def run() -> Any:
        with jax.set_mesh(mesh):
            held[0], loss = step(held[0], batch)
        return held[0], loss

    return run, ()
