"""Whom to ask and how: the address of a server, and what it understands."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflight.plan.serving.simulate.arrivals import Arrival

COMMON_VOCAB = 1000  # ids that the vocabulary of nearly every served model has
# Each one token of nearly every vocabulary that was trained on English.
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and for how long at most."""

    url: str  # http://127.0.0.1:8000
    model: str | None = None  # as the server names it; the first that it lists if left out
    key: str | None = None
    vocab: int = COMMON_VOCAB  # ids of prompts are below it
    timeout_s: float = 300.0  # of one request
    time_limit_s: float = 600.0  # of all; what is still open then is given up

    @property
    def completions(self) -> str:
        return f"{self.url}/v1/completions"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to ask: by ids or by text, and past the end-of-sequence token or not."""

    model: str
    takes_ids: bool
    ignores_eos: bool

    def body(self, ids: Sequence[int], output_tokens: int) -> bytes:
        """A streamed, greedy completion."""
        fields: dict[str, object] = {
            "model": self.model,
            "prompt": list(ids) if self.takes_ids else as_text(ids),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(fields | ({"ignore_eos": True} if self.ignores_eos else {})).encode()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Random prompts; ids low in a vocabulary are often special, so its first eighth is left out.

    >>> Prompts(vocab=800, seed=1).ids(0, Arrival(0.0, 3, 1))
    [431, 458, 628]
    """

    vocab: int
    seed: int

    def ids(self, index: int, arrival: Arrival) -> list[int]:
        """The prompt of request number `index`: what it shares, then what is its own."""
        shared = [
            id
            for segment in arrival.segments
            for id in _segment(segment, arrival.segment_tokens, self.vocab)
        ][: arrival.input_tokens]
        own = arrival.input_tokens - len(shared)
        return shared + _draw((self.seed, index, 0), own, self.vocab)


@lru_cache(maxsize=4096)
def _segment(segment: int, tokens: int, vocab: int) -> tuple[int, ...]:
    return tuple(_draw((segment, tokens, 1), tokens, vocab))


def _draw(seed: tuple[int, ...], count: int, vocab: int) -> list[int]:
    return np.random.default_rng(seed).integers(vocab // 8, vocab, count).tolist()


def as_text(ids: Sequence[int]) -> str:
    """About as many tokens of English words; equal ids give equal words."""
    return " ".join(_WORDS[id % len(_WORDS)] for id in ids)
