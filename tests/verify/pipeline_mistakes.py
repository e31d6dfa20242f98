"""A pipelined program with a mistake; the judge must see it."""

from typing import Any

from jax.sharding import Mesh

from rooflight.plan.file.record import from_json
from rooflight.program.from_plan.train import build_step, make_program
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.pipeline import train as train_pipeline


def summed_every_tick(mesh: Mesh, *, plan: str) -> tuple[Any, tuple[Any, ...]]:
    """No sum over data axes is left pending: each tick takes its own."""

    def as_they_are(program: Program, params: Tree, **_: object) -> Tree:
        del program
        return params

    train_pipeline.with_pending_gradients = as_they_are
    decided = from_json(plan)
    return build_step(mesh, decided, make_program(decided))
