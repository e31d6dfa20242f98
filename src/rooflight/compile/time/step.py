"""The time of a compiled step: its schedule walked, op by op, loops multiplied out.

In: a `CompiledStep` with the compiler's cycle estimates (of a GPU our roofline's seconds), and the
mesh it was compiled for. Out: a `CompiledTime`. One op at a time keeps the chip busy, in the order
of the schedule. A collective with a start and a done runs meanwhile in the lanes of its mesh axes,
one after another in each; at its done the chip waits for what is left of it, and only that is
exposed. Copies between memories that have a start and a done run meanwhile too. Nothing here was
measured.

What one collective of a compiled step takes on the mesh, by the network model of `costs`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rooflight.compile.aot.target import usable_bytes
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.dump import Dump, read_dump
from rooflight.compile.hlo.groups import read_groups
from rooflight.compile.hlo.instruction import Computation, Instruction
from rooflight.compile.hlo.loops import read_loop
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.gpu import KernelError, gpu_rates, network_s
from rooflight.compile.time.op import BASES, PRICED, Basis, HloOpTime, OpPricer
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Fan, Group, Mesh, Ring, parse_mesh
from rooflight.units import parse_sizes

_SAME_PRICE = {"ragged_all_to_all": "all_to_all", "broadcast": "all_gather"}

_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
MEMORY_LANE = "copies"
_ROUNDING = 1e-9  # a wait this small a part of a transfer is none


@dataclass(frozen=True, slots=True)
class InFlight:
    """A collective in the air: for how long, along which axes, in which lane of theirs."""

    axes: str  # "X", "X+Y", "dcn"
    lane: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """Something that keeps a row of the timeline busy, in seconds from the start of its round."""

    row: str  # matrix, kernels, memory, copies, or mesh axes
    name: str
    start_s: float
    seconds: float
    waits_s: float = 0.0  # of a transfer: how long the chip stood still at its end
    calls: str = ""  # of a loop: its body
    trips: int = 1


@dataclass(frozen=True, slots=True)
class Network:
    """Seconds per step along some mesh axes: those the chip waits for, and those it does not."""

    exposed_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True)
class CompiledTime:
    """Seconds of a step and what they are spent on."""

    seconds: float
    busy_s: Mapping[str, float]  # by unit; together with what is exposed, all of `seconds`
    network: Mapping[str, Network]  # by mesh axes
    copies: Network  # between memories, with a start and a done
    ops: Mapping[Basis, int]  # how many ops of the text have whose figure
    unknown: tuple[str, ...]  # ops and collectives without any: counted as nothing
    rounds: Mapping[str, tuple[Span, ...]]  # one round of every computation
    errors: Mapping[
        str, KernelError
    ]  # of our own roofline, by unit; none of the compiler's figures

    @property
    def known_share(self) -> float:
        """The part of all ops that carry the compiler's estimate, or are priced by our roofline."""
        total = sum(self.ops.values())
        return sum(self.ops[basis] for basis in PRICED) / total if total else 1.0

    @property
    def error(self) -> float | None:
        """What it is off by if all its parts are off one way, each by its 90th percentile."""
        network = math.fsum(network.exposed_s for network in self.network.values())
        spent = {**self.busy_s, "network": network}
        far = (self.errors[unit].p90 * s for unit, s in spent.items() if unit in self.errors)
        return math.fsum(far) / self.seconds if self.errors else None


def time_document(time: CompiledTime | None) -> dict[str, object] | None:
    """All but the timeline, for a machine."""
    if time is None:
        return None
    return {
        "seconds": time.seconds,
        "busy_s": dict(time.busy_s),
        "network": {axes: asdict(network) for axes, network in time.network.items()},
        "copies": asdict(time.copies),
        "ops": dict(time.ops),
        "unknown": list(time.unknown),
        "source": "roofline" if time.errors else "compiler",
        "error": time.error,
        "errors": {unit: asdict(spread) for unit, spread in time.errors.items()},
    }


