"""The training step of a plan, ready to lower. Runs in a child process.

In: the jax mesh of a target and a plan file's text. Out: the jitted step and its abstract
arguments, with weights and matmuls in the dtypes of the plan's recipe.
"""

from typing import Any

import jax
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax.sharding import AxisType, Mesh

from rooflight.plan.file.record import Plan, from_json
from rooflight.plan.training.memory.job import parse_recipe
from rooflight.program.from_plan.setting import schedule_of, setting_of
from rooflight.program.model.forward import Program, check_length
from rooflight.program.train import abstract_batch, abstract_state, make_train_step

_LEARNING_RATE = 1e-3  # any: it decides no collective and no byte


def build(mesh: Mesh, *, plan: str) -> tuple[Any, tuple[Any, ...]]:
    """What `CompileRequest.build` names; `plan` is the text of a plan file."""
    decided = from_json(plan)
    return build_step(mesh, decided, make_program(decided))


def build_here(plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """The same on the devices of this process."""
    axes = plan.placed().axes
    return build_step(jax.make_mesh(tuple(axes.values()), tuple(axes)), plan, make_program(plan))


def make_program(plan: Plan) -> Program:
    """The program of a plan: its constraints, its dtypes, its remat policy."""
    check_length(plan.model, plan.seq)
    setting, recipe = setting_of(plan), parse_recipe(plan.recipe)
    return Program(
        plan.model,
        setting.constraints(),
        weights=setting.weights.name,
        compute=setting.compute.name,
        gradients=(recipe.gradients or recipe.compute).name,
        master=recipe.master.name if recipe.master else None,
        zero=plan.zero,
        remat=plan.remat,
        capacity=1.0,  # the plan prices experts that receive equally many tokens
        schedule=schedule_of(plan),
    )


def build_step(mesh: Mesh, plan: Plan, program: Program) -> tuple[Any, tuple[Any, ...]]:
    """The step of a program with the batch, microbatches and schedule of a plan.

    The mesh stays set: the caller is a process of its own, and lowers after this returns.
    """
    explicit = (AxisType.Explicit,) * len(mesh.axis_names)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=explicit)
    jax.set_mesh(mesh)
    optimizer = optax.adam(_LEARNING_RATE)
    step = make_train_step(program, optimizer, microbatches=plan.microbatches)
    state = abstract_state(program, optimizer, mesh)
    batch = abstract_batch(program, mesh, batch=plan.batch, seq=plan.seq)
    return step, (state, batch)
