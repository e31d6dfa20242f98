"""Serving: what does a batch buy, and can the number of steps be known beforehand?"""

import time
from dataclasses import replace
from statistics import median

import jax
import numpy as np

import lab
from rooflight import parse_mesh
from rooflight.batching.request import Request
from rooflight.batching.scheduler import Scheduler
from rooflight.dtypes import DTYPES
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.training.derive.constraints import constraints_of
from rooflight.program.model.forward import Program
from rooflight.program.model.params import init_params
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.request import EngineRequest
from rooflight.serve.engine.run import Engine

LAYER = Block(Attention(8, 4, 128), Mlp(4096))  # two of them: weights that no cache holds
MODEL = ModelSpec("small", "Small", 1024, 512, (Repeat((LAYER,), 2),))
JOBS, TEXT = 8, 16
BASE = EngineConfig(
    max_rows=1,
    block_tokens=48,
    num_blocks=16,
    max_step_tokens=64,
    max_model_tokens=48,
    tile_tokens=32,
    max_logprobs=1,
)
rng = np.random.default_rng(0)
PROMPTS = [tuple(map(int, rng.integers(0, 512, n))) for n in rng.integers(4, 30, JOBS)]


# %% Predict: the engine's own scheduler, with nothing behind it.
def count_steps(config: EngineConfig) -> int:
    """Steps until the last text has ended; no device and no clock."""
    scheduler = Scheduler(config.limits)
    for id, prompt in enumerate(PROMPTS):
        scheduler.add(Request(id, len(prompt), TEXT))
    steps = 0
    while scheduler.num_requests:
        scheduler.schedule()
        scheduler.commit()
        steps += 1
    return steps


# %% Run: the same scheduler, and a model behind it.
def serve(config: EngineConfig) -> tuple[int, float, list[list[int]]]:
    """Steps, the seconds of one that only decodes, and the tokens of every job."""
    graph = model_graph(MODEL)
    mesh, dims = parse_mesh("X=1", on="v5e:1x1"), dim_sizes(graph, batch=config.max_rows, seq=1)
    constraints = constraints_of(
        graph, parse_layout("dp=X"), mesh=mesh, dims=dims, dtype=DTYPES["bf16"]
    )
    program = Program(MODEL, constraints)
    with jax.set_mesh(device_mesh(constraints.axes)):
        params = init_params(program.specs, constraints, jax.random.key(0))
    engine = Engine(program, params, config)
    engine.warm()
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for id, prompt in enumerate(PROMPTS):
        engine.add(EngineRequest(id, prompt, TEXT))
    seconds: list[float] = []
    while engine.has_work:
        begin = time.perf_counter()
        for delta in engine.step():
            texts[delta.id].extend(delta.tokens)
        seconds.append(time.perf_counter() - begin)
    return len(seconds) - 1, median(seconds), texts  # the last call only reads


# %% Compare one row at a time with eight.
lab.question(f"{JOBS} prompts, {TEXT} tokens each: one after the other, or together?")
found = {rows: serve(replace(BASE, max_rows=rows)) for rows in (1, JOBS)}
predicted = {rows: count_steps(replace(BASE, max_rows=rows)) for rows in found}
lab.show(
    ["rows", "steps, predicted", "steps", "a step", "tokens/s"],
    [
        [str(rows), str(predicted[rows]), str(steps), lab.span(s), f"{rows / s:.0f}"]
        for rows, (steps, s, _) in found.items()
    ],
)

# %% What it teaches.
assert {rows: steps for rows, (steps, _, _) in found.items()} == predicted
assert found[1][2] == found[JOBS][2], "company changes no text"
assert found[JOBS][1] < 0.75 * JOBS * found[1][1], "weights are read once for all rows of a step"
print("\nthe scheduler decides the steps, so a simulation of it counts them exactly")
