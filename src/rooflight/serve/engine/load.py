"""An engine from a Hugging Face folder: config.json and safetensors, no pickle, no remote code.

Where it runs and in what dtypes is a `Placement`, as a plan to serve has it: tensor parallel, with
the cache split by kv heads or by positions, and experts over the same chips.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax

from rooflight.algebra.notation import Axes
from rooflight.errors import UsageError
from rooflight.hardware.mesh import place
from rooflight.hardware.slice import parse_slice
from rooflight.models.huggingface.read import read_hf_config
from rooflight.models.layout.rules import Rule
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.constraints import (
    generate_constraints,
    generate_setting,
    spread_axes,
)
from rooflight.plan.serving.step.layout import (
    ServingLayout,
    check_one_engine,
    mesh_axes,
    parse_precision,
    parse_serving_layout,
)
from rooflight.plan.serving.step.terms import StepSpec
from rooflight.program.checkpoint.read import import_huggingface, match_huggingface
from rooflight.program.from_plan.served_step import check_dtypes
from rooflight.program.model.forward import Program, check_length
from rooflight.program.model.params import JAX_DTYPES, Tree, abstract_params
from rooflight.program.quantized import FORMATS, quantize_weights
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.run import Engine

_WIDE = "bf16"  # matmuls of quantized weights, unless told
THREADS = 4  # of XLA for a device made of a CPU, see `_make_devices`


@dataclass(frozen=True, slots=True)
class Placement:
    """How a served model lies on its chips."""

    on: str = "v5e"  # a slice; of one chip it does not matter which
    layout: str = "tp=1"  # in ways
    dtypes: str = "f32"  # WEIGHTS[/KV[/COMPUTE]]
    drafter: str | None = None  # a folder with a draft model, on one device

    def __post_init__(self) -> None:
        check_one_engine(self.split)

    @property
    def split(self) -> ServingLayout:
        return parse_serving_layout(self.layout)


ONE_DEVICE = Placement()


def load_engine(
    folder: str | Path,
    config: EngineConfig,
    placement: Placement = ONE_DEVICE,
    *,
    make: type[Engine] = Engine,
) -> Engine:
    """The model of a folder on the chips of a placement, the first ones that jax sees."""
    _make_devices(placement.split.num_chips)
    program, params, spread = _load(folder, config, placement)
    kept = parse_precision(placement.dtypes).kv.name
    engine = make(program, params, replace(config, cache_dtype=kept, spread=spread))
    if placement.drafter is not None:
        alone = Placement(dtypes=placement.dtypes)
        engine.draft_with(*_load(placement.drafter, config, alone)[:2])
    return engine


def check_folder(folder: str | Path, config: EngineConfig, placement: Placement) -> None:
    """Raises where `load_engine` would, less what depends on the devices that are here."""
    alone = Placement(dtypes=placement.dtypes)
    for each, where in ((folder, placement), (placement.drafter, alone)):
        if each is not None:
            match_huggingface(each, _program(each, config, where)[0].specs)


def _load(
    folder: str | Path, config: EngineConfig, placement: Placement
) -> tuple[Program, Tree, Axes]:
    """Program and weights, and the axes over which the positions of a row are spread."""
    program, setting = _program(folder, config, placement)
    _check_devices(placement.split)
    target = abstract_params(
        program.specs, program.constraints, device_mesh(program.constraints.axes)
    )
    params = import_huggingface(folder, program.specs, target).params
    dtypes = parse_precision(placement.dtypes)
    if dtypes.weights.name in FORMATS:
        params = _quantized(program.model, params, dtypes.weights.name)
    return program, params, spread_axes(setting)


def _program(
    folder: str | Path, config: EngineConfig, placement: Placement
) -> tuple[Program, StepSpec]:
    model, dtypes = read_hf_config(folder), parse_precision(placement.dtypes)
    check_dtypes(dtypes)
    check_length(model, config.max_model_tokens)
    axes = mesh_axes(placement.split, model) or {"Y": 1}
    mesh = place(axes, parse_slice(placement.on))
    setting = generate_setting(model, placement.split, mesh, dtypes)
    _check_rows(placement.split, setting.layout.cache or {})
    constraints = generate_constraints(
        setting, rows=config.max_rows, context=config.max_model_tokens
    )
    compute = dtypes.compute if dtypes.compute in JAX_DTYPES else _WIDE
    stored = dtypes.weights.name if dtypes.weights.name in JAX_DTYPES else compute
    return Program(model, constraints, weights=stored, compute=compute), setting


def _make_devices(count: int) -> None:
    """As many devices of a CPU as a layout takes, unless jax has begun or was told a number.

    And spare ones: XLA has a thread for each, a collective blocks one, and the engine is a step
    ahead; the collectives of two steps at once would take all threads and wait for ever.
    """
    if count > 1 and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", THREADS * count)


def _check_devices(split: ServingLayout) -> None:
    found = len(jax.devices())
    if split.num_chips > found:
        raise UsageError(
            f"{split} takes {split.num_chips} devices; jax finds {found}",
            hint="on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{THREADS * split.num_chips}",
        )


def _check_rows(split: ServingLayout, cache: Rule) -> None:
    if cache.get("B"):
        raise UsageError(
            f"{split} splits the cache by sequences, of which an engine has one pool",
            hint=f"take {replace(split, kv='sequence')} or {replace(split, kv='heads')}",
        )


def _quantized(model: ModelSpec, params: Tree, dtype: str) -> Tree:
    with jax.set_mesh(jax.tree.leaves(params)[0].sharding.mesh):
        return jax.jit(partial(quantize_weights, model, dtype=dtype))(params)
