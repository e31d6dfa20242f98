"""Runs one collective on the links of a slice and tells who sent what to whom, and when.

In: a kind, bytes, a `Mesh` and some of its axes. Out: a `SimResult` with every hop, after a replay
has checked that each chip ends with exactly the payload it should.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from rooflight.costs.netsim.check import bits, check_links
from rooflight.costs.netsim.collectives import COLLECTIVES
from rooflight.costs.netsim.engine import Flight, busiest, end_of
from rooflight.costs.netsim.network import CollectiveRun, run_collective
from rooflight.costs.netsim.torus import TICKS_PER_S
from rooflight.errors import ModelError
from rooflight.hardware.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Hop:
    """One message over one link.

    Chips are numbered row by row, the last axis fastest; then the switches, inner ones first.
    """

    start_s: float
    end_s: float
    source: int
    target: int
    nbytes: float
    label: str


@dataclass(frozen=True, slots=True)
class SimResult:
    """What happened: total time, every hop in order, and how busy the busiest link was."""

    kind: str
    nbytes: float
    seconds: float
    hops: tuple[Hop, ...]
    max_link_bytes: float
    utilisation: float


def simulate(kind: str, nbytes: float, mesh: Mesh, axes: Sequence[str]) -> SimResult:
    """Simulates a collective over mesh axes, in every group of the mesh at once.

    `nbytes` is the array as if these axes did not shard it; for a permute, what each chip sends.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> result = simulate("all_gather", 256, parse_mesh("X=4,Y=4", on="v5e:4x4"), "X")
    >>> f"{result.seconds * 1e6:.2f} us in {len(result.hops)} hops"
    '3.00 us in 48 hops'
    """
    return result_of(kind, nbytes, run_collective(kind, nbytes, mesh, axes))


def simulate_seconds(kind: str, nbytes: float, mesh: Mesh, axes: Sequence[str]) -> float:
    """Only how long it takes. Behind switches by the rings and trees of `rails`, on many chips.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> seconds = simulate_seconds("all_gather", 1e9, parse_mesh("X=128", on="h100:8x16"), "X")
    >>> f"{seconds * 1e3:.2f} ms"
    '2.43 ms'
    """
    if not mesh.slice.chip.switched or kind not in COLLECTIVES:
        return simulate(kind, nbytes, mesh, axes).seconds
    from rooflight.costs.netsim.lockstep import lockstep_seconds  # only here: it needs numpy

    return lockstep_seconds(kind, nbytes, mesh, axes)


def trace_json(result: SimResult) -> dict[str, object]:
    """The hops as plain data for a viewer; `schema` grows when a key changes its meaning."""
    return {"schema": 1, **asdict(result)}


def result_of(kind: str, nbytes: float, ran: CollectiveRun) -> SimResult:
    """A run in numbers, every hop in order."""
    flights = ran.flights
    check_links(flights)
    loads = defaultdict[int, float](float)
    for flight in flights:
        loads[flight.message.link] += flight.message.nbytes
    end = end_of(flights)
    utilisation = busiest(flights) / max(end, 1)
    if utilisation > 1:
        raise ModelError(f"a link is busy {utilisation:.2f} of the time")
    return SimResult(
        kind=kind,
        nbytes=nbytes,
        seconds=end / TICKS_PER_S,
        hops=tuple(
            _hop(f, kind, ran) for f in sorted(flights, key=lambda f: (f.start, f.message.link))
        ),
        max_link_bytes=max(loads.values(), default=0.0),
        utilisation=utilisation,
    )


def _hop(flight: Flight, kind: str, ran: CollectiveRun) -> Hop:
    message = flight.message
    return Hop(
        start_s=flight.start / TICKS_PER_S,
        end_s=flight.end / TICKS_PER_S,
        source=ran.place(message.source),
        target=ran.place(message.target),
        nbytes=message.nbytes,
        label=f"{cargo_words(kind, message.units, ran.num_chips)} piece {message.piece}",
    )


@lru_cache(maxsize=65536)
def cargo_words(kind: str, units: int, num_chips: int) -> str:
    """What a message carries, in words: `shard 3`, `16 shards from 0`, `chunk 0>5`, `chip 2`."""
    if kind == "permute":
        return f"chip {units.bit_length() - 1}"
    chunks = sorted({unit // 2 for unit in bits(units)})
    first, word = str(chunks[0]), "shard"
    if kind == "all_to_all":
        origin, target = divmod(chunks[0], num_chips)
        first, word = f"{origin}>{target}", "chunk"
    return f"{word} {first}" if len(chunks) == 1 else f"{len(chunks)} {word}s from {first}"
