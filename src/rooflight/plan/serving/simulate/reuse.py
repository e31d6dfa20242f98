"""The hit-rate curve: of prompt tokens, the share that a prefix cache of each size would have.

In: the keys of each prompt's blocks in order of arrival. Out: hits against the capacity of a least
recently used cache, for all capacities at once: a block is found in those that hold at least as
many blocks as were used since it was, itself included: its stack distance (Mattson et al. 1970).
The ends of a prompt are used before its beginning, as the scheduler gives blocks back, so a prefix
outlives what follows it. Here a prompt is used when it comes; on a replica when it gets a row and
when it ends, and what runs is pinned, so under load its own share is a little off the curve.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.batching.request import Key
from rooflight.plan.serving.simulate.arrivals import Ints


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Of one replica, or summed over several alike."""

    block_tokens: int
    prompt_tokens: int
    distances: Ints  # of each block that was ever used before, in order

    def share(self, tokens: float) -> float:
        """Of all prompt tokens, those that a cache of so many tokens has."""
        found = int(np.searchsorted(self.distances, tokens // self.block_tokens, side="right"))
        return found * self.block_tokens / max(1, self.prompt_tokens)

    @property
    def most_tokens(self) -> int:
        """The capacity from which on a larger one has no more."""
        return int(self.distances[-1]) * self.block_tokens if self.distances.size else 0


class ReuseLog:
    """Uses of blocks, one after another."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.prompt_tokens = 0
        self._used: dict[Key, int] = {}  # key -> when last
        self._before = array("q")  # of each use, when it was used before; -1: never
        self._asked = array("q")  # uses that would be found, and how many of the prompt's follow
        self._below = array("q")

    def add(self, keys: Sequence[Key], prompt_tokens: int) -> None:
        """A prompt comes; its last token is computed in any case."""
        self.prompt_tokens += prompt_tokens
        whole, used = (prompt_tokens - 1) // self.block_tokens, self._used
        for below, key in enumerate(reversed(keys)):
            now = len(self._before)
            before = used.get(key, -1)
            if before >= 0 and len(keys) - below <= whole:
                self._asked.append(now)
                self._below.append(below)
            self._before.append(before)
            used[key] = now

    def distances(self) -> Ints:
        """Of each use that can be found: blocks used since it was used last, itself included."""
        before = np.array(self._before)
        asked, below = np.array(self._asked), np.array(self._below)
        return _not_above(before)[asked] - before[asked] - below


def hit_curve(logs: Sequence[ReuseLog]) -> HitCurve | None:
    if not logs:
        return None
    distances = np.sort(np.concatenate([log.distances() for log in logs]))
    return HitCurve(logs[0].block_tokens, sum(log.prompt_tokens for log in logs), distances)


def _not_above(values: Ints) -> Ints:
    """For each of the values how many before it are not above it: a merge sort, level by level.

    The uses since one was used before are as many distinct blocks as have no use in between:
    all uses up to now of a block whose use before is not after that, less all up to then.
    """
    counts, order = np.zeros_like(values), np.arange(values.size)
    width = 1
    while width < values.size:
        rank = order // (2 * width) * (values.size + 1) + values[order] + 1
        is_right = order // width % 2 == 1
        right = order[is_right]
        found = np.searchsorted(rank[~is_right], rank[is_right], side="right")
        counts[right] += found - right // (2 * width) * width
        order = order[np.argsort(rank, kind="stable")]
        width *= 2
    return counts
