# pyright: reportMissingTypeStubs=false
# jax and transformers annotate their own functions only in part.
"""How fast the engine is on this machine, beside a bare decode loop and `transformers`.

`XLA alone` is the engine without the FFI custom calls of a CPU, as where no compiler makes them.
A Llama of 50M parameters with random weights in fp32, prompts of 128 tokens, 128 new tokens each,
greedy. Every contender runs once per round, in turn. `same` is the part of its tokens that are
the engine's.
"""

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import OtherLoad
from benchmarks.record import Row, ratio_row, row_of
from rooflight.hardware.mesh import parse_mesh
from rooflight.models.huggingface.read import read_hf_config
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.constraints import generate_constraints, generate_setting
from rooflight.plan.serving.step.layout import ServingLayout, parse_precision
from rooflight.program.checkpoint.read import import_huggingface
from rooflight.program.decode.cache import init_cache
from rooflight.program.decode.form import serving_weights
from rooflight.program.decode.sampling import largest
from rooflight.program.decode.step import generate, prefill_chunk
from rooflight.program.model.forward import Program
from rooflight.program.model.params import Tree, abstract_params
from rooflight.program.paged.blocks import PagedBatch
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.request import EngineRequest
from rooflight.serve.engine.run import Engine

PROMPT, TEXT, BLOCK, TILE = 128, 128, 32, 32
CONFIG: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
Prompts = np.ndarray[Any, np.dtype[np.int64]]
Contender = Callable[[Prompts], Prompts]


def model_of(folder: Path) -> Any:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).float().eval()
    model.save_pretrained(folder)
    model.generation_config.eos_token_id = None
    return model


def program_for(model: ModelSpec) -> Program:
    """On one device, in f32."""
    mesh, dtypes = parse_mesh("Y=1", on="v5e:1x1"), parse_precision("f32")
    setting = generate_setting(model, ServingLayout(), mesh, dtypes)
    return Program(model, generate_constraints(setting, rows=32, context=PROMPT + TEXT))


def program_of(folder: Path) -> tuple[Program, Tree]:
    program = program_for(read_hf_config(folder))
    target = abstract_params(
        program.specs, program.constraints, device_mesh(program.constraints.axes)
    )
    return program, import_huggingface(folder, program.specs, target).params


def by_engine(program: Program, params: Tree, most: int) -> Contender:
    num_blocks = most * (PROMPT + TEXT) // BLOCK
    sizes = EngineConfig(
        max_rows=most,
        block_tokens=BLOCK,
        num_blocks=num_blocks + num_blocks // 50 + 1,
        max_step_tokens=512 + most,
        max_model_tokens=PROMPT + TEXT,
        tile_tokens=TILE,
    )
    engine, numbers = Engine(program, params, sizes), iter(range(1 << 30))
    engine.warm()

    def run(prompts: Prompts) -> Prompts:
        jobs = [
            EngineRequest(
                next(numbers), tuple(row), TEXT, salt=os.urandom(8)
            )  # nothing is found cached
            for row in prompts.tolist()
        ]
        texts: dict[int, list[int]] = {job.id: [] for job in jobs}
        for job in jobs:
            engine.add(job)
        while engine.has_work:
            for delta in engine.step():
                texts[delta.id] += delta.tokens
        return np.array([texts[job.id] for job in jobs])

    return run


def by_xla_alone(program: Program, params: Tree, most: int) -> Contender:
    """The engine as it is without a C++ compiler; it compiles everything before it runs."""
    with patch("rooflight.program.decode.form.has_native", return_value=False):
        return by_engine(program, params, most)


def by_bare_loop(program: Program, params: Tree, batch: int) -> Contender:
    """Our own generate in a loop that knows everything beforehand and reads once, at the end."""
    table = (PROMPT + TEXT) // BLOCK
    tables = jnp.arange(batch * table, dtype=jnp.int32).reshape(batch, table)
    mesh = device_mesh(program.constraints.axes)
    with jax.set_mesh(mesh):
        weights, pick = serving_weights(params), jax.jit(largest)
        chunk, step = (
            jax.jit(partial(call, program), donate_argnums=1) for call in (prefill_chunk, generate)
        )
    part = min(batch, 4)  # prompts that are computed at once

    def run(prompts: Prompts) -> Prompts:
        with jax.set_mesh(mesh):
            cache = init_cache(program, num_blocks=batch * table, block_size=BLOCK)
            logits: list[jax.Array] = []
            for at in range(0, batch, part):
                some = slice(at, at + part)
                rows = PagedBatch(jnp.zeros(part, int), jnp.full(part, PROMPT), tables[some])
                found, cache = chunk(weights, cache, jnp.asarray(prompts[some]), rows)
                logits.append(found)
            token = pick(jnp.concatenate(logits))
            text = [token]
            for i in range(TEXT - 1):
                at = jnp.full(batch, PROMPT + i)
                last, cache = step(weights, cache, token, at, tables)
                token = pick(last)
                text.append(token)
            return np.stack([np.asarray(one) for one in text], 1)

    return run


def by_transformers(model: Any) -> Contender:
    import torch

    def run(prompts: Prompts) -> Prompts:
        ids = torch.from_numpy(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TEXT,
            do_sample=False,
            pad_token_id=0,
        )
        return out.numpy()[:, PROMPT:]

    return run


def run(*, quick: bool) -> Iterator[Row]:
    batches, rounds = ((1,), 1) if quick else ((1, 8, 32), 5)
    with tempfile.TemporaryDirectory() as folder:
        theirs = model_of(Path(folder))
        program, params = program_of(Path(folder))
    engine, plain = (make(program, params, max(batches)) for make in (by_engine, by_xla_alone))
    for batch in batches:
        contenders: dict[str, Contender] = {
            "engine": engine,
            "bare loop": by_bare_loop(program, params, batch),
            "XLA alone": plain,
            "transformers": by_transformers(theirs),
        }
        yield from compare(batch, contenders, rounds)


def compare(batch: int, contenders: dict[str, Contender], rounds: int) -> Iterator[Row]:
    """Tokens per second of each, and the engine's beside those of the others."""
    prompts = np.random.default_rng(batch).integers(0, CONFIG["vocab_size"], (batch, PROMPT))
    texts = {name: run(prompts) for name, run in contenders.items()}  # this compiles
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    loads: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            gc.collect()
            load, begin = OtherLoad(), time.perf_counter()
            run(prompts)
            rates[name].append(batch * TEXT / (time.perf_counter() - begin))
            loads[name].append(load.part() or 0.0)
    for name, found in rates.items():
        same = {"same": float((texts[name] == texts["engine"]).mean())}
        load = statistics.median(loads[name])
        case = f"batch {batch}: {name}"
        yield row_of(case, found, "tokens/s", better="higher", load=load, more=same)
    for name in list(contenders)[1:]:
        case = f"batch {batch}: engine / {name}"
        yield ratio_row(case, rates["engine"], rates[name], better="higher")
