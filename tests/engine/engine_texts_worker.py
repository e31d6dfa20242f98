"""Greedy texts of a tiny Llama by the engine and by `transformers`, in every situation.

Run as a process of its own: `python engine_texts_worker.py FOLDER PLACE [SITUATION...]`. Prints one
JSON object: for each situation, or those that are named, how many tokens there are and how many
differ, and what the engine counted.
"""

import json
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.load import Placement, load_engine
from rooflight.serve.engine.request import EngineRequest
from rooflight.serve.engine.run import Engine

# What runs where: a model of `hf_models` with other options, and its placement.
PLACES: dict[str, tuple[str, dict[str, Any], Placement]] = {
    "one": ("llama", {}, Placement()),
    "tp2": ("llama", {}, Placement("v5e:1x2", "tp=2")),
    "tp4": ("llama", {}, Placement("v5e:2x2", "tp=4")),
    "positions": (
        "llama",
        {"num_key_value_heads": 2},
        Placement("v5e:2x2", "tp=4,kv=sequence"),
    ),
    "experts": ("mixtral", {}, Placement("v5e:2x2", "tp=4,ep=2")),
}
LENGTHS, TEXT = [24, 17, 9, 1, 12, 5], 20
SHARED = 13  # tokens that prompts begin with; three blocks and one token


def jobs_of(first: int) -> list[EngineRequest]:
    """Prompts of all lengths; every other begins as the longest does."""
    longest = cases.some_tokens(5, max(LENGTHS))
    prompts = [cases.some_tokens(10 + i, n) for i, n in enumerate(LENGTHS)]
    mixed = [
        longest[:SHARED] + prompt if i % 2 else prompt
        for i, prompt in enumerate([longest, *prompts])
    ]
    return [EngineRequest(first + i, prompt, TEXT) for i, prompt in enumerate(mixed)]


def told_by_them(folder: Path, family: str, options: dict[str, Any]) -> list[list[int]]:
    """Saves the model and their texts of it; what another process has saved is read."""
    told = folder / "their_texts.json"
    if not told.exists():
        import hf_models  # pyright: ignore[reportMissingImports]  # ten seconds

        hf_models.quiet()
        theirs = hf_models.save_model(folder, hf_models.MODELS[family] | options)
        told.write_text(json.dumps(their_texts(theirs, jobs_of(0))))
    return json.loads(told.read_text())


def their_texts(model: Any, jobs: list[EngineRequest]) -> list[list[int]]:
    import torch

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


def compare(
    engine: Engine,
    jobs: list[EngineRequest],
    wanted: list[list[int]],
    there: DisaggregatedEngine | None = None,
) -> dict[str, Any]:
    before = engine.stats
    if there is not None and isinstance(engine, DisaggregatedEngine):
        out = disaggregated(engine, there, jobs)
    else:
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
        "drafted": engine.stats.draft_tokens,
        "compilations": engine.stats.compilations_after_ready,
    }


def disaggregated(
    here: DisaggregatedEngine, there: DisaggregatedEngine, jobs: list[EngineRequest]
) -> cases.Collected:
    """Every prompt by one engine, its text by another; each group of layers between two steps."""
    out, moves = cases.Collected(), list[tuple[int, int]]()
    for job in jobs:
        assert here.expect(job) == there.prefill(replace(job, max_new_tokens=1)) == "admitted"

    def begin(id: int) -> None:
        moves.extend((id, group) for group in range(there.num_groups))

    while here.ids:
        cases.step_checked(here, out)
        for delta in there.step():
            out.take(here.offer(delta.id, delta.tokens[0], None, partial(begin, delta.id)))
        if moves:
            id, group = moves.pop(0)
            values = there.read(id, group)
            assert values is not None and here.insert(id, group, values)
    for job in jobs:
        there.free(job.id)
    for each in (here, there):
        assert each.scheduler.pool.num_free == each.config.num_blocks
    return out


def main(folder: Path, name: str, *only: str) -> dict[str, Any]:
    family, options, placement = PLACES[name]
    wanted = told_by_them(folder, family, options)

    def engine(sizes: EngineConfig, make: type[Engine] = Engine) -> Engine:
        made = load_engine(folder, sizes, placement, make=make)
        made.warm()
        return made

    roomy_engine = cache(lambda: engine(cases.ROOMY))

    def plain() -> dict[str, Any]:
        alone = [
            EngineRequest(100 + job.id, job.prompt, TEXT, salt=b"%d" % job.id) for job in jobs_of(0)
        ]
        return compare(roomy_engine(), alone, wanted)

    def hits() -> dict[str, Any]:
        return compare(roomy_engine(), jobs_of(200), wanted)

    def tight() -> dict[str, Any]:
        return compare(engine(cases.TIGHT), jobs_of(300), wanted)

    def drafting() -> dict[str, Any]:
        return compare(engine(replace(cases.TIGHT, num_draft=2)), jobs_of(400), wanted)

    def handed_over() -> dict[str, Any]:
        sizes = replace(cases.TIGHT, moves_blocks=True)
        here, there = (engine(replace(sizes, num_blocks=n), DisaggregatedEngine) for n in (18, 80))
        assert isinstance(there, DisaggregatedEngine)
        return compare(here, jobs_of(500), wanted, there)

    situations = {
        "plain": plain,
        "prefix hits": hits,
        "chunks, preemption and prefix hits": tight,
        "all of these and drafts": drafting,
        "disaggregated": handed_over,
    }
    return {name: run() for name, run in situations.items() if name in only or not only}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:])))
