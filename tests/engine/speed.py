# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# jax and transformers annotate their own functions only in part.
"""How fast the engine is on this machine, beside a bare decode loop and `transformers`.

Run it: `python tests/engine/speed.py [--batches 1,8,32] [--rounds 3] [--without transformers]`.

A Llama of 50M parameters with random weights in fp32, prompts of 128 tokens, 128 new tokens each,
greedy. Every contender runs once a round, in turn; the table has the best round of each. `load` is
the part of the machine's processors that other processes used meanwhile: above 0.08 a row is noise.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from rooflight.dtypes import DTYPES
from rooflight.engine import Engine, EngineConfig, Job
from rooflight.graph import dim_sizes, model_graph
from rooflight.graph.layout import parse_layout
from rooflight.plan.pins import pins_of
from rooflight.program.cache import init_cache
from rooflight.program.decode_form import serving_weights
from rooflight.program.generate import make_functions
from rooflight.program.hf_import import import_huggingface
from rooflight.program.model import Program
from rooflight.program.paged_blocks import Rows
from rooflight.program.params import Tree, abstract_params
from rooflight.program.sampling import largest
from rooflight.program.shardings import device_mesh
from rooflight.specs import parse_mesh, read_hf_config

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


def program_of(folder: Path) -> tuple[Program, Tree]:
    model = read_hf_config(folder)
    graph, mesh = model_graph(model), parse_mesh("X=1", on="v5e:1x1")
    dims, layout = dim_sizes(graph, batch=32, seq=1), parse_layout("dp=X")
    program = Program(model, pins_of(graph, layout, mesh=mesh, dims=dims, dtype=DTYPES["bf16"]))
    target = abstract_params(program.specs, program.pins, device_mesh(program.pins.axes))
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
            Job(next(numbers), tuple(row), TEXT, salt=os.urandom(8))  # nothing is found cached
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


def by_bare_loop(program: Program, params: Tree, batch: int) -> Contender:
    """Our own generate in a loop that knows everything beforehand and reads once, at the end."""
    table = (PROMPT + TEXT) // BLOCK
    tables = jnp.arange(batch * table, dtype=jnp.int32).reshape(batch, table)
    mesh = device_mesh(program.pins.axes)
    with jax.set_mesh(mesh):
        weights, does = serving_weights(params), make_functions(program)
        pick = jax.jit(largest)
    part = min(batch, 4)  # prompts that are computed at once

    def run(prompts: Prompts) -> Prompts:
        with jax.set_mesh(mesh):
            cache = init_cache(program, num_blocks=batch * table, block_size=BLOCK)
            logits: list[jax.Array] = []
            for at in range(0, batch, part):
                some = slice(at, at + part)
                rows = Rows(jnp.zeros(part, int), jnp.full(part, PROMPT), tables[some])
                found, cache = does.prefill_chunk(weights, cache, jnp.asarray(prompts[some]), rows)
                logits.append(found)
            token = pick(jnp.concatenate(logits))
            text = [token]
            for i in range(TEXT - 1):
                at = jnp.full(batch, PROMPT + i)
                last, cache = does.generate(weights, cache, token, at, tables)
                token = pick(last)
                text.append(token)
            return np.asarray(jnp.stack(text, 1))

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


def busy_ticks() -> int:
    """Of all processors since the start, idle and waiting for a disk left out."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[:8]) - fields[3] - fields[4]


def timed(run: Contender, prompts: Prompts) -> tuple[float, float, Prompts]:
    """Seconds, and the part of the machine that others used."""
    gc.collect()
    ticks, own, begin = busy_ticks(), time.process_time(), time.perf_counter()
    text = run(prompts)
    seconds = time.perf_counter() - begin
    used = (busy_ticks() - ticks) / os.sysconf("SC_CLK_TCK") - (time.process_time() - own)
    return seconds, max(0.0, used) / seconds / (os.cpu_count() or 1), text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    batches = [int(b) for b in options.batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        theirs = model_of(Path(folder))
        program, params = program_of(Path(folder))
    engine = by_engine(program, params, max(batches))
    print(f"{'batch':>5} {'who':>12} {'tok/s':>7} {'seconds':>8} {'load':>5} {'same':>5}")
    for batch in batches:
        contenders = {"engine": engine, "bare loop": by_bare_loop(program, params, batch)}
        if "transformers" not in options.without:
            contenders["transformers"] = by_transformers(theirs)
        compare(batch, contenders, options.rounds)


def compare(batch: int, contenders: dict[str, Contender], rounds: int) -> None:
    prompts = np.random.default_rng(batch).integers(0, CONFIG["vocab_size"], (batch, PROMPT))
    best: dict[str, tuple[float, float, Prompts]] = {}
    for i in range(rounds + 1):  # the first compiles
        for name, run in contenders.items():
            found = timed(run, prompts)
            if i and (name not in best or found[0] < best[name][0]):
                best[name] = found
    for name, (seconds, load, text) in best.items():
        same = float((text == best["engine"][2]).mean())
        rate = batch * TEXT / seconds
        print(
            f"{batch:5} {name:>12} {rate:7.1f} {seconds:8.3f} {load:5.2f} {same:5.2f}", flush=True
        )


if __name__ == "__main__":
    main()