def compiled_time(step: CompiledStep, mesh: Mesh, *, network_share: float = 1.0) -> CompiledTime:
    """Walks the schedule. Refuses a step without cycle estimates: its time is unknown.

    `network_share` is the part of the network model's speed that collectives were seen to reach.
    """
    walk = _TimelineWalk(
        step,
        mesh,
        OpPricer.of(step.module, mesh.slice.chip),
        {c.name: c for c in step.collectives},
        network_share,
    )
    whole = walk.round(step.module.computations[step.module.entry])
    if not step.module.is_scheduled or not any(walk.ops[basis] for basis in PRICED):
        raise UsageError(
            f"{step.module.name} has no cycle estimates, so its time is unknown",
            hint="compile it to the end: until='executable', or --until executable",
        )
    return CompiledTime(
        seconds=whole.clock,
        busy_s=whole.busy,
        network={axes: net for axes, net in whole.networks().items() if axes != MEMORY_LANE},
        copies=whole.networks().get(MEMORY_LANE, Network(0.0, 0.0)),
        ops=walk.ops,
        unknown=tuple(walk.unknown),
        rounds=walk.rounds,
        errors=gpu_rates().errors if walk.ops["roofline"] else {},
    )


def read_timed(
    dump: Dump, *, mesh: str = "", on: str = ""
) -> tuple[CompiledStep, CompiledTime | None, int | None]:
    """A dump; on a slice also its time, and the bytes of a device that a program may use there.

    `mesh` names the axes in the order of the jax mesh; a dump of ours says them itself.
    """
    if not on:
        return (
            read_dump(dump, axes=parse_sizes(mesh, what="mesh axis") if mesh else None),
            None,
            None,
        )
    sizes = dump.axes.sizes.items() if dump.axes else ()
    text = mesh or ",".join(f"{name}={size}" for name, size in sizes)
    if not text:
        raise UsageError(
            f"which mesh lies on {on}? The dump does not say",
            hint="name it in the order of the jax mesh: --mesh X=4,Y=4",
        )
    placed = parse_mesh(text, on=on)
    step = read_dump(dump, axes=placed.axes)
    return step, compiled_time(step, placed), usable_bytes(placed, placed.axes)


@dataclass(slots=True)
class _Walk:
    """One run of a computation as far as it was walked."""

    clock: float = 0.0
    busy: dict[str, float] = field(default_factory=dict[str, float])
    exposed: dict[str, float] = field(default_factory=dict[str, float])  # by mesh axes
    hidden: dict[str, float] = field(default_factory=dict[str, float])
    free: dict[str, float] = field(default_factory=dict[str, float])  # when a lane is, again
    landing: dict[str, tuple[InFlight, float, int]] = field(
        default_factory=dict[str, tuple[InFlight, float, int]]
    )
    spans: list[Span] = field(default_factory=list[Span])

    def work(self, name: str, time: HloOpTime) -> None:
        if time.seconds:
            self.spans.append(Span(time.unit, name, self.clock, time.seconds))
        _add(self.busy, time.unit, time.seconds)
        self.clock += time.seconds

    def start(self, name: str, trip: InFlight) -> None:
        """A lane carries one transfer after another."""
        begin = max(self.clock, self.free.get(trip.lane, 0.0))
        self.free[trip.lane] = begin + trip.seconds
        self.landing[name] = (trip, begin + trip.seconds, len(self.spans))
        self.spans.append(Span(trip.axes, name, begin, trip.seconds))

    def land(self, name: str) -> None:
        self._land(name, self.landing[name][1] - self.clock)

    def finish(self) -> None:
        """What ends in the next round of the loop has this round's length to do so."""
        for name in list(self.landing):
            self._land(name, self.landing[name][0].seconds - self.clock)

    def _land(self, name: str, left: float) -> None:
        """Waits for what is left of a transfer; behind others in its lane it may be more of it."""
        trip, _, at = self.landing.pop(name)
        least = _ROUNDING * trip.seconds
        waits = left if left > least else 0.0
        hidden = trip.seconds - waits
        self.spans[at] = replace(self.spans[at], waits_s=waits)
        _add(self.exposed, trip.axes, waits)
        _add(self.hidden, trip.axes, hidden if hidden > least else 0.0)
        self.clock += waits

    def repeat(self, loop: str, inner: "_Walk", trips: int, body: str) -> None:
        for total, part in (
            (self.busy, inner.busy),
            (self.exposed, inner.exposed),
            (self.hidden, inner.hidden),
        ):
            for key, seconds in part.items():
                _add(total, key, trips * seconds)
        seconds = trips * inner.clock
        if seconds:
            self.spans.append(Span("loops", loop, self.clock, seconds, calls=body, trips=trips))
        self.clock += seconds

    def networks(self) -> dict[str, Network]:
        return {
            axes: Network(self.exposed.get(axes, 0.0), self.hidden.get(axes, 0.0))
            for axes in self.exposed
        }


