"""A collective on a slice: its price, its simulation where it can be drawn, the film of that."""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.netsim.watch import Moment, Watched, watch
from rooflight.costs.network import CollectiveKind, NetworkTime, collective_time
from rooflight.hardware.mesh import Mesh
from rooflight.ui.answer import Film, Frame, ViewLink, show_seconds
from rooflight.ui.svg.hops import Arrow, HopsStill, hops_svg, network_layout
from rooflight.units import format_si

_MOST_DRAWN = 64  # chips of a torus; more take long to simulate and to look at
_MOST_SWITCHED = 16  # behind switches, where every chip has a line to every switch
_MOST_IN_FULL = 16  # with every way to cut messages tried, as `rooflight collective` does
_MESSAGES = 20_000  # of a larger one


@dataclass(frozen=True, slots=True)
class HopsResult:
    """One collective on a group: the formula, and the simulation where it is small enough."""

    mesh: Mesh
    axes: tuple[str, ...]
    time: NetworkTime
    seen: Watched | None

    @property
    def chips(self) -> int:
        return self.mesh.group(self.axes).size

    @property
    def name(self) -> str:
        return self.time.kind.replace("_", "-")

    @property
    def simulated_s(self) -> float | None:
        return self.seen.result.seconds if self.seen else None


def priced_run(kind: CollectiveKind, nbytes: float, mesh: Mesh, axes: Sequence[str]) -> HopsResult:
    """Prices it, and simulates it if it can be drawn."""
    time = collective_time(kind, nbytes, mesh.group(axes))
    return HopsResult(mesh, tuple(axes), time, _watched(kind, nbytes, mesh, axes))


def _watched(
    kind: CollectiveKind, nbytes: float, mesh: Mesh, axes: Sequence[str]
) -> Watched | None:
    """The simulation, if the slice is one that can be drawn."""
    on = mesh.slice
    most = _MOST_DRAWN if on.chip.torus else _MOST_SWITCHED if on.chip.switched else 0
    if mesh.group(axes).size == 1 or on.num_slices > 1 or on.num_chips > most:
        return None
    if on.num_chips <= _MOST_IN_FULL:
        return watch(kind, nbytes, mesh, axes)
    return watch(kind, nbytes, mesh, axes, most=12, messages=_MESSAGES)


def effort(run: HopsResult) -> str:
    """How thoroughly it was simulated."""
    is_full = run.mesh.slice.num_chips <= _MOST_IN_FULL
    return "every hop" if is_full else f"every hop, cut into at most {_MESSAGES:,} messages"


def where(run: HopsResult) -> str:
    """Axes, mesh and slice in a sentence."""
    layout = "" if not run.seen else f", drawn as a {network_layout(run.mesh.slice).shape}"
    return f"Over {', '.join(run.axes)} of mesh {run.mesh} on {run.mesh.slice}{layout}."


def too_many(run: HopsResult) -> list[str]:
    """Why there is no film, where there is none."""
    if run.seen:
        return []
    return [
        f"{run.mesh.slice} is not drawn: hops can be watched on one slice of up to {_MOST_DRAWN}"
        f" chips of a torus or {_MOST_SWITCHED} behind switches, in groups of two or more."
    ]


def hops_film(run: HopsResult, key: str = "hops") -> Film:
    """The hops, moment by moment."""
    assert run.seen, "only a simulated run can be watched"
    layout, seen = network_layout(run.mesh.slice), run.seen
    title = f"{run.name} of {format_si(run.time.nbytes, 'B')}"
    frames = [
        Frame(hops_svg(_still(moment, title, seen), layout), _words(moment, run))
        for moment in seen.moments
    ]
    caption = (
        "A box is a chip, a cell in it one part of the array, filled as far as it is there; an"
        " arrow is a link that sends. Cells are numbered within the group."
    )
    return Film(key, title, tuple(frames), caption, _pace(len(frames)))


def _pace(count: int) -> float:
    """Seconds of a still: a film of many takes a quarter of a second each."""
    return 1.0 if count <= 12 else 0.25


def _still(moment: Moment, title: str, seen: Watched) -> HopsStill:
    arrows = tuple(
        Arrow(m.source, m.target, m.label.removeprefix("shard ").removeprefix("chunk "))
        for m in moment.moves
    )
    return HopsStill(title, moment.end_s, seen.result.seconds, moment.cells, arrows)


def _words(moment: Moment, run: HopsResult) -> str:
    state = _state(moment.cells[0], run)
    if not moment.moves:
        return f"At the start chip 0 {state}."
    moved = sum(m.nbytes for m in moment.moves)
    return (
        f"Until {show_seconds(moment.end_s)}: {len(moment.moves)} links send"
        f" {format_si(moved, 'B')}; then chip 0 {state}."
    )


def _state(cells: Sequence[float], run: HopsResult) -> str:
    """What the first chip has by then; it owns the first block of its group."""
    count, kind = len(cells), run.time.kind
    is_summing = kind == "reduce_scatter" or (kind == "all_reduce" and cells[0] < 1 - 1e-6)
    if is_summing:
        return f"has added up {cells[0] * count:.3g} of {count} terms of its block"
    if kind == "all_to_all":
        return f"has {sum(cells):.3g} of the {count} chunks meant for it"
    return f"holds {sum(cells):.3g} of {count} {'shards' if kind == 'all_gather' else 'sums'}"


def elsewhere(run: HopsResult) -> tuple[ViewLink, ...]:
    """The same bytes on the other kinds of network."""
    kind, nbytes = run.name, str(round(run.time.nbytes))
    places = (
        ("a ring", "v5e:16x1"),
        ("a line", "v5e:8x1"),
        ("a mesh", "v5e:4x4"),
        ("a torus with links round the ends", "v5p:4x4x4"),
        ("a switch", "h100:8"),
        ("two nodes", "h100:4x2"),
    )
    return tuple(
        ViewLink(
            f"The same on {what}: {on}",
            "collectives",
            (("kind", kind), ("bytes", nbytes), ("on", on)),
        )
        for what, on in places
        if on != str(run.mesh.slice)
    )


def run_command(run: HopsResult) -> str:
    """What prints the same times."""
    trace = " --trace hops.json" if run.seen else ""
    return (
        f"rooflight collective {run.name} --bytes {round(run.time.nbytes)} --on"
        f' "{run.mesh.slice}" --mesh {run.mesh} --axes {",".join(run.axes)}{trace}'
    )
