"""The generate step of a served model, ready to lower. Runs in a child process.

In: the jax mesh of a target and a `ServedStep` as text. Out: the jitted step and its abstract
arguments: weights, a paged cache that holds every row to its end, tokens, positions, tables.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rooflight.plan.serving.step.layout import parse_precision
from rooflight.program.decode.cache import abstract_cache
from rooflight.program.decode.step import generate
from rooflight.program.from_plan.served_step import (
    ServedStep,
    read_step,
    serving_constraints,
    spread_of,
)
from rooflight.program.model.forward import Program
from rooflight.program.model.params import JAX_DTYPES, Tree, abstract_params
from rooflight.program.quantized import quantize_weights


def build(mesh: Mesh, *, plan: str) -> tuple[Any, tuple[Any, ...]]:
    """What `CompileRequest.build` names; `plan` is the text of a served step."""
    step = read_step(plan)
    explicit = (AxisType.Explicit,) * len(mesh.axis_names)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=explicit)
    jax.set_mesh(mesh)
    program = make_program(step)
    kv = parse_precision(step.dtypes).kv.name
    cache = abstract_cache(
        program,
        mesh,
        num_blocks=step.num_blocks,
        block_size=step.block_tokens,
        dtype=kv,
        spread=spread_of(step),
    )
    rows = program.constraints.layout.stream.get("B", ())

    def ids(*shape: int) -> jax.ShapeDtypeStruct:
        by_row = NamedSharding(mesh, PartitionSpec(rows or None))
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_row)

    tables = ids(step.rows), ids(step.rows), ids(step.rows, step.table)
    jitted = jax.jit(partial(generate, program), donate_argnums=1)
    return jitted, (_weights(program, step, mesh), cache, *tables)


def make_program(step: ServedStep) -> Program:
    """The program of a served step; experts receive equally many tokens, as the plan prices."""
    stored = parse_precision(step.dtypes).weights.name
    wide = stored if stored in JAX_DTYPES else "bf16"
    return Program(
        step.model, serving_constraints(step), weights=wide, compute="bf16", capacity=1.0
    )


def _weights(program: Program, step: ServedStep, mesh: Mesh) -> Tree:
    """As they are stored: quantized, the matrices are values beside scales."""
    params = abstract_params(program.specs, program.constraints, mesh)
    stored = parse_precision(step.dtypes).weights.name
    if stored in JAX_DTYPES:
        return params
    few = partial(quantize_weights, step.model, dtype=stored)
    return jax.eval_shape(few, params)
