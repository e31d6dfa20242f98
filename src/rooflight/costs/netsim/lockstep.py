"""Seconds of a collective on a thousand chips behind switches: rounds of all chips at once.

In: a kind, bytes, a `Mesh` and some of its axes. Out: seconds. The array is cut into pieces that
follow each other through the stages of `rails`, so tiers work at once. All messages of a round are
arrays: one begins when its bytes are there and the ports at both ends are free, takes each port
for its bytes, and is there a hop later. The uplinks of a leaf are shared by all that cross them.
No message is recorded; `fabric` does that, for fewer chips.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from rooflight.costs.netsim.fabric import Fabric, fabric_of, shift_stage, switched_groups
from rooflight.costs.netsim.rails import (
    Lines,
    Round,
    Stage,
    exchange_parts,
    gather_stages,
    lines_of,
    scatter_stages,
)
from rooflight.hardware.mesh import Mesh

_CUTS = (1, 4, 16, 64, 240)  # pieces; more fill the tiers better, and wait for more hops
_BEHIND = 2  # stages between pieces
_SPINE = 2

Times = npt.NDArray[np.float64]


def lockstep_seconds(kind: str, nbytes: float, mesh: Mesh, axes: Sequence[str]) -> float:
    """Seconds of a collective in every group of the mesh at once, in its fastest cut."""
    fabric, lines = fabric_of(mesh), lines_of(mesh, axes)
    size = math.prod(len(along[0]) for along in lines)
    if size == 1:
        return 0.0
    launch_s = fabric.tiers[0].launch_s
    if kind == "permute":
        run = _LockstepRun(fabric)
        run.stage(shift_stage(fabric, switched_groups(mesh, axes)), nbytes, run.start)
        return launch_s + run.end
    if kind == "all_to_all":
        return launch_s + _fastest(partial(_exchange, fabric, nbytes / size**2, lines))
    scatters, gathers = (f(fabric.tiers, lines) for f in (scatter_stages, gather_stages))
    halves = {"all_gather": gathers, "reduce_scatter": scatters}
    stages = halves.get(kind, [*scatters, *gathers])
    return launch_s + _fastest(partial(_pipeline, fabric, nbytes / size, stages))


def _fastest(seconds: Callable[[int], float]) -> float:
    """Cuts finer until that no longer pays."""
    best = seconds(_CUTS[0])
    for pieces in _CUTS[1:]:
        cut = seconds(pieces)
        if cut > best:
            break
        best = cut
    return best


@dataclass(slots=True)
class _LockstepRun:
    """When each port and uplink is free again."""

    fabric: Fabric
    out: list[Times] = field(init=False)  # of each chip: its NVLink port, its NIC
    into: list[Times] = field(init=False)
    up: Times = field(init=False)  # of each leaf
    down: Times = field(init=False)
    end: float = 0.0

    def __post_init__(self) -> None:
        self.out, self.into = ([self.start, self.start] for _ in range(2))
        self.up, self.down = self.start, self.start

    @property
    def start(self) -> Times:
        return np.zeros(self.fabric.num_chips)

    def stage(self, rounds: Stage, block: float, ready: Times) -> Times:
        """Runs the rounds of a stage; when each chip has all that they bring."""
        have = came = ready
        for turn in rounds:
            came = self._round(turn, turn.blocks * block, came if turn.relays else ready)
            have = np.maximum(have, came)
        self.end = max(self.end, float(have.max()))
        return have

    def _round(self, turn: Round, nbytes: float, ready: Times) -> Times:
        """When what is sent in a round has come, for each target; 0 where nothing comes."""
        tier, port = self.fabric.tiers[turn.tier], min(turn.tier, 1)
        targets = np.asarray(turn.targets)
        sources = np.flatnonzero(targets != np.arange(len(targets)))
        targets = targets[sources]
        rate = (port and tier.nic_bytes_per_s) or tier.egress_bytes_per_s / tier.unit_chips
        out, into = self.out[port], self.into[port]
        begin = np.maximum(ready[sources], np.maximum(out[sources], into[targets]))
        end = begin + nbytes / rate
        out[sources], into[targets] = end, end
        if turn.tier == _SPINE:
            unit, rate = tier.unit_chips, tier.egress_bytes_per_s
            for links, chips in ((self.up, sources), (self.down, targets)):
                end = np.maximum(end, _shared(links, chips // unit, begin, nbytes / rate))
        came = np.zeros(len(turn.targets))
        came[targets] = end + tier.hop_s
        return came


def _shared(links: Times, used: npt.NDArray[np.int64], begin: Times, seconds: float) -> Times:
    """When the links have carried all of a round: each begins with its first message."""
    first = np.full(len(links), np.inf)
    np.minimum.at(first, used, begin)
    count = np.bincount(used, minlength=len(links))
    busy = count > 0
    links[busy] = np.maximum(links[busy], first[busy]) + count[busy] * seconds
    return links[used]


def _pipeline(fabric: Fabric, shard: float, stages: Sequence[Stage], pieces: int) -> float:
    """Every piece through all stages."""
    run = _LockstepRun(fabric)
    ready = [run.start] * pieces
    for level, piece in _order(len(stages), pieces):
        ready[piece] = run.stage(stages[level], shard / pieces, ready[piece])
    return run.end


def _exchange(fabric: Fabric, chunk: float, lines: Lines, pieces: int) -> float:
    """Every part inside its node, then along rails; parts for many nodes need no more pieces."""
    nodes = math.prod(len(along[0]) for along in lines[1:])
    parts = exchange_parts(fabric.tiers, lines, -(-pieces // nodes))
    run = _LockstepRun(fabric)
    ready = [run.start] * len(parts)
    for level, part in _order(2, len(parts)):
        ready[part] = run.stage(parts[part][level], chunk, ready[part])
    return run.end


def _order(stages: int, pieces: int) -> Iterator[tuple[int, int]]:
    """In which order a port serves (stage, piece): a piece two stages behind the one before it.

    So what a stage waits for came while others were served, and no port waits for it.
    """
    for wave in range(pieces + _BEHIND * stages):
        for level in reversed(range(stages)):
            if 0 <= wave - _BEHIND * level < pieces:
                yield level, wave - _BEHIND * level