def _add(totals: dict[str, float], key: str, seconds: float) -> None:
    totals[key] = totals.get(key, 0.0) + seconds


@dataclass(slots=True)
class _TimelineWalk:
    """Walks computations, each once, and remembers what is not known."""

    step: CompiledStep
    mesh: Mesh
    pricer: OpPricer
    collectives: Mapping[str, Collective]
    network_share: float
    done: dict[str, _Walk] = field(default_factory=dict[str, _Walk])
    rounds: dict[str, tuple[Span, ...]] = field(default_factory=dict[str, tuple[Span, ...]])
    ops: dict[Basis, int] = field(default_factory=lambda: dict[Basis, int].fromkeys(BASES, 0))
    unknown: list[str] = field(default_factory=list[str])

    def round(self, computation: Computation) -> _Walk:
        if computation.name not in self.done:
            now = _Walk()
            ends = {c.done: c.name for c in self.collectives.values() if c.done}
            for instruction in computation.instructions:
                self._pass(computation, instruction, now, ends)
            now.finish()
            self.done[computation.name] = now
            self.rounds[computation.name] = tuple(now.spans)
        return self.done[computation.name]

    def _pass(
        self, computation: Computation, at: Instruction, now: _Walk, ends: Mapping[str, str]
    ) -> None:
        name = ends.get(at.name)
        if name in now.landing:
            now.land(name)
        elif at.opcode.endswith("-done") and at.operands and at.operands[0] in now.landing:
            now.land(at.operands[0])
        elif at.name in self.collectives:
            self._fly(self.collectives[at.name], at, now)
        elif at.opcode in _COPIES:
            seconds = self.pricer.copy_s(at)
            now.start(at.name, InFlight(MEMORY_LANE, MEMORY_LANE, seconds))
        elif at.opcode == "while":
            self._loop(computation, at, now)
        elif at.opcode in ("call", "conditional"):
            inner = [self.round(self.step.module.computations[c]) for c in at.called]
            if inner:
                longest = max(inner, key=lambda r: r.clock)
                now.repeat(at.name, longest, 1, at.called[inner.index(longest)])
        else:
            self._work(computation, at, now)

    def _fly(self, found: Collective, at: Instruction, now: _Walk) -> None:
        trip = flight(found, at, self.mesh)
        if trip is None:
            self.unknown.append(found.name)
            return
        now.start(found.name, replace(trip, seconds=trip.seconds / self.network_share))
        if found.form in ("sync", "fusion"):
            now.land(found.name)

    def _loop(self, computation: Computation, at: Instruction, now: _Walk) -> None:
        loop = read_loop(self.step.module, computation, at)
        if loop.trips is None:
            self.unknown.append(loop.name)
        inner = self.round(self.step.module.computations[loop.body])
        now.repeat(loop.name, inner, loop.trips or 1, loop.body)

    def _work(self, computation: Computation, at: Instruction, now: _Walk) -> None:
        time = self.pricer.price(computation, at)
        if time is None:
            return
        self.ops[time.basis] += 1
        if time.basis == "unknown":
            self.unknown.append(at.name)
        now.work(at.name, time)


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
    time = collective_time(kind, found.nbytes, group)
    is_gpu = mesh.slice.chip.kind == "gpu"
    seconds = network_s(time, gpu_rates()) if is_gpu else time.expected_s
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
