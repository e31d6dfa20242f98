"""FSDP over X and tensor parallelism over Y at once: the best split, and the batch it needs.

In: the laws of a layer on a cube (`layer.on_a_cube`) and a convention of overlap. Out: ways and
tokens. Chapter 5 gives closed forms for all of it; here the derived times are set equal instead.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from rooflight.book.law import Law, root
from rooflight.book.layer import LARGEST, PRODUCTS, Layer, on_a_cube
from rooflight.hardware.chip import Chip

OVERLAPS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "sum": sum,  # the collectives of X and Y queue up: the 2025 edition
    "max": max,  # they run side by side: the newer one
}


@dataclass(frozen=True, slots=True)
class Mixed:
    """A layer of inner width F on N chips, D being one: it cancels."""

    laws: Mapping[str, Law]
    overlap: str
    inner: float
    chips: float

    def products_s(self, tokens: float) -> float:
        return self.laws[PRODUCTS].at(self._sizes(tokens, 1.0))

    def collectives_s(self, tokens: float, x: float) -> float:
        """Of X ways of FSDP and N / X of tensor parallelism."""
        sizes = self._sizes(tokens, x)
        return OVERLAPS[self.overlap](self.laws[axis].at(sizes) for axis in "XY")

    def best_x(self, tokens: float) -> float:
        """Where both halves take equally long: one grows as X, the other shrinks as it.

        Their product is constant, so their sum and their maximum are least at the same X.
        """

        def gap_s(x: float) -> float:
            sizes = self._sizes(tokens, x)
            return self.laws["X"].at(sizes) - self.laws["Y"].at(sizes)

        return root(gap_s, 1 / LARGEST, LARGEST)

    def best_power_of_two(self, tokens: float) -> tuple[int, int]:
        """The powers of two X and Y that take least time, using as many chips as they can."""
        used = 2 ** (int(self.chips).bit_length() - 1)
        smaller = replace(self, chips=used)
        powers = [2**i for i in range(used.bit_length())]
        best = min(powers, key=lambda x: smaller.collectives_s(tokens, x))
        return best, used // best

    def tokens_bound(self) -> float:
        """The batch from which the best split is bound by its products."""
        return root(
            lambda b: self.products_s(b) - self.collectives_s(b, self.best_x(b)), 1, LARGEST
        )

    def tokens_bound_of_powers(self) -> float:
        """The same if X and Y are powers of two."""
        return root(
            lambda b: self.products_s(b) - self.collectives_s(b, self.best_power_of_two(b)[0]),
            1,
            LARGEST,
        )

    def range_of_x(self, tokens: float) -> tuple[float, float]:
        """The fewest and the most ways of FSDP at which the products still bind."""

        def spare_s(x: float) -> float:
            return self.products_s(tokens) - self.collectives_s(tokens, x)

        best = self.best_x(tokens)
        return root(spare_s, 1 / LARGEST, best), root(spare_s, best, LARGEST)

    def _sizes(self, tokens: float, x: float) -> Mapping[str, float]:
        return {"B": tokens, "D": 1.0, "F": self.inner, "X": x, "Y": self.chips / x}


def mixed(chip: Chip, *, overlap: str, inner: float, chips: float) -> Mixed:
    """The forward pass decides: the backward one has twice the products, not twice the bytes."""
    laws = on_a_cube(Layer("fsdp=X,tp=Y", forward=True), chip)
    return Mixed(laws, overlap, inner, chips)
