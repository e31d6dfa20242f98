"""Consistent hashing with bounded loads: which replica a prefix belongs to, while it has room.

In: names of replicas, a key, loads. Out: the replicas in the order in which the key would have
them. Each replica owns `POINTS` points of a circle; a key belongs to the next point. When a replica
leaves, only its own keys move. A replica above the bound passes a request on to the next:

    bound = max(least, ceil(1.25 (m + 1) / n))    m requests on n replicas

so that one is always below it (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

POINTS = 128
_SLACK = 1.25


class HashRing:
    """Points of all replicas on a circle."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        owned = [(_place(f"{name} {at}".encode()), name) for name in names for at in range(POINTS)]
        owned.sort()
        self._places = [place for place, _ in owned]
        self._owners = [name for _, name in owned]

    def order(self, key: bytes) -> Iterator[str]:
        """Every replica once, the owner of the key first."""
        start = bisect_right(self._places, _place(key))
        seen: set[str] = set()
        for at in range(start, start + len(self._owners)):
            owner = self._owners[at % len(self._owners)]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == len(self._names):
                    return

    def shares(self) -> dict[str, float]:
        """Of all keys, how many belong to each."""
        shares = dict.fromkeys(self._names, 0.0)
        before = [self._places[-1] - _CIRCLE, *self._places]
        for low, high, owner in zip(before, self._places, self._owners, strict=False):
            shares[owner] += (high - low) / _CIRCLE
        return shares


_CIRCLE = 1 << 64


def _place(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest())


def load_bound(loads: Mapping[str, int], *, least: int) -> int:
    """Requests that a replica may have before a prefix goes to the next one.

    >>> load_bound({"a": 9, "b": 0}, least=4), load_bound({"a": 1, "b": 0}, least=4)
    (7, 4)
    """
    fair = -(-int(100 * _SLACK) * (sum(loads.values()) + 1) // (100 * len(loads)))
    return max(least, fair)
