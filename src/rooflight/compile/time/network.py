"""What one collective of a compiled step takes on the mesh, by the network model of `costs`.

In: a `Collective` of the reader and the mesh of the target. Out: seconds and the lane it occupies:
the mesh axes it runs along, and for a permute the direction, since links carry both at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.groups import read_groups
from rooflight.compile.hlo.instruction import Instruction
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.hardware.mesh import Fan, Group, Mesh, Ring

_SAME_PRICE = {"ragged_all_to_all": "all_to_all", "broadcast": "all_gather"}


@dataclass(frozen=True, slots=True)
class InFlight:
    """A collective in the air: for how long, along which axes, in which lane of theirs."""

    axes: str  # "X", "X+Y", "dcn"
    lane: str
    seconds: float


def flight(found: Collective, instruction: Instruction, mesh: Mesh) -> InFlight | None:
    """The flight of one execution; None if its groups are not axes of the mesh.

    A group that covers only a part of its axes runs inside a slice if it fills that part of them,
    else over as many of their dims as it fills; where it fills none it is priced as the whole.
    """
    named = found.axes is not None and all(a in mesh.segments for a in found.axes)
    kind = _kind(found.kind)
    if not named or not found.axes or kind is None:
        return None
    group = _group(found, mesh.group(found.axes))
    seconds = collective_time(kind, found.nbytes, group).expected_s
    axes = "dcn" if found.form == "dcn" else "+".join(found.axes)
    turn = _turn(instruction) if kind == "permute" else ""
    return InFlight(axes, axes + turn, seconds)


def _kind(name: str) -> CollectiveKind | None:
    return next((k for k in KINDS if k == _SAME_PRICE.get(name, name)), None)


def _group(found: Collective, group: Group) -> Group:
    if found.form == "dcn":  # each chip sends its own part of the array to its peer elsewhere
        return Group((), tuple(replace(fan, members=1) for fan in group.fans))
    if found.is_whole or found.group_size is None:
        return group
    return _part(group.rings, group.fans, found.group_size)


def _part(rings: Sequence[Ring], fans: Sequence[Fan], size: int) -> Group:
    """The first dims of a group that together have `size` members."""
    for count in range(1, len(rings) + 1):
        if math.prod(r.size for r in rings[:count]) == size:
            return Group(tuple(rings[:count]), ())
    return Group(tuple(rings), tuple(fans))


def _turn(permute: Instruction) -> str:
    """Which way round most devices send."""
    pairs = read_groups(permute.attributes) or ()
    ups = sum(pair[-1] > pair[0] for pair in pairs)
    return " up" if 2 * ups >= len(pairs) else " down"
