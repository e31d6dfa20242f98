"""What the workers here share: a tiny model under a layout, and an engine run to its end.

Import it before jax: it sets up the devices.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compile faster
)
sys.path.append(str(Path(__file__).parents[1] / "batching"))
sys.path.append(str(Path(__file__).parents[1] / "program"))

import jax
import numpy as np
from invariants import check  # pyright: ignore[reportMissingImports]

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree, init_params
from rooflight.program.quantized import quantize_weights
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.request import Delta, EngineRequest
from rooflight.serve.engine.run import Engine

VOCAB = 96
TINY = ModelSpec("tiny", "Tiny", 32, VOCAB, (Repeat((Block(Attention(4, 2, 8), Mlp(64)),), 2),))
# Every prompt at once, and a pool for all; then chunks, and a pool in which rows are in the way.
ROOMY = EngineConfig(
    max_rows=4,
    block_tokens=4,
    num_blocks=64,
    max_step_tokens=128,
    max_model_tokens=64,
    tile_tokens=32,
    max_logprobs=3,
)
TIGHT = EngineConfig(
    max_rows=4,
    block_tokens=4,
    num_blocks=18,
    max_step_tokens=8,
    max_model_tokens=64,
    tile_tokens=4,
    max_logprobs=3,
)


def program_of(
    model: ModelSpec, layout: str = "dp=X", axes: str = "X=1", on: str = "v5e:1x1"
) -> Program:
    graph, mesh = model_graph(model), parse_mesh(axes, on=on)
    dims = dim_sizes(graph, batch=4, seq=1)
    constraints = constraints_of(
        graph, parse_layout(layout), mesh=mesh, dims=dims, dtype=DTYPES["bf16"]
    )
    return Program(model, constraints)


def cold_engine(config: EngineConfig, scale: float = 3, dtype: str = "") -> Engine:
    """Random weights; large ones make texts that do not repeat themselves, small ones do.

    With a dtype of few bits, weights and cache are in it.
    """
    program = program_of(TINY)
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = init_params(program.specs, program.constraints, jax.random.key(0))
        params = jax.tree.map(lambda w: scale * w, params)
        if dtype:
            params = quantize_weights(TINY, params, dtype)
            config = replace(config, cache_dtype=dtype)
    return Engine(program, params, config)


def tiny_engine(
    config: EngineConfig, scale: float = 3, *, with_model: bool = False, is_warm: bool = True
) -> Engine:
    """Warm; with a model that guesses, whose weights are nearly its own.

    A cold one compiles what it meets, which for a few texts is less than all.
    """
    engine = cold_engine(config, scale)
    if with_model:
        engine.draft_with(*near_model(scale))
    if is_warm:
        engine.warm()
    return engine


def near_model(scale: float) -> tuple[Program, Tree]:
    program = program_of(TINY)
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        own, other = (
            init_params(program.specs, program.constraints, jax.random.key(k)) for k in (0, 1)
        )
        return program, jax.tree.map(lambda a, b: scale * (a + 0.03 * b), own, other)


def some_tokens(seed: int, count: int) -> tuple[int, ...]:
    found: list[int] = np.random.default_rng(seed).integers(0, VOCAB, count).tolist()
    return tuple(found)


class Collected:
    """What came out of an engine, by job."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.finish: dict[int, str] = {}
        self.cached: dict[int, int] = {}

    def take(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            assert delta.id not in self.finish, "a token after the end"
            self.tokens.setdefault(delta.id, []).extend(delta.tokens)
            self.logprobs.setdefault(delta.id, []).extend(delta.logprobs)
            self.cached[delta.id] = self.cached.get(delta.id, 0) + delta.cached_tokens
            if delta.finish is not None:
                self.finish[delta.id] = delta.finish.value


def step_checked(engine: Engine, out: Collected) -> None:
    """One step, after which every block is owned or free."""
    out.take(engine.step())
    check(engine.scheduler)


def run(engine: Engine, jobs: Sequence[EngineRequest]) -> Collected:
    """All jobs at once, to their ends; nothing of them stays."""
    out = Collected()
    for job in jobs:
        assert engine.add(job) == "admitted", job
    while engine.has_work:
        step_checked(engine, out)
    assert engine.scheduler.num_requests == 0
    assert engine.scheduler.room.pool.num_free == engine.config.num_blocks
    return out
