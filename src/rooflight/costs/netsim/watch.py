"""A run as moments to look at: which links send, and what every chip holds after each.

In: a kind, bytes, a `Mesh` and some of its axes. Out: `Watched`. The cells of a chip are the parts
of what its group works on, in the order of the members: for a gather the shards, each 0 to 1 of
it here; for a sum the part of the terms that are added up here; for an exchange the chunks that
the members had for this chip.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from rooflight.costs.netsim.check import bits
from rooflight.costs.netsim.collectives import MAX_MESSAGES
from rooflight.costs.netsim.engine import Flight, end_of
from rooflight.costs.netsim.gather import own_units
from rooflight.costs.netsim.network import CollectiveRun, run_collective
from rooflight.costs.netsim.simulate import SimResult, cargo_words, result_of
from rooflight.costs.netsim.torus import TICKS_PER_S
from rooflight.errors import UnknownNameError
from rooflight.hardware.mesh import Mesh

WATCHED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
Cells = tuple[tuple[float, ...], ...]  # for each chip, for each member of its group


@dataclass(frozen=True, slots=True)
class Move:
    """What one link carries during a moment; chips and switches are numbered as in `Hop`."""

    source: int
    target: int
    nbytes: float
    label: str


@dataclass(frozen=True, slots=True)
class Moment:
    """From one time to the next: who sends, and what each chip holds at the end."""

    start_s: float
    end_s: float
    moves: tuple[Move, ...]
    cells: Cells


@dataclass(frozen=True, slots=True)
class Watched:
    """A simulated collective, moment by moment; the first one is the start, where nothing moves."""

    result: SimResult
    groups: tuple[tuple[int, ...], ...]
    moments: tuple[Moment, ...]


def watch(
    kind: str,
    nbytes: float,
    mesh: Mesh,
    axes: Sequence[str],
    *,
    most: int = 32,
    messages: int = MAX_MESSAGES,
) -> Watched:
    """Moments end when messages arrive; where those times are too many, `most` even ones do.

    Fewer `messages` are sooner simulated, and a little slower than the best cut would be.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> seen = watch("all_gather", 4e6, parse_mesh("X=4", on="v5e:4x1"), "X")
    >>> [moment.cells[0] for moment in seen.moments][1:]
    [(1.0, 1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0)]
    """
    if kind not in WATCHED:
        raise UnknownNameError("collective to watch", kind, WATCHED)
    ran = run_collective(kind, nbytes, mesh, axes, most=messages)
    ends = _ends(ran.flights, most)
    held = list(_held(kind, ran, ends))
    moments = [Moment(0.0, 0.0, (), held[0])]
    for at, (moves, cells) in enumerate(zip(_moves(kind, ran, ends), held[1:], strict=True)):
        start = ends[at - 1] if at else 0
        moments.append(Moment(start / TICKS_PER_S, ends[at] / TICKS_PER_S, moves, cells))
    groups = tuple(map(tuple, ran.groups))
    return Watched(result_of(kind, nbytes, ran), groups, tuple(moments))


def _ends(flights: Sequence[Flight], most: int) -> list[int]:
    arrivals = sorted({f.end for f in flights})
    if len(arrivals) <= most:
        return arrivals
    return [end_of(flights) * (i + 1) // most for i in range(most)]


def _moves(kind: str, ran: CollectiveRun, ends: Sequence[int]) -> list[tuple[Move, ...]]:
    """For each moment the links that carry something, and how much of it is sent then."""
    sent = [defaultdict[tuple[int, int], float](float) for _ in ends]
    cargo = [defaultdict[tuple[int, int], set[str]](set) for _ in ends]
    place = cache(ran.place)
    for f in ran.flights:
        link = place(f.message.source), place(f.message.target)
        words = cargo_words(kind, f.message.units, ran.num_chips)
        rate = f.message.nbytes / max(f.sent - f.start, 1)
        for at in range(bisect_right(ends, f.start), len(ends)):
            start = ends[at - 1] if at else 0
            if start >= f.end:
                break
            sent[at][link] += rate * max(0, min(f.sent, ends[at]) - max(f.start, start))
            cargo[at][link].add(words)
    return [
        tuple(Move(*link, sent[at][link], _label(cargo[at][link])) for link in sorted(cargo[at]))
        for at in range(len(ends))
    ]


def _label(cargo: set[str]) -> str:
    return next(iter(cargo)) if len(cargo) == 1 else f"{len(cargo)} messages"


def _held(kind: str, ran: CollectiveRun, ends: Sequence[int]) -> Iterator[Cells]:
    """The cells at the start and after each tick of `ends`."""
    if kind == "all_reduce":
        half = len(ran.flights) // 2
        first, second = ran.flights[:half], ran.flights[half:]
        turn = bisect_left(ends, end_of(first)) + 1 if first else 0
        yield from _summed(ran, first, ends[:turn])
        yield from list(_copied(ran, second, ends[turn:]))[1:]
    elif kind == "reduce_scatter":
        yield from _summed(ran, ran.flights, ends)
    elif kind == "all_gather":
        yield from _copied(ran, ran.flights, ends)
    else:
        yield from _moved(ran, ran.flights, ends)


def _arrived(flights: Sequence[Flight], ends: Sequence[int]) -> Iterator[list[Flight]]:
    """The flights that arrive by each of some ticks and not before."""
    order, at = sorted(flights, key=lambda f: f.end), 0
    for end in ends:
        first = at
        while at < len(order) and order[at].end <= end:
            at += 1
        yield order[first:at]


def _weights(flights: Sequence[Flight]) -> dict[int, float]:
    """The part of the array that each piece is."""
    size = {f.message.piece: f.message.nbytes / f.message.units.bit_count() for f in flights}
    whole = sum(size.values()) or 1.0
    return {piece: nbytes / whole for piece, nbytes in size.items()}


def _copied(ran: CollectiveRun, flights: Sequence[Flight], ends: Sequence[int]) -> Iterator[Cells]:
    weights = _weights(flights) or {0: 1.0}
    cells = [[float(m == chip) for m in ran.groups[chip]] for chip in range(ran.num_chips)]
    yield _frozen(cells)
    for batch in _arrived(flights, ends):
        for m in (f.message for f in batch if f.message.lands):
            for i, member in enumerate(ran.groups[m.target]):
                both = m.units & own_units(member)
                cells[m.target][i] += weights[m.piece] * both.bit_count() / 2
        yield _frozen(cells)


def _moved(ran: CollectiveRun, flights: Sequence[Flight], ends: Sequence[int]) -> Iterator[Cells]:
    """What has come home; what is under way lies in no cell."""
    weights = _weights(flights) or {0: 1.0}
    chips = ran.num_chips
    cells = [[float(m == chip) for m in ran.groups[chip]] for chip in range(chips)]
    yield _frozen(cells)
    for batch in _arrived(flights, ends):
        for m in (f.message for f in batch if f.message.target < chips):
            for i, member in enumerate(ran.groups[m.target]):
                mine = m.units >> 2 * (member * chips + m.target) & 3
                cells[m.target][i] += weights[m.piece] * mine.bit_count() / 2
        yield _frozen(cells)


def _summed(ran: CollectiveRun, flights: Sequence[Flight], ends: Sequence[int]) -> Iterator[Cells]:
    """Terms added up: what leaves a chip is gone from it, what arrives is added."""
    weights = _weights(flights) or {0: 1.0}
    terms = {
        (piece, chip, unit): 1
        for piece in weights
        for chip in range(ran.num_chips)
        for member in ran.groups[chip]
        for unit in bits(own_units(member))
    }
    carried: dict[int, list[int]] = {}
    order = sorted(
        [(f.start, 1, n) for n, f in enumerate(flights)]
        + [(f.end, 0, n) for n, f in enumerate(flights)]
    )
    at = 0
    yield _sums(ran, terms, weights)
    for end in ends:
        while at < len(order) and (order[at][0] < end or order[at][:2] == (end, 0)):
            _, leaves, n = order[at]
            m = flights[n].message
            if leaves:
                carried[n] = [terms.pop((m.piece, m.source, unit), 0) for unit in bits(m.units)]
            else:
                for unit, count in zip(bits(m.units), carried.pop(n), strict=True):
                    key = (m.piece, m.target, unit)
                    terms[key] = terms.get(key, 0) + count
            at += 1
        yield _sums(ran, terms, weights)


def _sums(
    ran: CollectiveRun, terms: dict[tuple[int, int, int], int], weights: dict[int, float]
) -> Cells:
    cells = [[0.0] * len(ran.groups[chip]) for chip in range(ran.num_chips)]
    places = [{m: i for i, m in enumerate(group)} for group in ran.groups]
    for (piece, chip, unit), count in terms.items():
        if chip < ran.num_chips:
            at = places[chip][unit // 2]
            cells[chip][at] += weights[piece] * count / len(ran.groups[chip]) / 2
    return _frozen(cells)


def _frozen(cells: Sequence[Sequence[float]]) -> Cells:
    return tuple(tuple(round(value, 9) for value in row) for row in cells)
