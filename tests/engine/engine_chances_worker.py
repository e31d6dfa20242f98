"""Texts that are drawn, with the drafts of a model and without: the same chances.

Run as a process of its own: `python engine_chances_worker.py SEEDS`. Two engines draw the same
prompt under many seeds: the same seeds must give the same texts, and other seeds the same
frequencies of what is drawn. Prints one JSON object.
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
from rooflight.serve.engine.request import EngineRequest, Sampling
from rooflight.serve.engine.run import Engine

SEEDS, LENGTH, FEWEST = int(sys.argv[1]), 3, 16


def texts(engine: Engine, first: int) -> list[tuple[int, ...]]:
    prompt = cases.some_tokens(3, 6)
    jobs = [
        EngineRequest(seed, prompt, LENGTH, Sampling(0.8, 0.95, 3, seed=seed))
        for seed in range(first, first + SEEDS)
    ]
    found = cases.run(engine, jobs).tokens
    return [tuple(found[job.id]) for job in jobs]


def chi_square(one: list[tuple[int, ...]], two: list[tuple[int, ...]]) -> tuple[float, int]:
    """Of two samples of equally many texts; those that are rare count as one kind."""
    counts = Counter(one), Counter(two)
    often = {t for t in counts[0] | counts[1] if counts[0][t] + counts[1][t] >= FEWEST}
    pairs = [(counts[0][t], counts[1][t]) for t in often]
    rest = [SEEDS - sum(pair[i] for pair in pairs) for i in range(2)]
    if sum(rest):
        pairs.append((rest[0], rest[1]))
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs)


def main() -> dict[str, Any]:
    plain = cases.tiny_engine(cases.ROOMY, 1, is_warm=False)
    sizes = replace(cases.ROOMY, num_draft=2)
    drafting = cases.tiny_engine(sizes, 1, with_model=True, is_warm=False)
    one, two = texts(plain, 0), texts(drafting, SEEDS)
    same = texts(drafting, 0) == one
    distance, kinds = chi_square(one, two)
    return {
        "same": same,
        "chi_square": distance,
        "kinds": kinds,
        "drafted": drafting.stats.draft_tokens,
        "accepted": drafting.stats.accepted_tokens,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
