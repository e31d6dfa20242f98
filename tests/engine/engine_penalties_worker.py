"""Texts with penalties and biases: what an engine draws, and what its plain chances say it should.

Run as a process of its own: `python engine_penalties_worker.py`. Prints one JSON object: for each
kind of engine, the largest difference of a log probability from the oracle's, and how often another
token was drawn than the oracle's largest.
"""

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
import numpy as np

from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.request import EngineRequest, Sampling, TokenLogprobs
from rooflight.serve.engine.run import Engine

LENGTH = 20
SAMPLINGS = (
    Sampling(presence_penalty=1.5),
    Sampling(frequency_penalty=0.7),
    Sampling(presence_penalty=-0.5, frequency_penalty=1.2, logit_bias=((5, 4.0), (7, -100.0))),
    Sampling(),
    Sampling(logit_bias=tuple((t, 2.0 + t / 96) for t in range(0, 96, 3))),
    Sampling(repetition_penalty=1.8),
    Sampling(repetition_penalty=0.9, presence_penalty=0.4, temperature=0.8, min_p=0.1, seed=4),
)
ADDITIVE = tuple(i for i, s in enumerate(SAMPLINGS) if s.repetition_penalty == 1)


def wide(config: EngineConfig) -> EngineConfig:
    """The log probabilities of all tokens are told."""
    return replace(config, max_logprobs=cases.VOCAB)


def jobs(samplings: tuple[Sampling, ...]) -> list[EngineRequest]:
    prompts = [cases.some_tokens(1, 6) * 2 + cases.some_tokens(i, 9) for i in range(len(samplings))]
    pairs = zip(prompts, samplings, strict=True)
    return [EngineRequest(i, p, LENGTH, s, logprobs=cases.VOCAB) for i, (p, s) in enumerate(pairs)]


def all_of(found: TokenLogprobs) -> Any:
    chances = np.zeros(cases.VOCAB)
    for token, chance in found.top.items():
        chances[token] = chance
    return chances


def wanted(plain: Engine, job: EngineRequest, made: list[int]) -> list[Any]:
    """Log probabilities before each token: those without penalties, less OpenAI's formula."""
    found: list[Any] = []
    for at in range(len(made)):
        before = EngineRequest(0, job.prompt + tuple(made[:at]), 1, logprobs=cases.VOCAB)
        logits = all_of(cases.run(plain, [before]).logprobs[0][0])
        for token, count in Counter(made[:at]).items():
            logits[token] -= count * job.sampling.frequency_penalty + job.sampling.presence_penalty
        for token, bias in job.sampling.logit_bias:
            logits[token] += bias
        found.append(logits - np.log(np.exp(logits).sum()))
    return found


def main() -> dict[str, Any]:
    plain = cases.tiny_engine(wide(cases.ROOMY), 1)
    engines = {
        "roomy": plain,
        "tight": cases.tiny_engine(wide(cases.TIGHT), 1),
        "drafts": cases.tiny_engine(replace(wide(cases.TIGHT), num_draft=2), 1),
    }
    some = jobs(SAMPLINGS)

    @cache  # the engines make the same texts, or their test fails
    def oracle_of(at: int, made: tuple[int, ...]) -> list[Any]:
        return wanted(plain, some[at], [*made])

    report: dict[str, Any] = {}
    for name, engine in engines.items():
        out = cases.run(engine, some)
        report[name] = {"tokens": [out.tokens[j.id] for j in some], "worst": 0.0, "other": 0}
        report[name]["preemptions"] = engine.stats.preemptions
        report[name]["compilations"] = engine.stats.compilations_after_ready
        for job in (some[i] for i in ADDITIVE):
            oracle = oracle_of(job.id, tuple(out.tokens[job.id]))
            for ours, theirs, token in zip(
                out.logprobs[job.id], oracle, out.tokens[job.id], strict=True
            ):
                worst = float(np.abs(all_of(ours) - theirs).max())
                report[name]["worst"] = max(report[name]["worst"], worst)
                report[name]["other"] += int(theirs.max() - theirs[token] > 1e-4)
    bare = cases.run(plain, jobs((Sampling(),) * len(SAMPLINGS)))
    report["bare"] = [bare.tokens[j.id] for j in some]
    return report


if __name__ == "__main__":
    print(json.dumps(main()))
