"""One collective on whatever joins the chips of a mesh: the links of a torus, or switches.

In: a kind, bytes, a `Mesh` and some of its axes. Out: a `CollectiveRun`, replayed and checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.netsim.check import check_copies, check_moves, check_sums
from rooflight.costs.netsim.collectives import (
    COLLECTIVES,
    MAX_MESSAGES,
    groups_of,
    held_chunks,
    held_shards,
    streams,
)
from rooflight.costs.netsim.engine import Flight, end_of, later, mirror
from rooflight.costs.netsim.fabric import (
    Fabric,
    exchange,
    fabric_of,
    gather,
    next_members,
    shift,
    switched_groups,
)
from rooflight.costs.netsim.torus import TICKS_PER_S, torus_of
from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.mesh import Mesh


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """Every flight, the group of each chip, and the switches if messages pass some."""

    flights: Sequence[Flight]
    num_chips: int
    groups: Sequence[Sequence[int]] = ()
    fabric: Fabric | None = None

    def place(self, vertex: int) -> int:
        """The chip or the switch a message leaves or reaches."""
        return self.fabric.place(vertex) if self.fabric else vertex


def run_collective(
    kind: str, nbytes: float, mesh: Mesh, axes: Sequence[str], *, most: int = MAX_MESSAGES
) -> CollectiveRun:
    """Runs it in every group of the mesh at once, cut into at most so many messages on a torus."""
    if kind not in COLLECTIVES:
        raise UnknownNameError("collective", kind, COLLECTIVES)
    if mesh.slice.chip.switched and mesh.slice.num_slices == 1:
        return _run_switched(kind, nbytes, mesh, axes)
    torus, group = torus_of(mesh.slice), mesh.group(axes)
    if any(f.size > 1 for f in group.fans):
        raise UsageError(
            f"axes {'+'.join(axes)} leave the torus, and torus links are simulated by themselves",
            hint="choose mesh axes that lie on x, y or z",
        )
    rings = tuple(r for r in group.rings if r.size > 1)
    flights: Sequence[Flight] = COLLECTIVES[kind](torus, nbytes, rings, most) if rings else []
    return CollectiveRun(flights, torus.num_chips, groups_of(torus, rings))


def _run_switched(kind: str, nbytes: float, mesh: Mesh, axes: Sequence[str]) -> CollectiveRun:
    fabric, groups = fabric_of(mesh), switched_groups(mesh, axes)
    flights: Sequence[Flight] = []
    if len(groups[0]) > 1:
        launch = round(fabric.tiers[0].launch_s * TICKS_PER_S)
        flights = later(_switched(kind, nbytes, fabric, groups), launch)
    return CollectiveRun(flights, fabric.num_chips, groups, fabric)


def _switched(
    kind: str, nbytes: float, fabric: Fabric, groups: list[list[int]]
) -> Sequence[Flight]:
    if kind == "permute":
        flights = shift(fabric, nbytes, groups)
        check_moves(flights, *streams(flights, next_members(groups)))
        return flights
    if kind == "all_to_all":
        flights = exchange(fabric, nbytes, groups)
        check_moves(flights, *held_chunks(groups, flights))
        return flights
    flights = gather(fabric, nbytes, groups)
    owned, whole = held_shards(groups, flights)
    check_copies(flights, owned, whole)
    if kind == "all_gather":
        return flights
    sums = mirror(flights)
    check_sums(sums, whole, owned)
    return sums if kind == "reduce_scatter" else [*sums, *later(flights, end_of(sums))]
