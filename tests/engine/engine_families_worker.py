"""Greedy texts of tiny models of one family after another, by the engine and by `transformers`.

Run as a process of its own: `python engine_families_worker.py FOLDER NAME...`. Prints one JSON
object: for each model what `engine_texts_worker` counts, on two devices, in a pool that is too
small for all prompts at once.
"""

import json
import sys
from pathlib import Path
from typing import Any

import engine_texts_worker as texts  # before jax: it sets up the devices

# isort: split
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.load import Placement, check_folder, load_engine

# Few shapes, compiled as they are met; two rows of a pool in which they are in the way.
SMALL = EngineConfig(
    max_rows=2,
    block_tokens=16,
    num_blocks=5,
    max_step_tokens=10,
    max_model_tokens=64,
    tile_tokens=8,
    max_logprobs=3,
)
PLACEMENT = Placement("v5e:1x2", "tp=2")


def compare(name: str, folder: Path) -> dict[str, Any]:
    wanted = texts.told_by_them(folder, name, {})
    check_folder(folder, SMALL, PLACEMENT)  # what `serve --dry-run` asks
    return texts.compare(load_engine(folder, SMALL, PLACEMENT), texts.jobs_of(0), wanted)


if __name__ == "__main__":
    root, *names = sys.argv[1:]
    print(json.dumps({name: compare(name, Path(root) / name) for name in names}))
