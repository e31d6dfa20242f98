# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# jax annotates its own functions only in part.
"""Greedy texts of a tiny Llama by the engine and by `transformers`, in every situation.

Run as a process of its own: `python engine_texts_worker.py FOLDER LAYOUT`. Prints one JSON object:
for each situation how many tokens there are and how many differ, and what the engine counted.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
import hf_models  # pyright: ignore[reportMissingImports]
import torch

from rooflight.engine import Engine, EngineConfig, Job
from rooflight.program.hf_import import import_huggingface
from rooflight.program.params import abstract_params
from rooflight.program.shardings import device_mesh
from rooflight.specs import read_hf_config

# Layout -> mesh, slice, and the axes over which the positions of a row are split.
LAYOUTS = {
    "one": ("dp=X", "X=1", "v5e:1x1", ()),
    "tp2": ("tp=Y", "Y=2", "v5e:1x2", ()),
    "tp4": ("tp=Y", "Y=4", "v5e:2x2", ()),
    "tp2 spread": ("tp=Y", "X=2,Y=2", "v5e:2x2", ("X",)),
}
LENGTHS, TEXT = [24, 17, 9, 1, 12, 5], 20
SHARED = 13  # tokens that prompts begin with; three blocks and one token


def jobs_of(first: int) -> list[Job]:
    """Prompts of all lengths; every other begins as the longest does."""
    longest = cases.some_tokens(5, max(LENGTHS))
    prompts = [cases.some_tokens(10 + i, n) for i, n in enumerate(LENGTHS)]
    mixed = [
        longest[:SHARED] + prompt if i % 2 else prompt
        for i, prompt in enumerate([longest, *prompts])
    ]
    return [Job(first + i, prompt, TEXT) for i, prompt in enumerate(mixed)]


def their_texts(model: Any, jobs: list[Job]) -> list[list[int]]:
    model.generation_config.eos_token_id = None  # a random model has no end
    texts: list[list[int]] = []
    for job in jobs:
        ids = torch.tensor([job.prompt])
        mask = torch.ones_like(ids)
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=TEXT, do_sample=False, pad_token_id=0
        )
        texts.append(out[0, len(job.prompt) :].tolist())
    return texts


def compare(engine: Engine, jobs: list[Job], wanted: list[list[int]]) -> dict[str, Any]:
    before = engine.stats
    out = cases.run(engine, jobs)
    found = [out.tokens[job.id] for job in jobs]
    pairs = [(a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True)]
    return {
        "tokens": len(pairs),
        "different": sum(a != b for a, b in pairs),
        "distinct": len({b for _, b in pairs}),
        "preemptions": engine.stats.preemptions - before.preemptions,
        "hits": engine.stats.prefix_hits - before.prefix_hits,
        "cached": sum(out.cached.values()),
        "drafted": engine.stats.drafted_tokens,
        "compilations": engine.stats.compilations_after_ready,
    }


def main(folder: Path, name: str) -> dict[str, Any]:
    layout, axes, on, spread = LAYOUTS[name]
    theirs = hf_models.save_model(folder, hf_models.MODELS["llama"])
    program = cases.program_of(read_hf_config(folder), layout, axes, on)
    target = abstract_params(program.specs, program.pins, device_mesh(program.pins.axes))
    params = import_huggingface(folder, program.specs, target).params
    wanted = their_texts(theirs, jobs_of(0))

    def engine(sizes: EngineConfig) -> Engine:
        made = Engine(program, params, replace(sizes, spread=spread))
        made.warm()
        return made

    roomy, tight = engine(cases.ROOMY), engine(cases.TIGHT)
    drafting = engine(replace(cases.TIGHT, num_drafts=2))
    alone = [Job(100 + job.id, job.prompt, TEXT, salt=b"%d" % job.id) for job in jobs_of(0)]
    return {
        "plain": compare(roomy, alone, wanted),
        "prefix hits": compare(roomy, jobs_of(200), wanted),
        "chunks, preemption and prefix hits": compare(tight, jobs_of(300), wanted),
        "all of these and drafts": compare(drafting, jobs_of(400), wanted),
    }


if __name__ == "__main__":
    hf_models.quiet()
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
