"""Replays a run and checks it: links carry one message at a time, payloads end where they must.

`Holdings` maps (piece, chip) to payload units as the bits of an integer. Three kinds of payload:
copies (all-gather), sums (reduce-scatter) and moves (all-to-all, permute).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rooflight.costs.netsim.engine import Flight
from rooflight.costs.netsim.torus import Message
from rooflight.errors import ModelError

Holdings = Mapping[tuple[int, int], int]


def check_links(flights: Sequence[Flight]) -> None:
    """No link carries two messages at once."""
    free: dict[int, int] = {}
    for flight in sorted(flights, key=lambda f: (f.start, f.sent)):
        link = flight.message.link
        if flight.start < free.get(link, 0):
            raise ModelError(f"link {link} carries two messages at tick {flight.start}")
        free[link] = flight.sent


def check_copies(flights: Sequence[Flight], start: Holdings, finish: Holdings) -> None:
    """A chip sends only what it has, nothing lands twice, and each ends with what it should."""
    kept, passing = defaultdict(int, start), defaultdict[tuple[int, int], int](int)
    for flight, arrives in _events(flights):
        m = flight.message
        if not arrives:
            have = kept[m.piece, m.source] | passing[m.piece, m.source]
            _require(m.units & ~have == 0, m, "sends what its source does not have")
        elif m.lands:
            _require(kept[m.piece, m.target] & m.units == 0, m, "lands a second time")
            kept[m.piece, m.target] |= m.units
        else:
            passing[m.piece, m.target] |= m.units
    _require_finish(kept, finish)


def check_moves(flights: Sequence[Flight], start: Holdings, finish: Holdings) -> None:
    """As copies, but what is sent is gone from its source."""
    held = defaultdict(int, start)
    for flight, arrives in _events(flights):
        m = flight.message
        if not arrives:
            _require(m.units & ~held[m.piece, m.source] == 0, m, "sends what is not there")
            held[m.piece, m.source] ^= m.units
        else:
            held[m.piece, m.target] |= m.units
    _require_finish(held, finish)


def check_sums(flights: Sequence[Flight], start: Holdings, finish: Holdings) -> None:
    """Every chip adds its term of each unit once; each ends with the full sums it should own.

    `start` are the units a chip has a term of, `finish` the ones whose sum it must hold.
    """
    terms: dict[tuple[int, int, int], int] = {
        (piece, chip, unit): 1 << chip
        for (piece, chip), units in start.items()
        for unit in bits(units)
    }
    everyone: dict[tuple[int, int], int] = defaultdict(int)
    for (piece, _, unit), term in terms.items():
        everyone[piece, unit] |= term
    carried: dict[int, list[int]] = {}
    for flight, arrives in _events(flights):
        m = flight.message
        if not arrives:
            sums = [terms.pop((m.piece, m.source, unit), 0) for unit in bits(m.units)]
            _require(0 not in sums, m, "sends a sum that is not there")
            carried[id(flight)] = sums
            continue
        for unit, part in zip(bits(m.units), carried.pop(id(flight)), strict=True):
            key = (m.piece, m.target, unit)
            _require(terms.get(key, 0) & part == 0, m, "adds a term twice")
            terms[key] = terms.get(key, 0) | part
    wanted = {
        (piece, chip, unit): everyone[piece, unit]
        for (piece, chip), units in finish.items()
        for unit in bits(units)
    }
    if terms != wanted:
        raise ModelError("a reduction ends with sums that are missing, partial or misplaced")


@lru_cache(maxsize=65536)
def bits(units: int) -> tuple[int, ...]:
    """The positions of the ones, lowest first.

    >>> bits(0b1011)
    (0, 1, 3)
    """
    return tuple(i for i, digit in enumerate(reversed(f"{units:b}")) if digit == "1")


def _events(flights: Sequence[Flight]) -> list[tuple[Flight, bool]]:
    """Departures and arrivals in time order; at one tick arrivals come first."""
    events = [(f.start, 1, n) for n, f in enumerate(flights)]
    events += [(f.end, 0, n) for n, f in enumerate(flights)]
    return [(flights[n], leaves == 0) for _, leaves, n in sorted(events)]


def _require(holds: bool, message: Message, wrong: str) -> None:
    if not holds:
        raise ModelError(
            f"a message from chip {message.source} to chip {message.target}"
            f" (piece {message.piece}) {wrong}"
        )


def _require_finish(held: Mapping[tuple[int, int], int], finish: Holdings) -> None:
    for key in held.keys() | finish.keys():
        if held.get(key, 0) != finish.get(key, 0):
            raise ModelError(f"chip {key[1]} ends with wrong chunks in piece {key[0]}")
