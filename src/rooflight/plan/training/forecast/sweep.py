"""The forecast of many layouts at once: what `step` does for one, in arrays.

In: `Points` of a template, its contractions, constants. Out: for every point, schedule and remat
policy the seconds of a step. Work depends on sizes alone, so it is priced once for all placements
of the same degrees (`Points.alike`); collectives are priced on every mesh. Nothing is shared with
the scalar forecast but the shares of stages and the form of the bubble: a search refuses to report
a layout whose two forecasts differ.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.algebra.steps import Step
from rooflight.costs.mesh_sweep import Floats
from rooflight.models.graph.ops import Graph, Op
from rooflight.plan.training.derive.algorithm import derive_again
from rooflight.plan.training.derive.derivation import Derived, DerivedLayer
from rooflight.plan.training.forecast.works import (
    ForecastSetting,
    Key,
    Recomputed,
    Works,
    kind_of,
    really_sent,
    tally_of,
)
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat
from rooflight.plan.training.time.compose import Seconds
from rooflight.plan.training.time.parts import (
    OPTIMIZER_BYTES,
    STACK_PASSES,
    bubble_part,
    elements_of,
    host_seconds,
)
from rooflight.plan.training.time.stage_time import HEAD, step_shares
from rooflight.plan.training.time.step_time import layer_runs
from rooflight.plan.training.time.sweep import Chooser, Points, combinations_of, placing
from rooflight.plan.training.time.traffic import experts_per_token


class Forecasts:
    """All points of a chunk, ready for any schedule and remat policy."""

    def __init__(
        self, points: Points, asked: Mapping[int, Sequence[Contraction]], setting: ForecastSetting
    ) -> None:
        self._points, self._setting = points, setting
        self._rates: dict[object, tuple[Floats, Floats]] = {}
        self._lines: dict[object, Floats] = {}
        few, self._of = points.alike
        self._works = Works(few, setting)
        self._chooser = Chooser(points)
        self._layers = {b: self._layer(b, ops, asked[b]) for b, ops in layer_runs(self._graph)}
        self._held: dict[object, dict[int, Floats]] = {}
        self._update_s = self._updates()
        self._sent = self._transfers()

    @property
    def _graph(self) -> Graph:
        return self._points.sizes.graph

    # One layer of each kind, in one microbatch.

    def _layer(
        self, block: int, ops: Sequence[Op], asked: Sequence[Contraction]
    ) -> dict[Key, Floats]:
        points, graph = self._points, self._graph
        recomputed = self._works.recomputed(block, ops)
        totals: dict[Key, Floats] = {}
        for where, chosen in combinations_of(self._chooser, asked):
            derivation = derive_again(graph, tuple(ops), points.layout, chosen.__getitem__)
            everywhere = len(where) == len(points)
            for key, (of_few, values) in self._sums(derivation, recomputed).items():
                seconds = values[self._of] if of_few and len(values) > 1 else values
                total = totals.setdefault(key, np.zeros(len(points)))
                if everywhere:
                    total += seconds
                else:
                    total[where] += seconds[where] if len(seconds) > 1 else seconds
        for name, saved in points.sizes.saved.items():
            if saved[block].on_host and block != HEAD:
                placed = map(points.layout.of_activation, saved[block].tensors)
                held = sum((points.elements(t) for t in placed), np.zeros(1))
                totals["host", name] = np.broadcast_to(points.bytes(held), len(points))
        for key, values in self._works.passes(ops, recomputed).items():
            seconds = values[self._of] if len(values) > 1 else values
            totals[key] = totals.get(key, np.zeros(len(points))) + seconds
        return totals

    def _sums(
        self, derivation: DerivedLayer, recomputed: Recomputed
    ) -> dict[Key, tuple[bool, Floats]]:
        """Sums over the lines of a derivation; whether they are of the few points."""
        tally = tally_of(derivation, recomputed)
        found: dict[Key, tuple[bool, Floats]] = {}
        for part, works in tally.works.items():
            priced = [(self._works.matmul(kind, line), n) for kind, line, n in works]
            found["matmul", part] = True, _dot((s, n) for (s, _), n in priced)
            found["roof", part] = True, _dot((r, n) for (_, r), n in priced)
        casts = [(self._works.cast(t), n) for t, n in tally.casts]
        if casts and self._works.narrow < 1:
            found["memory", ""] = True, _dot((s, n) for (s, _), n in casts)
            roof = found["roof", ""][1] + _dot((r, n) for (_, r), n in casts)
            found["roof", ""] = True, roof
        for (part, wait), lines in tally.sent.items():
            chip_kind = self._points.meshes.slice.chip.kind
            sent = ((self._line(op, x), n) for x, n in lines for op in really_sent(x, chip_kind))
            found[wait, part] = False, _dot(sent)
        return found | self._exposed(derivation, recomputed)

    def _exposed(
        self, derivation: DerivedLayer, recomputed: Recomputed
    ) -> dict[Key, tuple[bool, Floats]]:
        """What hops take longer than the parts of their matmuls, pass by pass."""
        found: dict[Key, tuple[bool, Floats]] = {}
        for side in (derivation.forward, derivation.backward):
            sent = [line for line in side if line.hops]
            if not sent:
                continue
            names = {line.op.name for line in sent}
            devices = self._points.split(sent[0].step.axes)
            beside = [x for x in side if x.step.op == "einsum" and x.op.name in names]
            works = _dot((self._works.matmul(kind_of(x), x)[0], 1) for x in beside)
            works = works[self._of] if len(works) > 1 else works
            last = [line for line in sent if line.step.op == "reduce_scatter"]
            home = _dot((self._line(x.step.op, x), 1) for x in last) / devices
            hops = _dot((self._line(x.step.op, x), 1) for x in sent)
            seconds = np.maximum(home, hops - works * (1 - 1 / devices))
            again = [n for n, ops in recomputed if names & ops and side is derivation.forward]
            for part in ("", *again):
                _, before = found.get(("exposed", part), (False, np.zeros(1)))
                found["exposed", part] = False, before + seconds
        return found

    def _line(self, op: str, line: Derived) -> Floats:
        """Seconds of one collective; layers that choose other strategies share most of them."""
        step = line.step
        if line.hops:
            count, nbytes, _ = self._points.hops(step)
            per_byte, latency_s = self._rate("shift", step.axes)
            return count * (nbytes * per_byte + latency_s)
        exchanged = op in ("all_to_all", "permute") and line.waits == "critical"
        copies = experts_per_token(self._graph) if exchanged else 1
        key = op, step.op, frozenset(step.axes), copies, placing(step.larger)
        if key not in self._lines:
            per_byte, latency_s = self._rate(op, step.axes, copies)
            self._lines[key] = self._sent_bytes(op, step) * per_byte + latency_s
        return self._lines[key]

    def _rate(self, op: str, axes: Axes, copies: int = 1) -> tuple[Floats, Floats]:
        """Seconds per byte and of latency of a collective, on every point."""
        key = op, frozenset(axes), copies
        if key not in self._rates:
            found, values = self._points.rates(op, axes, copies), self._setting.values
            per_byte = found.near / values["near_links"] + found.far / values["far_links"]
            self._rates[key] = per_byte, found.latency_s
        return self._rates[key]

    def _sent_bytes(self, op: str, step: Step) -> Floats:
        points = self._points
        without = step.axes if step.op == "all_to_all" else ()
        return points.bytes(points.elements(step.larger, without))

    # A step of one schedule.

    def seconds(self, micro: Microbatching, remat: Remat) -> Seconds:
        """A stage, the bubble, the update; nonsense where the schedule has no table."""
        points, values = self._points, self._setting.values
        count = points.count.astype(np.float64)
        matmuls, memory = (self._stage(micro, remat, what) for what in ("matmul", "memory"))
        work = count * (matmuls + memory)
        waits = {w: count * self._stage(micro, remat, w) for w in ("experts", "weights")}
        waits["activations"] = count * self._stage(micro, remat, "activations")
        if self._sent is not None:
            waits["activations"] = waits["activations"] + 2 * micro.virtual * count * self._sent
        once = self._stage(micro, remat, "once")
        collectives = once + sum(waits.values()) + count * self._stage(micro, remat, "hops")
        exposed = (1 - values["overlap_activations"]) * waits["activations"]
        exposed = exposed + (1 - values["overlap_experts"]) * waits["experts"]
        exposed = exposed + count * self._stage(micro, remat, "exposed")
        hidden = values["overlap_weights"]
        once = once - hidden * np.minimum(once, (work + exposed) / count)
        shown = waits["weights"] - hidden * np.minimum(waits["weights"], work + exposed)
        each = np.maximum(work + exposed + shown, self._host_s(micro, remat))
        bubble = bubble_part(micro, points.num_stages, in_step=self._setting.in_step)
        total = each * (1 + bubble / count) + once + self._update_s + values["step_s"]
        return Seconds(total, collectives)

    def _host_s(self, micro: Microbatching, remat: Remat) -> Floats:
        """Activations out to the host and back."""
        chip = self._points.meshes.slice.chip
        return host_seconds(chip, self._points.count * self._stage(micro, remat, "host"))

    def _stage(self, micro: Microbatching, remat: Remat, what: str) -> Floats:
        """A sum over the layers of the slowest stage, in one microbatch."""
        held = self._slowest(micro, remat)
        total = np.zeros(len(self._points))
        for block, layers in held.items():
            total = total + layers * self._of_block(block, remat, what)
        return total

    def _of_block(self, block: int, remat: Remat, what: str) -> Floats:
        sums, part, none = self._layers[block], self._works.part(block, remat), np.zeros(1)
        return sums.get((what, ""), none) + sums.get((what, part), none)

    def _slowest(self, micro: Microbatching, remat: Remat) -> dict[int, Floats]:
        """What the stage with most work at the roofs runs of each block, on every point."""
        key = micro.schedule, micro.virtual, remat.name
        if key not in self._held:
            self._held[key] = self._find_slowest(micro, remat)
        return self._held[key]

    def _find_slowest(self, micro: Microbatching, remat: Remat) -> dict[int, Floats]:
        points, blocks = self._points, tuple(self._layers)
        roofs = {b: self._of_block(b, remat, "roof") for b in blocks}
        held = {b: np.zeros(len(points)) for b in blocks}
        order, in_step = self._graph.order, self._setting.in_step
        for number, stages in enumerate(points.distinct_stages):
            at = np.flatnonzero(points.stages_of == number)
            shares = step_shares(order, int(stages), micro, in_step=in_step)
            if len(shares) > 1:
                whole = np.stack([sum(n * roofs[b][at] for b, n in s.items()) for s in shares])
                most = whole.argmax(axis=0)
            else:
                most = np.zeros(len(at), np.int64)
            for b in blocks:
                held[b][at] = np.array([s.get(b, 0.0) for s in shares])[most]
        return held

    def _transfers(self) -> Floats | None:
        """To the next stage, one way, for one chunk of layers."""
        points = self._points
        layout = points.layout
        if not layout.stages:
            return None
        per_byte, latency_s = self._rate("shift", layout.stages)
        stream = layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
        nbytes = points.bytes(points.elements(stream))
        return (nbytes * per_byte + latency_s) * (points.num_stages > 1)

    def _updates(self) -> Floats:
        """The optimizer's pass; on a host also the stacks of weights that a program scans."""
        points, graph = self._points, self._graph
        on = points.meshes.slice
        hbm = on.chip.hbm_bytes_per_s or np.inf
        params = sum(elements_of(graph, p.tensor) * p.count for p in graph.params)
        moved = np.full(1, OPTIMIZER_BYTES * params / on.num_chips)
        if on.chip.kind == "cpu":
            place = points.layout.of_weight
            held = [p.count * points.elements(place(p.tensor)) for p in graph.params]
            moved = moved + STACK_PASSES * points.bytes(sum(held, np.zeros(1)))
        return moved / hbm / self._setting.values["memory"]


def _dot(pairs: Iterable[tuple[Floats, float]]) -> Floats:
    return sum((n * values for values, n in pairs), np.zeros(1))
