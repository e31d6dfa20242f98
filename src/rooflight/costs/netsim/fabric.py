"""Collectives behind switches: chips have an NVLink port and a NIC, and each send passes a switch.

In: a `Mesh` whose slice has switched tiers only (GPUs), bytes, some of its axes. Out: flights of
`engine`. A message goes up by its source's port and down by its target's (store and forward); one
that crosses the spine also passes the uplinks of both leaves. So ports and uplinks are what is
busy; a switch itself never is. Leaf and spine share a chip's NIC. A gather goes tier by tier from
the outside in, straight to every peer; `lockstep` has the rings and trees of real ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from rooflight.costs.netsim.engine import Flight, busiest, end_of, fly
from rooflight.costs.netsim.gather import own_units
from rooflight.costs.netsim.rails import Round, Stage
from rooflight.costs.netsim.torus import TICKS_PER_S, Cargo, Message
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import SwitchDim

_CUTS = (1, 4, 16, 64)  # pieces; a piece goes down while the next one goes up
_MAX_MESSAGES = 40_000
_ENOUGH = 1.01
_MOST_EXCHANGING = 64  # chips; every pair of them has a message of its own
_NVLINK, _NIC = 0, 1  # ports of a chip
_LEAF, _SPINE = 1, 2  # tiers, the node being 0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The chips of one slice, numbered row by row, and the ports that join them.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> fabric = fabric_of(parse_mesh("X=16", on="h100:8x2"))
    >>> fabric.num_chips, fabric.tier(0, 7), fabric.tier(0, 9)
    (16, 0, 1)
    """

    tiers: tuple[SwitchDim, ...]  # inner first

    @property
    def num_chips(self) -> int:
        return self.tiers[-1].size * self.tiers[-1].unit_chips

    def tier(self, source: int, target: int) -> int:
        """The innermost tier whose switch joins two chips."""
        joins = (
            source // (t.size * t.unit_chips) == target // (t.size * t.unit_chips)
            for t in self.tiers
        )
        return next(level for level, joined in enumerate(joins) if joined)

    def switch(self, tier: int, chip: int) -> int:
        """The number of the switch above a chip: after those of chips and of inner switches."""
        sizes = [t.size * t.unit_chips for t in self.tiers]
        before = sum(self.num_chips // size for size in sizes[:tier])
        return self.num_chips + before + chip // sizes[tier]

    def lane(self, tier: int, source: int, target: int) -> int:
        """Where a message is inside a switch: a place of its own, as nothing is added there.

        The switch is the one above the target; as tier 3 counts the leaf above the source.
        """
        return self.num_chips * (1 + self.num_chips * tier + source) + target

    def place(self, vertex: int) -> int:
        """A chip as it is, a lane as the number of its switch."""
        if vertex < self.num_chips:
            return vertex
        above, target = divmod(vertex, self.num_chips)
        tier, source = divmod(above - 1, self.num_chips)
        return self.switch(_LEAF, source) if tier > _SPINE else self.switch(tier, target)

    def way(self, source: int, target: int) -> list[tuple[int, int, float]]:
        """Links from a chip to another: its number, the place it leads to, bytes per second."""
        level = self.tier(source, target)
        tier = self.tiers[level]
        port, rate = _NVLINK, tier.egress_bytes_per_s
        if level:
            port, rate = _NIC, tier.nic_bytes_per_s or tier.egress_bytes_per_s / tier.unit_chips
        up, down = (2 * (2 * chip + port) for chip in (source, target))
        if level < _SPINE:
            return [(up + 1, self.lane(level, source, target), rate), (down, target, rate)]
        first = 4 * self.num_chips
        out, back = (first + 2 * (chip // tier.unit_chips) for chip in (source, target))
        return [
            (up + 1, self.lane(_SPINE + 1, source, target), rate),
            (out + 1, self.lane(_SPINE, source, target), tier.egress_bytes_per_s),
            (back, self.lane(_LEAF, source, target), tier.egress_bytes_per_s),
            (down, target, rate),
        ]


def fabric_of(mesh: Mesh) -> Fabric:
    """The fabric of a slice; chips of a torus have none."""
    tiers = tuple(d for d in reversed(mesh.slice.dims) if isinstance(d, SwitchDim))
    if len(tiers) < len(mesh.slice.dims) or not tiers[0].egress_bytes_per_s:
        raise UsageError(
            f"{mesh.slice} has no switches that join all its chips, and only those are simulated",
            hint="name a slice behind switches, such as h100:8x2",
        )
    return Fabric(tiers)


def switched_groups(mesh: Mesh, axes: Sequence[str]) -> list[list[int]]:
    """The members of each chip's own group, in the order of their numbers."""
    dims = mesh.slice.dims
    places = list(product(*(range(d.size) for d in dims)))
    names = [d.name for d in dims]
    fixed = [s for axis, parts in mesh.segments.items() if axis not in axes for s in parts]
    keys = [
        tuple(place[names.index(s.dim)] // s.stride % s.size for s in fixed) for place in places
    ]
    members: dict[tuple[int, ...], list[int]] = {}
    for chip, key in enumerate(keys):
        members.setdefault(key, []).append(chip)
    return [members[key] for key in keys]


@dataclass(frozen=True, slots=True)
class _MessageBuilder:
    """Messages in the making."""

    fabric: Fabric
    messages: list[Message] = field(default_factory=list[Message])

    def send(self, cargo: Cargo, source: int, target: int, after: Sequence[int]) -> int:
        """Over every link of the way; the index of the last message."""
        way = self.fabric.way(source, target)
        hop_s = self.fabric.tiers[self.fabric.tier(source, target)].hop_s
        flight = round(hop_s * TICKS_PER_S / 2)  # half of it up, half of it down
        at, waits = source, tuple(after)
        for link, to, rate in way:
            is_last = to == target
            self.messages.append(
                Message(
                    link=link,
                    back_link=link ^ 1,
                    source=at,
                    target=to,
                    nbytes=cargo.nbytes,
                    send_ticks=round(cargo.nbytes / rate * TICKS_PER_S),
                    flight_ticks=flight if at == source or is_last else 0,
                    after=waits,
                    rank=cargo.rank,
                    piece=cargo.piece,
                    units=cargo.units,
                    lands=is_last,
                )
            )
            at, waits = to, (len(self.messages) - 1,)
        return waits[0]


def gather(fabric: Fabric, nbytes: float, groups: list[list[int]]) -> list[Flight]:
    """Every chip ends with the shards of its whole group."""
    shard = nbytes / len(groups[0])
    return _fastest(lambda pieces: _gather(fabric, shard / pieces, groups, pieces))


def _gather(fabric: Fabric, nbytes: float, groups: list[list[int]], pieces: int) -> list[Message]:
    builder = _MessageBuilder(fabric)
    for piece in range(pieces):
        blocks = [own_units(chip) for chip in range(fabric.num_chips)]
        ready: list[list[int]] = [[] for _ in blocks]
        for level in reversed(range(len(fabric.tiers))):
            gathered, arrived = list(blocks), [[*waits] for waits in ready]
            for chip in range(fabric.num_chips):
                units = blocks[chip]
                amount = nbytes * units.bit_count() / 2
                cargo = Cargo(amount, piece, units, piece - (level << 20))
                for peer in _peers(fabric, groups[chip], chip, level):
                    arrived[peer].append(builder.send(cargo, chip, peer, ready[chip]))
                    gathered[peer] |= units
            blocks, ready = gathered, arrived
    return builder.messages


def _peers(fabric: Fabric, members: Sequence[int], chip: int, level: int) -> list[int]:
    """Members in the same place of the other units of a tier, the next one first."""
    unit = fabric.tiers[level].unit_chips
    below = [m for m in members if m // unit == chip // unit]
    rank = below.index(chip)
    units: dict[int, list[int]] = {}
    for member in members:
        if member == chip or fabric.tier(chip, member) <= level:
            units.setdefault(member // unit, []).append(member)
    line = [unit_members[rank] for unit_members in units.values()]
    at = line.index(chip)
    return [*line[at + 1 :], *line[:at]]


def exchange(fabric: Fabric, nbytes: float, groups: list[list[int]]) -> list[Flight]:
    """Every chip ends with the chunk each of its group had for it, sent directly."""
    if fabric.num_chips > _MOST_EXCHANGING:
        raise UsageError(
            f"an all-to-all behind switches is simulated on up to {_MOST_EXCHANGING} chips, not"
            f" {fabric.num_chips}",
            hint="simulate a smaller slice, such as h100:8x2",
        )
    chunk = nbytes / len(groups[0]) ** 2

    def build(pieces: int) -> list[Message]:
        builder, chips = _MessageBuilder(fabric), fabric.num_chips
        for piece in range(pieces):
            for chip, members in enumerate(groups):
                for turn, peer in enumerate(_rotated(fabric, members, chip)):
                    units = 3 << 2 * (chip * chips + peer)
                    builder.send(Cargo(chunk / pieces, piece, units, turn), chip, peer, ())
        return builder.messages

    return _fastest(build)


def _rotated(fabric: Fabric, members: Sequence[int], chip: int) -> list[int]:
    """All other members, so many units and so many places on: no two chips meet at a port."""
    order = [chip]
    for level in reversed(range(len(fabric.tiers))):
        turns = [[m, *_peers(fabric, members, m, level)] for m in order]
        order = [m for turn in turns for m in turn]
    return order[1:]


def shift(fabric: Fabric, nbytes: float, groups: list[list[int]]) -> list[Flight]:
    """Every chip ends with the bytes of the chip before it in its group."""
    targets = next_members(groups)

    def build(pieces: int) -> list[Message]:
        builder = _MessageBuilder(fabric)
        for piece in range(pieces):
            for chip, target in targets.items():
                builder.send(Cargo(nbytes / pieces, piece, 1 << chip, piece), chip, target, ())
        return builder.messages

    return _fastest(build)


def shift_stage(fabric: Fabric, groups: list[list[int]]) -> Stage:
    """The same as rounds, one for each tier that some chips cross."""
    targets = next_members(groups)
    tiers = [fabric.tier(chip, targets[chip]) for chip in range(fabric.num_chips)]
    return [
        Round(tier, tuple(targets[c] if t == tier else c for c, t in enumerate(tiers)), 1)
        for tier in sorted(set(tiers))
    ]


def next_members(groups: list[list[int]]) -> dict[int, int]:
    """The chip after each one in its group, the first after the last."""
    return {
        chip: members[(members.index(chip) + 1) % len(members)]
        for chip, members in enumerate(groups)
    }


def _fastest(build: Callable[[int], list[Message]]) -> list[Flight]:
    """Whole messages are best when latency binds, pieces when bandwidth does.

    It stops near what the busiest port takes after one way up and down.
    """
    best = fly(build(_CUTS[0]))
    fewest = len(best)
    floor = _ENOUGH * (busiest(best) + 2 * max(f.message.flight_ticks for f in best))
    for pieces in _CUTS[1:]:
        if end_of(best) <= floor or pieces * fewest > _MAX_MESSAGES:
            break
        best = min(best, fly(build(pieces)), key=end_of)
    return best
