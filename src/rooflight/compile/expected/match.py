"""Expected collectives against found ones.

In: what the derivation says and what a dump holds. Out: a `Matching`: what agrees in kind, axes,
bytes (1 %) and count, what is missing, what is surplus. Surplus that the derivation leaves out by
design has a named class with a largest size, so that a class cannot hide a large mistake.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.compile.expected.train import Expected
from rooflight.compile.hlo.collectives import Collective

TOLERANCE = 0.01
_LOSS = "rooflight/program/model/loss.py:"  # the head's scope is lost in the loop over chunks
_SINKS = "rooflight/program/attention/kernels.py:", "attention.softmax"  # whose sum has no scope
_OP = re.compile(r"[a-z_]\w*\.[a-z_]\w*")


@dataclass(frozen=True, slots=True)
class Small:
    """The largest arrays, in bytes, that the derivation does not list."""

    vector: int  # a scale or a bias, or one number per token of a device, in fp32
    scalar: int = 64
    biased: frozenset[str] = frozenset()  # ops of the graph that add a bias, or read sinks
    inside: frozenset[str] = frozenset()  # axes of the devices of a chip; of these any size


@dataclass(frozen=True, slots=True)
class Surplus:
    """A found collective, or so many runs of it, that nothing expected."""

    collective: Collective
    count: int | None  # None where the compiler's loop has an unknown length
    op: str  # of the graph, "" if it belongs to none
    named: str  # a class of what is left out on purpose, "" if it is a surprise

    @property
    def nbytes(self) -> int:
        return self.collective.nbytes * (self.count or 1)


@dataclass(frozen=True, slots=True)
class Missing:
    """An expected collective, or so many runs of it, that the compiler did not make."""

    expected: Expected
    count: int

    @property
    def nbytes(self) -> int:
        return self.expected.nbytes * self.count


@dataclass(frozen=True, slots=True)
class Matching:
    """How far a plan and a compiled step agree; bytes are V times count of a step."""

    matched_bytes: int
    matched_count: int
    missing: tuple[Missing, ...]
    surplus: tuple[Surplus, ...]

    @property
    def surprises(self) -> tuple[Surplus, ...]:
        return tuple(s for s in self.surplus if not s.named)

    @property
    def named(self) -> dict[str, list[Surplus]]:
        """Surplus by its class."""
        found: dict[str, list[Surplus]] = {}
        for item in self.surplus:
            if item.named:
                found.setdefault(item.named, []).append(item)
        return found

    @property
    def found_bytes(self) -> int:
        return self.matched_bytes + sum(s.nbytes for s in self.surplus)

    @property
    def matched_share(self) -> float:
        """Matched bytes over all bytes that either side has."""
        total = self.found_bytes + sum(m.nbytes for m in self.missing)
        return self.matched_bytes / total if total else 1.0


def op_of(collective: Collective, ops: Iterable[str]) -> str:
    """The op of the graph whose scope an instruction was made in."""
    known = set(ops)
    names = [n for n in _OP.findall(collective.op_name) if n in known]
    return names[-1] if names else ""


@dataclass(slots=True)
class _Unpaired:
    """One collective of either side, and how many runs of it are not paired yet."""

    index: int
    op: str
    left: int


def match(
    expected: Sequence[Expected], found: Sequence[Collective], ops: Iterable[str], small: Small
) -> Matching:
    """Pairs both sides, first within an op of the graph, then anywhere: the compiler may rename."""
    known = tuple(ops)
    wanted = [_Unpaired(i, e.op, e.count) for i, e in enumerate(expected)]
    there = [_Unpaired(i, op_of(c, known), c.count or 0) for i, c in enumerate(found)]
    pairs = [
        (want, have)
        for want in wanted
        for have in there
        if _agree(expected[want.index], found[have.index])
    ]
    nbytes = runs = 0
    for want, have in sorted(pairs, key=lambda pair: pair[0].op != pair[1].op):
        count = min(want.left, have.left)
        want.left -= count
        have.left -= count
        nbytes += found[have.index].nbytes * count
        runs += count
    missing = tuple(Missing(expected[w.index], w.left) for w in wanted if w.left)
    surplus = tuple(_surplus(found[h.index], h, small) for h in there)
    return Matching(nbytes, runs, missing, tuple(s for s in surplus if s.count != 0))


def _agree(expected: Expected, found: Collective) -> bool:
    if expected.kind != found.kind or not found.is_whole:
        return False
    if expected.axes != tuple(sorted(found.axes or ())):
        return False
    return abs(found.nbytes - expected.nbytes) <= TOLERANCE * expected.nbytes


def _surplus(found: Collective, side: _Unpaired, small: Small) -> Surplus:
    count = None if found.count is None else side.left
    return Surplus(found, count, side.op, _class_of(found, side.op, small))


def _class_of(found: Collective, op: str, small: Small) -> str:
    """Why the derivation does not list a collective, if that is known."""
    if found.count is None:
        return ""  # a class of small things must not hide one that runs who knows how often
    if found.axes and small.inside >= {*found.axes}:
        return "between the devices of a chip, which is one to a plan"
    file, softmax = _SINKS
    biased = softmax if file in found.source and not op else op
    if found.nbytes <= small.vector and biased in small.biased:
        return "biases and sinks, and their gradients"
    if found.nbytes <= small.scalar:
        return "sums of the loss and of weights of tokens"
    if found.nbytes > small.vector:
        return ""
    if op.endswith((".norm", "_norm")):
        return "scales of norms and their gradients"
    if op == "head.logits" or _LOSS in found.source:
        return "numbers of each token at the loss"
    return ""
