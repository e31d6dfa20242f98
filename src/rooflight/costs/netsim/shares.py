"""Which share of an array goes over the axes in which order, so that all links finish together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from rooflight.hardware.mesh import Ring


@dataclass(frozen=True, slots=True)
class Share:
    """A fraction of the array that visits the axes in one order."""

    order: tuple[Ring, ...]
    fraction: float


def one_share(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """The whole array over one axis after another."""
    return (Share(tuple(rings), 1.0),)


def equal_shares(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """One share starting on each axis, going round."""
    count = len(rings)
    return tuple(Share((*rings[i:], *rings[:i]), 1 / count) for i in range(count))


def gather_shares(rings: Sequence[Ring]) -> tuple[Share, ...]:
    """The shares of an all-gather that make its busiest axis least busy.

    A small linear program: an optimum has as many orders as axes that are equally busy, so trying
    every such pair of sets finds it. Orders that rotate come first and win ties.
    """
    turns = [s.order for s in equal_shares(rings)]
    orders = turns + [p for p in permutations(rings) if p not in turns]
    best, best_load = one_share(rings), math.inf
    for count in range(len(rings), 0, -1):
        for chosen in combinations(orders, count):
            for tight in combinations(rings, count):
                fractions = _balance([[_load(o, r) for o in chosen] for r in tight])
                load = max(_mixed(chosen, fractions, r) for r in rings) if fractions else math.inf
                if load < best_load * (1 - 1e-9):
                    best_load = load
                    best = tuple(map(Share, chosen, fractions))
    return tuple(s for s in best if s.fraction > 0)


def _load(order: tuple[Ring, ...], ring: Ring) -> float:
    """Seconds (per byte of shard) that gathering in this order keeps one axis busy."""
    before = math.prod(r.size for r in order[: order.index(ring)])
    return before * (ring.size - 1) / ring.bytes_per_s


def _mixed(orders: Sequence[tuple[Ring, ...]], fractions: Sequence[float], ring: Ring) -> float:
    return sum(f * _load(o, ring) for o, f in zip(orders, fractions, strict=True))


def _balance(loads: list[list[float]]) -> list[float]:
    """Fractions, none negative, summing to 1, that load every row alike; empty if there are none.

    Solves loads @ x = 1 by elimination; scaling x to sum 1 keeps the rows alike.
    """
    size = len(loads)
    rows = [[value / max(row) for value in row] + [1 / max(row)] for row in loads]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            return []
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(size):
            if r != i:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    solution = [row[-1] for row in rows]
    if min(solution) < 0 or sum(solution) <= 0:
        return []
    return [x / sum(solution) for x in solution]
