"""The forecast of one training step, in plain floats: each part of the step under its constant.

In: the `Parts` of a step and the constants of a `Basis`. Out: a `Forecast`. These are the formulas
of `calibrated`, which has them in arrays for fits, and of `forecast.sweep`, which has them in
arrays for searches; tests hold the three against each other.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rooflight.plan.training.forecast.basis import Basis, Values, efficiency_name, memory_name
from rooflight.plan.training.time.parts import TrainingRun, training_parts
from rooflight.plan.training.time.traffic import Traffic
from rooflight.plan.training.time.work import Hops, Parts, Work

MATMULS = ("matmul", "experts", "attention")  # kinds of work that are matmuls


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step by what they are spent on."""

    matmuls_s: float
    memory_s: float  # passes over HBM between matmuls
    exposed_s: float  # collectives that nothing hides
    bubble_s: float
    update_s: float  # the optimizer, and what of the last gradients' sums is not hidden
    fixed_s: float
    collectives_s: float = 0.0  # all of them, hidden ones too; not a part of the total

    @property
    def total_s(self) -> float:
        parts = (self.matmuls_s, self.memory_s, self.exposed_s, self.bubble_s, self.update_s)
        return sum(parts) + self.fixed_s

    @property
    def named(self) -> dict[str, float]:
        """By the words that people read."""
        return {
            "matmuls": self.matmuls_s,
            "memory passes": self.memory_s,
            "exposed communication": self.exposed_s,
            "pipeline bubble": self.bubble_s,
            "optimizer": self.update_s,
            "fixed": self.fixed_s,
        }

    @property
    def binds(self) -> str:
        """What takes longest."""
        return max(self.named, key=lambda name: self.named[name])


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds that a step will take, the 80 % interval, and what they rest on."""

    seconds: float
    low_s: float
    high_s: float
    mfu: float
    breakdown: Breakdown
    basis: Basis

    def widened(self, spread: float) -> "Forecast":
        """With an interval of at least so many logs on either side."""
        most = max(spread, self.basis.spread)
        low_s, high_s = (self.seconds * math.exp(sign * most) for sign in (-1, 1))
        return replace(self, low_s=low_s, high_s=high_s)


def forecast_run(run: TrainingRun, basis: Basis) -> Forecast:
    """Forecasts one step of a run.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.layout.rules import parse_layout
    >>> from rooflight.plan.training.forecast.basis import basis_of
    >>> from rooflight.models.presets import load_model
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> graph, layout = model_graph(load_model("llama3-8b")), parse_layout("fsdp=X")
    >>> run = TrainingRun(graph, layout, parse_mesh("X=256", on="v5e:16x16"), 512, 4096)
    >>> found = forecast_run(run, basis_of(run.mesh.slice.chip, "maxtext", experts=False))
    >>> found.low_s < found.seconds < found.high_s, found.mfu < 1
    (True, True)
    """
    parts = training_parts(run)
    breakdown = step_breakdown(parts, basis.values)
    seconds = breakdown.total_s
    low_s, high_s = basis.interval(seconds)
    mfu = parts.model_flops / parts.peak_flops / seconds
    return Forecast(seconds, low_s, high_s, mfu, breakdown, basis)


def step_breakdown(parts: Parts, values: Values) -> Breakdown:
    """Prices every part; what collectives hide behind is what is left of the work."""
    each = [(w, w.count * _work_s(w, values)) for w in parts.works]
    matmuls = sum(s for w, s in each if w.kind in MATMULS and not w.once)
    memory = sum(s for w, s in each if w.kind not in MATMULS and not w.once)
    work = matmuls + memory
    waits = _waits(parts, values)
    exposed = (1 - values["overlap_activations"]) * waits["activations"]
    exposed += (1 - values["overlap_experts"] * parts.hides_exchanges) * waits["experts"]
    exposed += sum(h.count * _exposed_s(h, values) for h in parts.hops)
    hidden = values["overlap_weights"]
    last = (work + exposed) / parts.microbatches
    once = waits["once"] - hidden * min(waits["once"], last)
    exposed += waits["weights"] - hidden * min(waits["weights"], work + exposed)
    exposed += max(0.0, parts.host_s - work - exposed)
    bubble = (work + exposed) * parts.bubble / parts.microbatches
    update = sum(s for w, s in each if w.once) + once
    fixed = values["step_s"] if parts.is_step else 0.0
    sent = sum(waits.values()) + sum(h.count * _sent_s(h.traffic, values) for h in parts.hops)
    return Breakdown(matmuls, memory, exposed, bubble, update, fixed, sent)


def _exposed_s(hops: Hops, values: Values) -> float:
    """A hop waits for nothing of its round: n - 1 of n parts of the works hide as many hops."""
    beside = sum(_work_s(w, values) for w in hops.works) * (1 - 1 / hops.devices)
    return max(_sent_s(hops.last, values), _sent_s(hops.traffic, values) - beside)


def _sent_s(traffic: Iterable[Traffic], values: Values) -> float:
    return sum(t.count * _traffic_s(t, values) for t in traffic)


def _traffic_s(traffic: Traffic, values: Values) -> float:
    rate = values["near_links"] if traffic.tier == "fast" else values["far_links"]
    return traffic.bandwidth_s / rate + traffic.latency_s


def _work_s(work: Work, values: Values) -> float:
    efficiency = values[efficiency_name(work.kind, work.dtype)]
    if work.kind == "experts":
        efficiency *= values["experts"]
    passed = work.bytes_s / values[memory_name(work.kind)]
    return max(work.flops_s / efficiency, passed) + (
        0.0 if work.once else values["matmul_launch_s"]
    )


def _waits(parts: Parts, values: Values) -> Mapping[str, float]:
    """Seconds of collectives by what waits for them."""
    found: dict[str, float] = {"activations": 0.0, "experts": 0.0, "weights": 0.0, "once": 0.0}
    for t in parts.traffic:
        wait = "experts" if t.is_exchange else "activations" if t.is_critical else "weights"
        found["once" if t.once else wait] += t.count * _traffic_s(t, values)
    return found
