"""Generates with a paged cache under many layouts on fake devices, and compares with one device.

Run as a process of its own: `python generate_layout_worker.py few|all MODEL...`. Prints one JSON
object: for each model and layout how far logits are from those of one device, how the cache is
split; and for each model how far cached logits are from those of the whole sequence at once.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compile faster
)

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from program_cases import MODELS, SLICES, VOCAB, cases

from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.constraints import Constraints
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import ModelSpec
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.decode.cache import Layers, check_rows_only, init_cache
from rooflight.program.decode.step import generate, prefill_chunk
from rooflight.program.model.forward import Program
from rooflight.program.model.loss import logits as whole_logits
from rooflight.program.model.params import Tree, abstract_params, init_params
from rooflight.program.paged.blocks import PagedBatch
from rooflight.program.shardings import device_mesh

BATCH, PROMPT, STEPS, BLOCK = 8, 10, 6, 4
TABLE = -(-(PROMPT + STEPS) // BLOCK)
NUM_BLOCKS = 8 * 8  # more than the tables hold
LENGTHS = [10, 1, 7, 4, 8, 3, 10, 5]
LEARNED = replace(MODELS["dense"], name="learned", num_positions=32)
EVERY = {m.name: m for m in (*MODELS.values(), LEARNED)}
# Of serving: mesh, slice, and axes that are left to spread positions over.
TYPED = {
    "tp=Y": ("Y=4", "v5e:2x2", ()),
    "tp=Y,ws=X": ("X=2,Y=4", SLICES[8], ()),
    "dp=Z,tp=Y,ws=X": ("X=2,Y=2,Z=2", SLICES[8], ("X",)),
    "tp=X": ("X=2,Y=2,Z=2", SLICES[8], ("Y", "Z")),
}
FEW = ("dp=Z,tp=Y", "dp=Z,tp=Y,ws=X")


def program_of(model: ModelSpec, layout: str, mesh: Mesh) -> Program:
    graph = model_graph(model)
    dims = dim_sizes(graph, batch=BATCH, seq=1)
    parsed = parse_layout(layout)
    return Program(model, constraints_of(graph, parsed, mesh=mesh, dims=dims, dtype=DTYPES["bf16"]))


def programs(name: str, which: str) -> dict[str, tuple[Program, tuple[str, ...]]]:
    """Programs by layout, each with the axes over which its cache spreads positions.

    All layouts of the planner that split rows and heads only, and those of serving; or a few.
    """
    like = name if name in MODELS else "dense"
    fit = [c for c in cases(like, 8) if not c.layout.stages and _rows_only(c.layout.text)]
    meshes = {case.layout.text: (case.mesh, ()) for case in fit} | {
        layout: (parse_mesh(axes, on=on), spread) for layout, (axes, on, spread) in TYPED.items()
    }
    chosen = meshes if which == "all" else {layout: meshes[layout] for layout in FEW}
    return {
        layout: (program_of(EVERY[name], layout, mesh), spread)
        for layout, (mesh, spread) in chosen.items()
    }


def _rows_only(layout: str) -> bool:
    try:
        check_rows_only(Constraints(parse_layout(layout), {}, {}))
    except UsageError:
        return False
    return True


def start_of(model: ModelSpec) -> Tree:
    """Weights as numpy arrays, with vectors that are neither zeros nor ones."""
    alone = program_of(model, "dp=X", parse_mesh("X=1", on="v5e:1x1"))
    with jax.set_mesh(device_mesh(alone.constraints.axes)):
        made = init_params(alone.specs, alone.constraints, jax.random.key(0))
        made = jax.tree.map(np.asarray, made)
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: x + 0.1 * rng.standard_normal(x.shape, np.float32), made)


class Steps(NamedTuple):
    """The functions of a program that take a cache, each using it up."""

    prefill_chunk: Any
    generate: Any

    def begin(
        self, params: Tree, cache: Layers, tokens: Any, lengths: Any, tables: Any
    ) -> tuple[jax.Array, Layers]:
        """Whole prompts [B,T] of these lengths: the logits after each, and the cache with them."""
        rows = PagedBatch(*(jnp.asarray(x) for x in (np.zeros_like(lengths), lengths, tables)))
        return self.prefill_chunk(params, cache, jnp.asarray(tokens), rows)


def steps_of(program: Program) -> Steps:
    calls = (prefill_chunk, generate)
    return Steps(*(jax.jit(partial(call, program), donate_argnums=1) for call in calls))


def tables_of(ways: int) -> Any:
    """For every row as many blocks of its own devices, in no order."""
    rng, size = np.random.default_rng(3), NUM_BLOCKS // ways
    free = {w: list(rng.permutation(np.arange(w * size, (w + 1) * size))) for w in range(ways)}
    rows = [[free[b * ways // BATCH].pop() for _ in range(TABLE)] for b in range(BATCH)]
    return np.array(rows, np.int32)


def row_ways(program: Program) -> int:
    rows = (
        program.constraints.layout.inner.get("B")
        or program.constraints.layout.stream.get("B")
        or ()
    )
    return int(np.prod([program.constraints.axes[a] for a in rows]))


def tokens_of() -> Any:
    rng = np.random.default_rng(5)
    return rng.integers(0, VOCAB, (BATCH, PROMPT + STEPS), np.int32)


def run(program: Program, start: Tree, spread: tuple[str, ...] = ()) -> tuple[Any, dict[str, str]]:
    """Logits [B, 1 + STEPS, V] along given tokens, and the types of the first layer's cache."""
    mesh = device_mesh(program.constraints.axes)
    tokens, lengths = tokens_of(), np.array(LENGTHS)
    tables = tables_of(row_ways(program))
    with jax.set_mesh(mesh):
        like = abstract_params(program.specs, program.constraints, mesh)
        params = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), start, like)
        does = steps_of(program)
        cache = init_cache(program, num_blocks=NUM_BLOCKS, block_size=BLOCK, spread=spread)
        prompt = np.where(np.arange(PROMPT) < lengths[:, None], tokens[:, :PROMPT], 0)
        last, cache = does.begin(params, cache, prompt, lengths, tables)
        found = [np.asarray(last)]
        for i in range(STEPS):
            next_tokens = tokens[np.arange(BATCH), lengths + i]
            step = (jnp.asarray(x) for x in (next_tokens, lengths + i, tables))
            last, cache = does.generate(params, cache, *step)
            found.append(np.asarray(last))
        types = {n: str(jax.typeof(x)) for n, x in cache[0][0].items()}
    return np.stack(found, 1), types


