"""`Form`: how a tensor of a file holds one of ours, written `self_attn.kv_b_proj.weight[N H+Hv,R]`.

In: that text and our dims. Out: which part of the file a part of our tensor is, and a view of it in
our order. Each dim of the file's tensor is a product of factors, the slowest first:

    K G H     three of our dims in one
    H+Hv      two parts side by side, of which ours is the one whose dim our tensor has
    0/2       the first of two: before `F` one half of the rows, after `F` every other row
    K H|*K H  two ranges one after the other, of which ours has the star
    {E}       in the name: one tensor for each index of our dim E
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]  # of whatever dtype the file or the device has
Span = tuple[int, int]  # from, to
Sizes = Mapping[str, int]
_ONE = ""  # the dim of a part that is one of a few, such as 0/2
_TEXT = re.compile(r"(?P<name>[^\[]+)\[(?P<dims>[^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Factor:
    """Parts that lie side by side, and which of them is ours."""

    parts: tuple[str, ...]
    mine: int = 0

    @property
    def dim(self) -> str:
        return self.parts[self.mine]

    def size(self, sizes: Sizes) -> int:
        return sum(sizes[p] if p else 1 for p in self.parts)

    def span(self, sizes: Sizes, wanted: Mapping[str, Span]) -> Span:
        """Where the wanted part of our dim lies among all parts."""
        start = sum(sizes[p] if p else 1 for p in self.parts[: self.mine])
        low, high = wanted[self.dim] if self.dim else (0, 1)
        return start + low, start + high


@dataclass(frozen=True, slots=True)
class FileDim:
    """A dim of a file's tensor: our factors, and the ranges that lie before and after them."""

    factors: tuple[Factor, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def start(self, sizes: Sizes) -> int:
        return sum(_product(text, sizes) for text in self.before)

    def size(self, sizes: Sizes) -> int:
        beside = sum(_product(text, sizes) for text in self.before + self.after)
        return beside + math.prod(f.size(sizes) for f in self.factors)


def _product(text: str, sizes: Sizes) -> int:
    return math.prod(sizes[d] for d in text.split())


@dataclass(frozen=True, slots=True)
class TensorWindow:
    """A block of a file's tensor, and how what was read becomes a block of ours."""

    slices: tuple[slice, ...]
    folded: tuple[int, ...]  # one dim for each factor
    inner: tuple[slice | int, ...]
    order: tuple[int, ...]

    def view(self, block: Array) -> Array:
        """The block in our dims and order; a view, so it can also be written through."""
        return block.reshape(self.folded)[self.inner].transpose(self.order)


@dataclass(frozen=True, slots=True)
class Form:
    """The name of a file's tensor and its dims in terms of ours."""

    name: str
    dims: tuple[FileDim, ...]
    ours: tuple[str, ...]  # in our order, less a dim that is in the name

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape that the file's tensor must have."""
        return tuple(dim.size(sizes) for dim in self.dims)

    def window(self, sizes: Sizes, wanted: Mapping[str, Span]) -> TensorWindow:
        """The smallest block, contiguous in each dim, that holds the wanted spans of our dims.

        >>> form = parse_form("kv_b_proj.weight[N H+Hv,R]", ("R", "N", "Hv"))
        >>> wanted = {"N": (2, 4), "Hv": (0, 2), "R": (0, 8)}
        >>> window = form.window({"N": 4, "H": 3, "Hv": 2, "R": 8}, wanted)
        >>> window.slices[0], window.folded, window.inner[1]
        (slice(10, 20, None), (2, 5, 8), slice(3, 5, None))
        """
        slices: list[slice] = []
        folded: list[int] = []
        inner: list[Span] = []
        for dim in self.dims:
            start, spans = dim.start(sizes), [f.span(sizes, wanted) for f in dim.factors]
            narrowed = _narrow(start, [f.size(sizes) for f in dim.factors], spans)
            slices.append(narrowed[0])
            folded += narrowed[1]
            inner += narrowed[2]
        factors = [f for dim in self.dims for f in dim.factors]
        picks = tuple(
            slice(*span) if f.dim else span[0] for f, span in zip(factors, inner, strict=True)
        )
        named = [f.dim for f in factors if f.dim]
        order = tuple(named.index(d) for d in self.ours)
        return TensorWindow(tuple(slices), tuple(folded), picks, order)


def _narrow(
    start: int, sizes: Sequence[int], spans: Sequence[Span]
) -> tuple[slice, list[int], list[Span]]:
    """One dim of the file: what to read, how to fold it, what of each factor to keep.

    Our part of it begins at `start`. Up to the first factor of which we want more than one index
    the block shrinks to what is wanted; faster factors are read whole.
    """
    stride = math.prod(sizes)
    for place, (size, (low, high)) in enumerate(zip(sizes, spans, strict=True)):
        stride //= size
        start += low * stride
        if high - low != 1 or place == len(spans) - 1:
            folded = [1] * place + [high - low, *sizes[place + 1 :]]
            inner = [(0, 1)] * place + [(0, high - low), *spans[place + 1 :]]
            return slice(start, start + (high - low) * stride), folded, inner
    raise AssertionError("a dim of a file has at least one factor")


def parse_form(text: str, ours: Sequence[str]) -> Form | None:
    """Reads a form; None if it is one of another tensor, with other dims than ours.

    >>> parse_form("q_b_proj.weight[N H+P,Q]", ("D", "N", "H")) is None
    True
    """
    match = _TEXT.fullmatch(text)
    assert match, text
    name = match["name"]
    own = tuple(d for d in ours if f"{{{d}}}" not in name)
    dims = tuple(_dim(dim, own) for dim in match["dims"].split(","))
    found = sorted(f.dim for dim in dims for f in dim.factors if f.dim)
    return Form(name, dims, own) if found == sorted(own) else None


def _dim(text: str, ours: Sequence[str]) -> FileDim:
    ranges = text.split("|")
    mine = next((i for i, each in enumerate(ranges) if each.startswith("*")), 0)
    factors = tuple(_factor(word, ours) for word in ranges[mine].lstrip("*").split())
    return FileDim(factors, tuple(ranges[:mine]), tuple(ranges[mine + 1 :]))


def _factor(word: str, ours: Sequence[str]) -> Factor:
    if "/" in word:
        mine, _, count = word.partition("/")
        return Factor((_ONE,) * int(count), int(mine))
    parts = tuple(word.split("+"))
    mine = next((i for i, part in enumerate(parts) if part in ours), 0)
    return Factor(parts, mine)
