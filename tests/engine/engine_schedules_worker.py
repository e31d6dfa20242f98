"""Random schedules: jobs come, go and fail at random in a small pool; nobody's text changes.

Run as a process of its own: `python engine_schedules_worker.py COUNT SEED DRAFTS MODEL`, of
which the last says whether a model makes the drafts. After every step
each block must be owned or free. Prints one JSON object with what was seen.
"""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
import jax
import numpy as np

from rooflight.serve.engine.request import EngineRequest, Mask, Sampling
from rooflight.serve.engine.run import Engine

NUM_TEXTS, MOST_JOBS = 14, 9


class OddOrEven:
    """A grammar: even and odd tokens in turn, until there are `length`."""

    def __init__(self, length: int) -> None:
        self.made, self.length = 0, length

    def mask(self) -> Mask:
        return np.arange(cases.VOCAB) % 2 == self.made % 2

    def accept(self, token: int) -> bool:
        assert token % 2 == self.made % 2
        self.made += 1
        return self.made < self.length


def texts() -> list[EngineRequest]:
    """Jobs of every kind; some begin alike, some stop early, some draw."""
    chosen = random.Random(1)
    start = cases.some_tokens(0, 20)
    jobs: list[EngineRequest] = []
    for i in range(NUM_TEXTS):
        prompt = start[: chosen.randrange(21)] + cases.some_tokens(i + 1, chosen.randrange(1, 20))
        draws = Sampling(chosen.choice([0.7, 1.5]), 0.9, 20, seed=i) if i % 3 == 0 else Sampling()
        stops = frozenset(chosen.sample(range(cases.VOCAB), 6)) if i % 2 else frozenset[int]()
        jobs.append(EngineRequest(i, prompt, chosen.randrange(1, 24), draws, stops, logprobs=i % 4))
    return jobs


def with_grammar(job: EngineRequest, kind: int) -> EngineRequest:
    return replace(job, allowed=OddOrEven(5 + kind)) if kind % 7 == 6 else job


def alone(engine: Engine, jobs: list[EngineRequest]) -> list[tuple[list[int], str]]:
    found: list[tuple[list[int], str]] = []
    for kind, job in enumerate(jobs):
        out = cases.run(engine, [with_grammar(replace(job, salt=b"%d" % job.id), kind)])
        found.append((out.tokens[job.id], out.finish[job.id]))
    return found


def schedule(
    engine: Engine,
    jobs: list[EngineRequest],
    wanted: list[tuple[list[int], str]],
    rng: random.Random,
) -> Counter[str]:
    """One random schedule; every text must be the one alone, or its beginning if it was ended."""
    out, kinds = cases.Collected(), dict[int, int]()
    to_come = rng.randrange(2, MOST_JOBS)
    while to_come or engine.has_work:
        event = rng.random()
        if to_come and (event < 0.3 or not engine.has_work):
            to_come -= 1
            id, kind = len(kinds), rng.randrange(NUM_TEXTS)
            kinds[id] = kind
            priority = rng.choice([0, 0, 1])
            job = replace(jobs[kind], id=id, priority=priority)
            assert engine.add(with_grammar(job, kind)) == "admitted"
        elif 0.3 <= event < 0.32 and engine.ids:
            delta = engine.cancel(rng.choice(engine.ids))
            assert delta is not None
            out.take([delta])
        elif 0.32 <= event < 0.323:
            out.take(engine.recover("lost"))
        else:
            cases.step_checked(engine, out)
    for id, kind in kinds.items():
        text, finish = wanted[kind]
        found = out.tokens[id]
        if out.finish[id] in ("cancelled", "failed"):
            assert found == text[: len(found)], (id, kind)
        else:
            assert (found, out.finish[id]) == (text, finish), (id, kind)
        if jobs[kind].logprobs:
            assert len(out.logprobs[id]) == len(found)
    assert engine.scheduler.room.pool.num_free == engine.config.num_blocks
    return Counter(out.finish.values())


def main(count: int, seed: int, num_draft: int, with_model: int) -> dict[str, Any]:
    """With drafts, texts of a model that repeats itself are compared with those without drafts."""
    scale, jobs = 1 if num_draft else 3, texts()
    sizes = replace(cases.TIGHT, num_draft=num_draft)
    engine = cases.tiny_engine(sizes, scale, with_model=bool(with_model))
    compiled: list[str] = []
    wanted = alone(cases.cold_engine(cases.TIGHT, scale), jobs) if num_draft else None

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    wanted = alone(engine, jobs) if wanted is None else wanted
    ends: Counter[str] = Counter()
    for i in range(count):
        ends += schedule(engine, jobs, wanted, random.Random(seed + i))
    stats = engine.stats
    return {
        "ends": ends,
        "distinct": len({t for text, _ in wanted for t in text}),
        "preemptions": stats.preemptions,
        "hits": stats.prefix_hits,
        "drafted": stats.draft_tokens,
        "accepted": stats.accepted_tokens,
        "compilations": stats.compilations_after_ready + len(compiled),
    }


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
