"""Generates in every way there is on one device: at once and in chunks, with and without drafts.

Run as a process of its own: `python generate_worker.py MODEL...`. Prints one JSON object with what
the test compares: texts, errors of logits, calls, bytes.
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
from rooflight.program.decode.cache import Layers, cache_bytes, init_cache
from rooflight.program.decode.generate import Functions, make_functions
from rooflight.program.decode.sampling import Draws, greedy
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree
from rooflight.program.paged.blocks import PagedBatch
from rooflight.program.quantized import quantize_weights

BATCH, PROMPT, TEXT, BLOCK, CHUNK, DRAFTS = base.BATCH, base.PROMPT, 20, 4, 4, 3
TABLE = -(-(PROMPT + TEXT + DRAFTS + 1) // BLOCK)
LENGTHS = np.array(base.LENGTHS)
WEIGHTS, CACHES = ("int8", "fp8", "int4"), ("int8", "fp8")
ROUNDED = "pattern"  # without routers, whose choices a small error may turn over


@dataclass
class Setting:
    program: Program
    does: Functions
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
    last, kept = at.does.prefill(at.params, jnp.asarray(at.prompt()), jnp.asarray(LENGTHS))
    held = -(-PROMPT // BLOCK)
    return last, at.does.insert(at.cache(dtype), kept, jnp.asarray(at.tables[:, :held]))


def plain(at: Setting, draws: Draws) -> Any:
    """A text [B,TEXT], a token a call."""
    last, cache = begin(at)
    positions, tables = jnp.asarray(LENGTHS), jnp.asarray(at.tables)
    text: list[Any] = []
    for _ in range(TEXT):
        token = at.does.sample(last[:, None], draws, positions[:, None])[:, 0]
        text.append(np.asarray(token))
        last, cache = at.does.generate(at.params, cache, token, positions, tables)
        positions = positions + 1
    return np.stack(text, 1)


def drafted(at: Setting, draws: Draws, guess: Any) -> tuple[Any, int]:
    """The same with drafts: every row goes its own pace; and how many calls it took."""
    last, cache = begin(at)
    first = at.does.sample(last[:, None], draws, jnp.asarray(LENGTHS)[:, None])
    texts = [[int(t)] for t in np.asarray(first)[:, 0]]
    calls = 0
    while min(map(len, texts)) < TEXT:
        calls += 1
        done = np.array([len(t) for t in texts])
        rows = [[t[-1], *guess[b, len(t) : len(t) + DRAFTS]] for b, t in enumerate(texts)]
        room = np.clip(TEXT - done, 0, DRAFTS + 1)  # a row that is done scores nothing
        tokens = np.array([(r + [0] * DRAFTS)[: DRAFTS + 1] for r in rows], np.int32)
        where = PagedBatch(*(jnp.asarray(x) for x in (LENGTHS + done - 1, room, at.tables)))
        found, cache = at.does.verify(at.params, cache, jnp.asarray(tokens), where, draws)
        accepted, chosen = np.asarray(found.accepted), np.asarray(found.tokens)
        for b, text in enumerate(texts):
            if room[b]:
                text.extend(int(t) for t in chosen[b, : accepted[b] + 1])
    return np.array([t[:TEXT] for t in texts]), calls


def speculation(at: Setting, draws: Draws) -> dict[str, Any]:
    """Drafts that are all right, all wrong, and right in part."""
    text = plain(at, draws)
    wrong = (text + 1) % base.VOCAB
    mixed = np.where(np.random.default_rng(2).random(text.shape) < 0.7, text, wrong)
    found: dict[str, Any] = {}
    for name, guess in {"right": text, "wrong": wrong, "mixed": mixed}.items():
        theirs, calls = drafted(at, draws, guess)
        found[name] = {"same": bool(np.array_equal(theirs, text)), "calls": calls}
    return found | {"distinct": len(np.unique(text))}


def chunked(at: Setting) -> float:
    """How far the last logits of prompts in chunks are from those of prompts at once."""
    wanted, _ = at.does.prefill(at.params, jnp.asarray(at.prompt()), jnp.asarray(LENGTHS))
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
    here = at.does.sample(last[:, None], draws, positions[:, None])
    there = at.does.sample(jnp.roll(last, 3, 0)[:, None], rotated, jnp.roll(positions, 3)[:, None])
    return bool(np.array_equal(np.roll(np.asarray(here), 3, 0), np.asarray(there)))


def scored(at: Setting, dtype: str | None = None) -> Any:
    """Logits of a few given tokens after the prompts, which read keys of both kinds."""
    _, cache = begin(at, dtype)
    tokens = base.tokens_of()[:, PROMPT : PROMPT + 4]
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


def temporary_bytes(at: Setting, num_blocks: int) -> tuple[int, int]:
    """Of a generate step: beside its arguments, and of the cache itself."""
    cache = at.cache(num_blocks=num_blocks)
    ids = jnp.zeros(BATCH, jnp.int32)
    generate: Any = at.does.generate
    step = generate.lower(at.params, cache, ids, ids, jnp.asarray(at.tables))
    memory = step.compile().memory_analysis()
    return memory.temp_size_in_bytes, cache_bytes(cache)


def everything(model: str) -> dict[str, Any]:
    program = base.program_of(base.EVERY[model], "dp=X", parse_mesh("X=1", on="v5e:1x1"))
    with jax.set_mesh(base.device_mesh(program.constraints.axes)):
        params = jax.tree.map(jnp.asarray, base.start_of(base.EVERY[model]))
        at = Setting(program, make_functions(program), params)
        rng = np.random.default_rng(9)
        draws = Draws(
            jnp.asarray([0.0, 1, 1.5, 0.7, 1, 2, 1, 1], jnp.float32),
            jnp.asarray([0, 0, 5, 40, 0, 3, 0, 1], jnp.int32),
            jnp.asarray([1, 1, 1, 0.9, 0.5, 0.8, 0.99, 1], jnp.float32),
            jnp.asarray(rng.integers(0, 1 << 30, BATCH), jnp.int32),
        )
        return {
            "chunked": chunked(at),
            "greedy": speculation(at, greedy(BATCH)),
            "sampled": speculation(at, draws),
            "same_elsewhere": alone_or_not(at, draws),
            "rounding": rounding(at, model) if model == ROUNDED else None,
            "bytes": [temporary_bytes(at, n) for n in (BATCH * TABLE, 64 * BATCH * TABLE)],
        }


if __name__ == "__main__":
    print(json.dumps({model: everything(model) for model in sys.argv[1:]}))
