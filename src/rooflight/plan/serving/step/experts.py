"""`ExpertLoads`: how unevenly tokens visit the experts of a layer, and which rank has which.

In: the exponent of a power law, or tokens counted by layer and expert; replicas of EPLB. Out: a
`Balance`: by how much the busiest rank exceeds the mean, and the experts that the fullest reads.

    visits of the r-th hottest of E experts ~ r^-skew, k in all, none above one per token
    busiest = max over ranks of the visits of its experts * ranks / k
    touched = max over ranks of the sum over its experts of 1 - (1 - visits)^tokens

Both are of expected loads: that the tokens of one step are no even sample of them (balls in bins)
is in the constants of calibrations, which come from measured steps.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from random import Random
from statistics import linear_regression
from typing import TYPE_CHECKING, Any  # JSON

from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.serving.step.layout import ServingLayout

if TYPE_CHECKING:  # the book's pages have no numpy
    import numpy as np

MOST_SKEW = 4.0
_TRIES = 101  # random placements, of which the one with the middle imbalance is taken
_HINT = (
    "give a line of counts for each layer, an expert each; or the JSON of SGLang's recorder, with"
    " logical_count"
)


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """Of a power law, or of counted tokens layer by layer; and what is done about it."""

    skew: float  # of counts, the exponent nearest to them
    counts: tuple[tuple[float, ...], ...] = ()
    redundant: int | None = None  # replicas of the hottest, placed by EPLB; None: no EPLB

    def check(self, model: ModelSpec, layout: ServingLayout) -> None:
        """Raises where replicas have no other rank to be on, or are not dealt out evenly."""
        if self.redundant and layout.ep == 1:
            raise UsageError(
                f"{self.redundant} redundant experts under {layout}, where every chip has a part of"
                " each expert",
                hint="split experts, such as --layout dp=8,ep=8, or leave them out",
            )
        self.balance(model, layout)

    def balance(self, model: ModelSpec, layout: ServingLayout) -> "Balance":
        """On the ranks of a layout."""
        return _balance(self, _experts_of(model), layout.ep)

    def told(self, model: ModelSpec, layout: ServingLayout) -> str:
        """In a sentence."""
        by = "as counted, like a skew of" if self.counts else "of skew"
        eplb = "" if self.redundant is None else f", EPLB with {self.redundant} redundant"
        if eplb and layout.ep == 1:
            eplb = f", no EPLB: by {layout} every chip has a part of each expert"
        busiest = self.balance(model, layout).busiest
        ranks = f"; the busiest of {layout.ep} ranks has {busiest:.2f}x the mean load"
        return f"expert loads {by} {self.skew:.2g}{eplb}{ranks if layout.ep > 1 else ''}"

    def document(self, model: ModelSpec, layout: ServingLayout) -> dict[str, object]:
        """As JSON; balancedness is what engines log, the mean load over the largest."""
        busiest = self.balance(model, layout).busiest
        return {
            "skew": self.skew,
            "is_counted": bool(self.counts),
            "redundant": self.redundant if layout.ep > 1 else None,
            "busiest": busiest,
            "balancedness": 1 / busiest,
        }


@dataclass(frozen=True, eq=False)  # no slots: what never changes is worked out once
class Balance:
    """Chances of a token to visit what lies on each rank: layers, ranks, experts and replicas."""

    chances: tuple[tuple[tuple[float, ...], ...], ...]
    per_rank: int  # experts that a rank has without replicas
    _known: dict[float, float] = field(default_factory=dict[float, float], repr=False)

    @cached_property
    def busiest(self) -> float:
        """The largest load of a rank over the mean one; of layers the mean, each waits."""
        loads = [[sum(rank) for rank in layer] for layer in self.chances]
        return sum(max(layer) * len(layer) / sum(layer) for layer in loads) / len(loads)

    def touched(self, tokens: float) -> float:
        """Experts that the fullest rank reads for so many tokens, over those it has (`per_rank`).

        >>> even = Balance((((0.25, 0.25), (0.25, 0.25)),), per_rank=2)
        >>> even.busiest, even.touched(1), even.touched(2)
        (1.0, 0.25, 0.4375)
        """
        if tokens not in self._known:
            read = 1 - (1 - self._array) ** tokens
            self._known[tokens] = float(read.sum(axis=2).max(axis=1).mean()) / self.per_rank
        return self._known[tokens]

    @cached_property
    def _array(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        import numpy as np

        most = max(len(rank) for layer in self.chances for rank in layer)
        return np.array(
            [[[*rank, *[0.0] * (most - len(rank))] for rank in layer] for layer in self.chances]
        )


def _experts_of(model: ModelSpec) -> Moe:
    found = list(dict.fromkeys(b.mlp for b in model.blocks if isinstance(b.mlp, Moe)))
    if len(found) != 1:
        kinds = f"{len(found)} kinds of" if found else "no"
        raise UsageError(
            f"expert loads of {model.name}, which has {kinds} experts",
            hint="leave out --expert-skew and --redundant-experts",
        )
    return found[0]


@lru_cache(maxsize=256)
def _balance(loads: ExpertLoads, experts: Moe, ranks: int) -> Balance:
    count, k = experts.num_experts, experts.experts_per_token
    weights = loads.counts or (tuple(r**-loads.skew for r in range(1, count + 1)),)
    layers = [visits(layer, k) for layer in weights]
    if ranks == 1 or loads.redundant is None:
        placed = [in_order(one, ranks) for one in layers]
        if not loads.counts:
            placed = [_middle(layers[0], ranks)]
    else:
        placed = [eplb(one, ranks, loads.redundant) for one in layers]
    return Balance(tuple(placed), -(-count // ranks))


Placed = tuple[tuple[float, ...], ...]  # by rank, the visits of each expert or replica


def visits(weights: Sequence[float], k: int) -> tuple[float, ...]:
    """A token's chance to visit each expert: in proportion to weights, k in all, none above one.

    >>> visits([6, 1, 1], 2)
    (1.0, 0.5, 0.5)
    """
    left, total = float(k), math.fsum(weights)
    found = [0.0] * len(weights)
    for at in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if weights[at] <= 0:
            break
        found[at] = min(1.0, left * weights[at] / total)
        left, total = left - found[at], total - weights[at]
    return tuple(found)


def in_order(chances: Sequence[float], ranks: int) -> Placed:
    """Neighbours by number on a rank, as engines place experts without EPLB."""
    each = -(-len(chances) // ranks)
    return tuple(tuple(chances[each * r : each * (r + 1)]) for r in range(ranks))


def _middle(chances: Sequence[float], ranks: int) -> Placed:
    """Which experts are hot has nothing to do with their numbers: a middling random order."""
    draw, order = Random(0), list(chances)
    found: list[Placed] = []
    for _ in range(_TRIES):
        draw.shuffle(order)
        found.append(in_order(order, ranks))
    return sorted(found, key=lambda placed: max(map(sum, placed)))[_TRIES // 2]


def eplb(chances: Sequence[float], ranks: int, redundant: int) -> Placed:
    """DeepSeek's greedy balancer: replicas for whatever is hottest, then hottest first to ranks.

    A replica more goes to the expert with the most visits for each that it has; experts and
    replicas then go to the rank with the least visits so far that has a place.

    >>> [round(sum(rank), 3) for rank in eplb([0.5, 0.2, 0.2, 0.1], 2, 2)]
    [0.533, 0.467]
    """
    each, odd = divmod(len(chances) + redundant, ranks)
    if odd:
        raise UsageError(
            f"{len(chances)} experts and {redundant} redundant ones are not dealt out evenly to"
            f" {ranks} ranks",
            hint=f"take --redundant-experts {redundant + ranks - odd}",
        )
    copies = [1] * len(chances)
    for _ in range(redundant):
        hottest = max(range(len(chances)), key=lambda i: chances[i] / copies[i])
        copies[hottest] += 1
    slots = sorted((c / n for c, n in zip(chances, copies, strict=True) for _ in range(n)))
    placed: list[list[float]] = [[] for _ in range(ranks)]
    while slots:
        free = [rank for rank in placed if len(rank) < each]
        min(free, key=sum).append(slots.pop())
    return tuple(map(tuple, placed))


def read_counts(path: str, model: ModelSpec) -> tuple[tuple[float, ...], ...]:
    """Tokens by layer and expert; layers without any (dense ones) are left out."""
    text, count = read_file(path, hint=_HINT), _experts_of(model).num_experts
    try:
        rows = _json(text) if text.lstrip().startswith(("{", "[")) else _lines(text)
        if all(len(row) == 1 for row in rows):  # a column is one layer
            rows = [[row[0] for row in rows]]
        layers = tuple(tuple(float(n) for n in row) for row in rows if any(row))
        if not all(0 <= n < math.inf for row in layers for n in row):
            raise ValueError("counts must be numbers from 0 on")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise UsageError(f"{path} has no counts of tokens: {error}", hint=_HINT) from None
    wrong = next((len(row) for row in layers if len(row) != count), None)
    if wrong or not layers:
        raise UsageError(
            f"{path} must count tokens of the {count} experts of {model.name}, got {wrong or 0}",
            hint=_HINT,
        )
    return layers


def _json(text: str) -> list[list[float]]:
    found: Any = json.loads(text)
    rows: Any = found["logical_count"] if text.lstrip().startswith("{") else found
    if rows and isinstance(rows[0], list) and rows[0] and isinstance(rows[0][0], list):
        steps = [zip(*layer, strict=True) for layer in zip(*rows, strict=True)]
        rows = [[sum(expert) for expert in layer] for layer in steps]
    return rows if rows and isinstance(rows[0], list) else [rows]


def _lines(text: str) -> list[list[float]]:
    lines = (line.replace(",", " ").split() for line in text.splitlines())
    return [[float(word) for word in words] for words in lines if words]


def nearest_skew(counts: Sequence[Sequence[float]]) -> float:
    """The power law nearest to counts: the slope of log counts over log ranks, mean of layers.

    >>> round(nearest_skew([[1000 / r**0.7 for r in range(1, 65)]]), 6)
    0.7
    """
    slopes: list[float] = []
    for layer in counts:
        hot = sorted((n for n in layer if n > 0), reverse=True)
        if len(hot) > 1:
            ranks = [math.log(rank) for rank in range(1, len(hot) + 1)]
            slopes.append(-linear_regression(ranks, [math.log(n) for n in hot]).slope)
    return sum(slopes) / len(slopes) if slopes else 0.0