def whole(model: ModelSpec, start: Tree) -> Any:
    """The same logits from all tokens at once, with no cache."""
    program = program_of(model, "dp=X", parse_mesh("X=1", on="v5e:1x1"))
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = jax.tree.map(jnp.asarray, start)
        every = np.asarray(jax.jit(partial(whole_logits, program))(params, tokens_of()))
    at = np.array(LENGTHS)[:, None] - 1 + np.arange(1 + STEPS)
    return np.take_along_axis(every, at[..., None], 1)


def apart(one: Any, other: Any) -> float:
    return float(np.abs(one - other).max())


def compare(name: str, which: str) -> dict[str, Any]:
    start, model = start_of(EVERY[name]), EVERY[name]
    plain = whole(model, start)
    alone = program_of(model, "dp=X", parse_mesh("X=1", on="v5e:1x1"))
    layouts: dict[str, Any] = {}
    for layout, (program, spread) in programs(name, which).items():
        found, types = run(program, start, spread)
        layouts[layout] = {"error": apart(found, plain), "cache": types}
    found, _ = run(alone, start)
    return {"size": float(np.abs(plain).max()), "alone": apart(found, plain), "layouts": layouts}


if __name__ == "__main__":
    print(json.dumps({name: compare(name, sys.argv[1]) for name in sys.argv[2:]}))
