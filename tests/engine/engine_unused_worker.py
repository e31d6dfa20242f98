"""A decode step without penalties, side by side with one that knows of none.

Run as a process of its own: `python engine_unused_worker.py`. A tiny model with a large vocabulary,
so that what is done with logits is most of a step. Prints one JSON object: the seconds of each.
"""

import json
import os
import time
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

os.environ["XLA_FLAGS"] = ""  # optimised, on one device

# isort: split
from dataclasses import replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jax import lax

from rooflight.program.model.params import init_params
from rooflight.program.shardings import device_mesh
from rooflight.serve.engine import step_function
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.device import Device
from rooflight.serve.engine.request import Sampling
from rooflight.serve.engine.step_function import Packed

ROWS, ROUNDS, STEPS = 8, 30, 10
CONFIG = EngineConfig(
    max_rows=ROWS,
    block_tokens=32,
    num_blocks=ROWS * 64,
    max_step_tokens=64,
    max_model_tokens=2048,
)


def masked(logits: Any, state: Any, fields: Any, at: Any) -> Any:
    """As it was: masks alone."""
    del at
    words = state.masks[fields[:, Packed.ROW]]

    def inner() -> Any:
        bits = words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32) & 1
        is_set = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]] == 1
        return jnp.where(is_set[:, None], logits, -jnp.inf)

    return lax.cond(jnp.all(words == jnp.uint32(0xFFFFFFFF)), lambda: logits, inner)


def after(state: Any, row: Any, at: Any, drawn: Any) -> Any:
    del at
    return state._replace(tokens=state.tokens.at[row].set(drawn))


def device() -> Device:
    model = replace(cases.TINY, vocab=65536)
    program = cases.program_of(model)
    with jax.set_mesh(device_mesh(program.constraints.axes)):
        params = init_params(program.specs, program.constraints, jax.random.key(0))
    found = Device(program, params, CONFIG)
    for row in range(ROWS):
        found.open_row(row, Sampling(), 0)
        found.write_table(row, 0, [row])
    steps(found, 1)  # compiled now
    return found


def steps(device: Device, count: int) -> float:
    start = time.perf_counter()
    found = [device.generate(range(ROWS), [4] * ROWS) for _ in range(count)]
    found[-1].read()
    return time.perf_counter() - start


def pair() -> list[float]:
    """The fastest rounds of both, which take turns."""
    with patch.multiple(step_function, _changed=masked, _after=after):
        without = device()
    both = without, device()
    rounds = [[steps(one, STEPS) for one in both] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


if __name__ == "__main__":
    print(json.dumps(pair()))
