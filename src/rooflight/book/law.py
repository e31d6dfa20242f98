"""`Law`: a quantity that goes with powers of some sizes, read off the library's own answers.

The book treats ways and batches as real numbers; meshes and arrays have whole ones. A quantity is
therefore asked for at a few sizes that divide, and its powers continue it to any size. Nothing
here knows what the powers should be, and a quantity that follows none is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rooflight.errors import ModelError

Sizes = Mapping[str, int]
Quantities = Mapping[str, float]

_HALVINGS = 64  # of the logarithm of an interval; floats have run out of digits by then
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Law:
    """scale * product of size ** power.

    >>> Law(3.0, {"B": 1.0, "X": -1.0}).at({"B": 10, "X": 4, "Y": 2})
    7.5
    """

    scale: float
    powers: Mapping[str, float]

    def at(self, sizes: Mapping[str, float]) -> float:
        return self.scale * math.prod(sizes[name] ** p for name, p in self.powers.items())


def fit(ask: Callable[[Sizes], Quantities], base: Sizes) -> dict[str, Law]:
    """The law of every quantity, from `base`, each size doubled alone, and a check far away.

    >>> laws = fit(lambda s: {"area": 2.0 * s["a"] * s["a"] / s["b"]}, {"a": 4, "b": 8})
    >>> laws["area"].at({"a": 3, "b": 1})
    18.0
    """
    start = ask(base)
    doubled = {name: ask({**base, name: 2 * size}) for name, size in base.items()}
    laws = {
        quantity: _through(base, value, {name: found[quantity] for name, found in doubled.items()})
        for quantity, value in start.items()
    }
    far = {name: 4 * size for name, size in base.items()}
    for quantity, value in ask(far).items():
        if not math.isclose(laws[quantity].at(far), value, rel_tol=_SAME):
            raise ModelError(f"{quantity} does not go with powers of {', '.join(base)}")
    return laws


def _through(base: Sizes, value: float, doubled: Mapping[str, float]) -> Law:
    powers = {name: math.log2(other / value) for name, other in doubled.items()}
    return Law(value / math.prod(base[name] ** p for name, p in powers.items()), powers)


def root(gap: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of a positive size changes its sign, by halving the ratio of the ends.

    >>> round(root(lambda x: x * x - 2, 1, 4), 9)
    1.414213562
    """
    is_above = gap(low) > 0
    if is_above == (gap(high) > 0):
        raise ModelError(f"no crossing between {low:g} and {high:g}")
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if (gap(middle) > 0) == is_above:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
