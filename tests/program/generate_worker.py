"""Generates on one device: prompts at once and in chunks, in all bits and quantized.

Run as a process of its own: `python generate_worker.py MODEL...`. Prints one JSON object with what
the test compares: errors of logits, bytes.
"""

import json
import sys

import generate_layout_worker as base  # before jax: it sets up the devices
import jax
import jax.numpy as jnp
import numpy as np

# isort: split
from dataclasses import dataclass
from typing import Any, cast

from rooflight.hardware.mesh import parse_mesh
from rooflight.program.decode.cache import Layers, init_cache
from rooflight.program.decode.sampling import Draws, sample
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.paged.blocks import PagedBatch
from rooflight.program.quantized import quantize_weights

BATCH, PROMPT, SCORED, BLOCK, CHUNK = base.BATCH, base.PROMPT, 4, 4, 4
TABLE = -(-(PROMPT + SCORED) // BLOCK)
LENGTHS = np.array(base.LENGTHS)
WEIGHTS, CACHES = ("int8", "fp8", "int4"), ("int8", "fp8")
ROUNDED = "pattern"  # without routers, whose choices a small error may turn over


@dataclass
class Setting:
    program: Program
    does: base.Steps
    params: Tree

    @property
    def tables(self) -> Any:
        return np.random.default_rng(1).permutation(BATCH * TABLE).reshape(BATCH, TABLE)

    def cache(self, dtype: str | None = None, num_blocks: int = BATCH * TABLE) -> Layers:
        return init_cache(self.program, num_blocks=num_blocks, block_size=BLOCK, dtype=dtype)

    def prompt(self) -> Any:
        tokens = base.tokens_of()[:, :PROMPT]
        return np.where(np.arange(PROMPT) < LENGTHS[:, None], tokens, 0)


def begin(at: Setting, dtype: str | None = None) -> tuple[jax.Array, Layers]:
    return at.does.begin(at.params, at.cache(dtype), at.prompt(), LENGTHS, at.tables)


def chunked(at: Setting) -> float:
    """How far the last logits of prompts in chunks are from those of prompts at once."""
    wanted, _ = begin(at)
    cache, found = at.cache(), np.zeros(wanted.shape, np.float32)
    for start in range(0, PROMPT, CHUNK):
        part = at.prompt()[:, start : start + CHUNK]
        part = np.pad(part, ((0, 0), (0, CHUNK - part.shape[1])))
        lengths = np.clip(LENGTHS - start, 0, CHUNK)
        rows = PagedBatch(*(jnp.asarray(x) for x in (np.full(BATCH, start), lengths, at.tables)))
        last, cache = at.does.prefill_chunk(at.params, cache, jnp.asarray(part), rows)
        found[lengths > 0] = np.asarray(last)[lengths > 0]
    return base.apart(found, np.asarray(wanted))


def alone_or_not(at: Setting, draws: Draws) -> bool:
    """Whether rows draw the same texts when they sit elsewhere in the batch."""
    rotated = cast(Draws, jax.tree.map(lambda x: jnp.roll(x, 3), draws))
    last, _ = begin(at)
    positions = jnp.asarray(LENGTHS)
    draw = jax.jit(sample)
    here = draw(last[:, None], draws, positions[:, None])
    there = draw(jnp.roll(last, 3, 0)[:, None], rotated, jnp.roll(positions, 3)[:, None])
    return bool(np.array_equal(np.roll(np.asarray(here), 3, 0), np.asarray(there)))


def scored(at: Setting, dtype: str | None = None) -> Any:
    """Logits of a few given tokens after the prompts, which read keys of both kinds."""
    _, cache = begin(at, dtype)
    tokens = base.tokens_of()[:, PROMPT : PROMPT + SCORED]
    found: list[Any] = []
    for i in range(tokens.shape[1]):
        step = (jnp.asarray(x) for x in (tokens[:, i], LENGTHS + i, at.tables))
        last, cache = at.does.generate(at.params, cache, *step)
        found.append(np.asarray(last))
    return np.stack(found, 1)


def rounding(at: Setting, model: str) -> dict[str, Any]:
    """Errors of logits by formats of weights and of the cache, in standard deviations of logits."""
    wanted = scored(at)

    def error(found: Any) -> float:
        return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())

    errors: dict[str, Any] = {}
    for dtype in WEIGHTS:
        few = quantize_weights(base.EVERY[model], at.params, dtype)
        errors[f"{dtype} weights"] = error(scored(Setting(at.program, at.does, few)))
    for dtype in CACHES:
        errors[f"{dtype} cache"] = error(scored(at, dtype))
    ratio = {d: cache_bytes(at.cache(d)) / cache_bytes(at.cache()) for d in CACHES}
    return {"errors": errors, "bytes": ratio}


def cache_bytes(cache: Layers) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(cache))


def temporary_bytes(at: Setting, num_blocks: int) -> tuple[int, int]:
    """Of a generate step: beside its arguments, and of the cache itself."""
    cache = at.cache(num_blocks=num_blocks)
    ids = jnp.zeros(BATCH, jnp.int32)
    step = at.does.generate.lower(at.params, cache, ids, ids, jnp.asarray(at.tables))
    memory = step.compile().memory_analysis()
    return memory.temp_size_in_bytes, cache_bytes(cache)


def everything(model: str) -> dict[str, Any]:
    program = base.program_of(base.EVERY[model], "dp=X", parse_mesh("X=1", on="v5e:1x1"))
    with jax.set_mesh(base.device_mesh(program.constraints.axes)):
        params = jax.tree.map(jnp.asarray, base.start_of(base.EVERY[model]))
        at = Setting(program, base.steps_of(program), params)
        rng = np.random.default_rng(9)
        draws = Draws(
            jnp.asarray([0.0, 1, 1.5, 0.7, 1, 2, 1, 1], jnp.float32),
            jnp.asarray([0, 0, 5, 40, 0, 3, 0, 1], jnp.int32),
            jnp.asarray([1, 1, 1, 0.9, 0.5, 0.8, 0.99, 1], jnp.float32),
            jnp.asarray(rng.integers(0, 1 << 30, BATCH), jnp.int32),
        )
        return {
            "chunked": chunked(at),
            "same_elsewhere": alone_or_not(at, draws),
            "rounding": rounding(at, model) if model == ROUNDED else None,
            "bytes": [temporary_bytes(at, n) for n in (BATCH * TABLE, 64 * BATCH * TABLE)],
        }


if __name__ == "__main__":
    print(json.dumps({model: everything(model) for model in sys.argv[1:]}))
