"""Prompts of random tokens, as long as an arrival says, with the beginnings that it shares.

In: an `Arrival`, its number and a seed. Out: token ids, the same each time; or words, for servers
that take only text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflight.plan.serving.simulate.arrivals import Arrival

COMMON_VOCAB = 1000  # ids that the vocabulary of nearly every served model has
# Each one token of nearly every vocabulary that was trained on English.
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with")


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
