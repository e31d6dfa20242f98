"""The expected seconds of training steps under a calibration: a named sum over their parts.

In: `Parts` of one or many runs, and the constants. Out: a `Breakdowns`, in arrays because a fit
asks thousands of times.

    matmuls      max(FLOPs / matmul, bytes / memory) + matmul_launch_s, attention and experts alike
    memory        bytes / memory, those of dispatch / dispatch
    exposed       collectives that matmuls do not hide: a part of what activations wait for, and
                  of those of weights what exceeds overlap times the smaller of them and the work
    bubble        a microbatch's time for each that fills or drains the pipeline
    update        the optimizer, and what of the last gradients' sums is not hidden
    fixed         step_s
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.calibration import Constant, calibration_constants
from rooflight.plan.training.forecast.basis import MATMUL_CONSTANTS, PRECISIONS, ROOF, Values
from rooflight.plan.training.time.work import WORK_KINDS, Parts

Floats = NDArray[np.float64]
_KIND = {kind: index for index, kind in enumerate(WORK_KINDS)}
_WAITS = ("activations", "experts", "weights", "once")


@dataclass(frozen=True, slots=True)
class Breakdowns:
    """Seconds of each run by what they are spent on."""

    matmuls: Floats
    memory: Floats
    exposed: Floats
    bubble: Floats
    update: Floats
    fixed: Floats

    @property
    def total(self) -> Floats:
        return self.matmuls + self.memory + self.exposed + self.bubble + self.update + self.fixed


@dataclass(frozen=True, slots=True)
class PartTable:
    """The works of many runs in columns, and their traffic by tier and by what waits for it."""

    size: int
    run: NDArray[np.intp]
    kind: NDArray[np.intp]
    precision: NDArray[np.intp]
    flops_s: Floats
    bytes_s: Floats
    count: Floats
    once: NDArray[np.bool_]
    traffic: Mapping[tuple[str, str], Floats]  # seconds by wait and tier; latency has its own
    microbatches: Floats
    bubble: Floats
    steps: Floats  # 1 for a step, 0 for a kernel
    hides: Floats  # 0 for a step whose exchanges of tokens are known to wait alone

    @property
    def constants(self) -> Mapping[str, Constant]:
        """The constants that training depends on."""
        return calibration_constants()

    @property
    def roof(self) -> Values:
        """The values at which the catalog alone answers."""
        return ROOF

    def take(self, chosen: NDArray[np.bool_]) -> "PartTable":
        """The table of some of the runs."""
        number = np.cumsum(chosen) - 1
        rows = chosen[self.run]
        return PartTable(
            int(chosen.sum()),
            number[self.run[rows]],
            self.kind[rows],
            self.precision[rows],
            self.flops_s[rows],
            self.bytes_s[rows],
            self.count[rows],
            self.once[rows],
            {key: column[chosen] for key, column in self.traffic.items()},
            self.microbatches[chosen],
            self.bubble[chosen],
            self.steps[chosen],
            self.hides[chosen],
        )

    def seconds(self, values: Values) -> Breakdowns:
        """Prices every run with the same constants."""
        each = self._work_s(values) * self.count
        is_matmul = self.kind <= _KIND["attention"]
        matmuls = self._sum(each, is_matmul & ~self.once)
        memory = self._sum(each, ~is_matmul & ~self.once)
        work = matmuls + memory
        waited = {wait: self._waits(wait, values) for wait in _WAITS}
        exposed = (1 - values["overlap_activations"]) * waited["activations"]
        exposed += (1 - values["overlap_experts"] * self.hides) * waited["experts"]
        hidden = values["overlap_weights"]
        last = (work + exposed) / self.microbatches
        once = waited["once"] - hidden * np.minimum(waited["once"], last)
        exposed += waited["weights"] - hidden * np.minimum(waited["weights"], work + exposed)
        bubble = (work + exposed) * self.bubble / self.microbatches
        update = self._sum(each, self.once) + once
        return Breakdowns(matmuls, memory, exposed, bubble, update, values["step_s"] * self.steps)

    def _work_s(self, values: Values) -> Floats:
        matmul = np.array([values[name] for name in MATMUL_CONSTANTS])[self.precision]
        efficiency = np.where(self.kind == _KIND["experts"], matmul * values["experts"], matmul)
        efficiency = np.where(self.kind == _KIND["attention"], values["attention"], efficiency)
        rate = np.full(len(self.run), values["memory"])
        rate[self.kind == _KIND["dispatch"]] = values["dispatch"]
        rate[self.kind == _KIND["host"]] = values["far_links"]
        return np.maximum(self.flops_s / efficiency, self.bytes_s / rate) + np.where(
            self.once, 0.0, values["matmul_launch_s"]
        )

    def _sum(self, seconds: Floats, chosen: NDArray[np.bool_]) -> Floats:
        weights = np.where(chosen, seconds, 0.0)
        return np.bincount(self.run, weights, minlength=self.size).astype(np.float64)

    def _waits(self, wait: str, values: Values) -> Floats:
        near, far = values["near_links"], values["far_links"]
        return (
            self.traffic[wait, "fast"] / near
            + self.traffic[wait, "slow"] / far
            + self.traffic[wait, "latency"]
        )


def part_table(parts: Sequence[Parts]) -> PartTable:
    """Puts the parts of many runs into columns."""
    works = [(i, w) for i, one in enumerate(parts) for w in one.works]
    traffic = {
        (wait, tier): np.zeros(len(parts))
        for wait in _WAITS
        for tier in ("fast", "slow", "latency")
    }
    for i, one in enumerate(parts):
        for t in one.traffic:
            wait = "experts" if t.is_exchange else "activations" if t.is_critical else "weights"
            wait = "once" if t.once else wait
            traffic[wait, t.tier][i] += t.count * t.bandwidth_s
            traffic[wait, "latency"][i] += t.count * t.latency_s
    return PartTable(
        len(parts),
        np.array([i for i, _ in works], dtype=np.intp),
        np.array([_KIND[w.kind] for _, w in works], dtype=np.intp),
        np.array([PRECISIONS.get(w.dtype, 0) for _, w in works], dtype=np.intp),
        np.array([w.flops_s for _, w in works]),
        np.array([w.bytes_s for _, w in works]),
        np.array([w.count for _, w in works]),
        np.array([w.once for _, w in works], dtype=np.bool_),
        traffic,
        np.array([float(one.microbatches) for one in parts]),
        np.array([one.bubble for one in parts]),
        np.array([1.0 if one.is_step else 0.0 for one in parts]),
        np.array([float(one.hides_exchanges) for one in parts]),
    )
