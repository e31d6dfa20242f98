"""The works of a layer on many points: what depends on sizes alone, and not on where axes lie.

In: points that differ in sizes (`Points.alike`), constants. Out: seconds of matmuls and of memory
passes; and `LeastSeconds`, below which no strategy and no mesh of such a size can come.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rooflight.algebra.notation import Tensor
from rooflight.algebra.steps import Step
from rooflight.costs.mesh_sweep import Floats
from rooflight.dtypes import Dtype
from rooflight.models.graph.ops import HAS_FLOPS, Op
from rooflight.plan.training.derive.algorithm import visible_part
from rooflight.plan.training.derive.derivation import Derived, DerivedLayer
from rooflight.plan.training.forecast.basis import Values, efficiency_name, memory_name
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat, is_score
from rooflight.plan.training.time.parts import LOSS_BYTES, bubble_part, has_weight
from rooflight.plan.training.time.stage_time import HEAD, step_shares
from rooflight.plan.training.time.step_time import layer_runs
from rooflight.plan.training.time.sweep import Points, placing
from rooflight.plan.training.time.work import WorkKind

Key = tuple[str, str]  # what is summed, and which part of a layer: "" each time, or a policy
Recomputed = tuple[tuple[str, frozenset[str]], ...]  # the ops that each remat policy recomputes

_IN_STEP = "in step"  # stands for the policy of a program that runs whole stages again


@dataclass(frozen=True, slots=True)
class ForecastSetting:
    """What prices a step: the dtype of weight matmuls, the constants, who runs the pipeline."""

    compute: Dtype
    values: Values
    in_step: bool = False


class Works:
    """Matmuls and memory passes of a layer, on points of different sizes."""

    def __init__(self, few: Points, setting: ForecastSetting) -> None:
        self._few, self._setting = few, setting
        self._known: dict[object, tuple[Floats, Floats]] = {}

    def recomputed(self, block: int, ops: Sequence[Op]) -> Recomputed:
        """The ops that each policy recomputes."""
        saved = self._few.sizes.saved.items()
        found = [(name, frozenset(op.name for op in by[block].ops)) for name, by in saved]
        if self._runs_stages_again(block):
            found.append((_IN_STEP, frozenset(op.name for op in ops)))
        return tuple(found)

    def part(self, block: int, remat: Remat) -> str:
        """The part of a layer's sums that is recomputed."""
        return _IN_STEP if self._runs_stages_again(block) else remat.name

    def _runs_stages_again(self, block: int) -> bool:
        return self._setting.in_step and bool(self._few.layout.stages) and block != HEAD

    @property
    def narrow(self) -> float:
        """Bits of weight matmuls as a part of the bits that activations are stored in."""
        return min(1.0, self._setting.compute.bits / self._few.sizes.dtype.bits)

    def matmul(self, kind: WorkKind, line: Derived) -> tuple[Floats, Floats]:
        """Seconds of one matmul under the constants, and at the roofs."""
        op, step = line.op, line.step
        is_weight = has_weight(step)
        key = kind, is_weight, op.mask, *map(placing, (*step.inputs, step.output))
        if key not in self._known:
            dtype = self._setting.compute if is_weight else self._few.sizes.dtype
            flops, moved = self._size(line)
            if is_weight and self.narrow < 1:
                moved = moved - self._held_bytes(step.inputs) * (1 - self.narrow)
            self._known[key] = self._priced(kind, dtype, flops, moved)
        return self._known[key]

    def least(self, op: Op) -> Floats:
        """Seconds of a matmul that every axis splits: no strategy has a faster one."""
        line = Derived(op, Step("einsum", op.contraction.operands, op.contraction.result), "")
        ways = self._few.split(self._few.layout.split_over)
        dtype = self._setting.compute if has_weight(line.step) else self._few.sizes.dtype
        flops, moved = self._size(line)
        return self._priced(kind_of(line), dtype, flops / ways, moved * self.narrow / ways)[0]

    def _size(self, line: Derived) -> tuple[Floats, Floats]:
        """FLOPs, and bytes as stored; an attention kernel keeps its scores to itself."""
        few, op, step = self._few, line.op, line.step
        sizes = {d: int(few.dims[d][0]) for d in ("T", "S")} if op.mask else {}
        dims = dict.fromkeys(d for t in step.inputs for d in t.dims)
        axes = dict.fromkeys(a for t in step.inputs for a in t.sharded_over)
        done = np.ones(1)
        for dim in dims:
            done = done * few.dims[dim]
        flops = 2 * done / few.split(axes) * visible_part(op, sizes)
        ends = [t for t in (*step.inputs, step.output) if not (op.mask and is_score(t))]
        return flops, self._held_bytes(ends)

    def _held_bytes(self, tensors: Iterable[Tensor]) -> Floats:
        few = self._few
        return few.bytes(sum((few.elements(t) for t in tensors), np.zeros(1)))

    def _priced(
        self, kind: WorkKind, dtype: Dtype, flops: Floats, moved: Floats
    ) -> tuple[Floats, Floats]:
        chip, values = self._few.meshes.slice.chip, self._setting.values
        efficiency = values[efficiency_name(kind, dtype.name)]
        efficiency *= values["experts"] if kind == "experts" else 1.0
        flops_s = flops / chip.peak_flops(chip.matmul_dtype(dtype.name))
        bytes_s = moved / (chip.hbm_bytes_per_s or np.inf)
        seconds = np.maximum(flops_s / efficiency, bytes_s / values[memory_name(kind)])
        return seconds + values["matmul_launch_s"], np.maximum(flops_s, bytes_s)

    def _pass(self, kind: WorkKind, nbytes: Floats) -> tuple[Floats, Floats]:
        return self._priced(kind, self._few.sizes.dtype, np.zeros(1), nbytes)

    def cast(self, tensor: Tensor) -> tuple[Floats, Floats]:
        """Seconds of one cast to the dtype of matmuls, and at the roofs."""
        return self._pass("elementwise", 2 * self._held_bytes([tensor]) * self.narrow)

    def passes(self, ops: Sequence[Op], recomputed: Recomputed) -> dict[Key, Floats]:
        """Memory passes between matmuls; what is recomputed is passed over once more."""
        found: dict[Key, Floats] = {}

        def add(part: str, priced: tuple[Floats, Floats]) -> None:
            for what, more in zip(("memory", "roof"), priced, strict=True):
                found[what, part] = found.get((what, part), np.zeros(1)) + more

        for op in ops:
            if op.name == "head.logits":
                logits = self._layout_bytes([op.contraction.result]) / self._few.bytes(np.ones(1))
                add("", self._pass("elementwise", LOSS_BYTES * logits))
            if op.name == "attention.scores":
                add("", self._pass("elementwise", 4 * self._layout_bytes(op.contraction.operands)))
            if op.kind in ("elementwise", "route"):
                kind: WorkKind = "dispatch" if op.kind == "route" else "elementwise"
                moved = self._moved(op)
                add("", self._pass(kind, 3 * moved))
                seconds, roof = self._pass(kind, moved)
                for name, names in recomputed:
                    if op.name in names:
                        add(name, (seconds - self._setting.values["matmul_launch_s"], roof))
        return found

    def _moved(self, op: Op) -> Floats:
        ends = [*op.contraction.operands, op.contraction.result]
        if op.kind == "route":
            each = [self._layout_bytes([t]) for t in ends if "D" in t.dims]
            return 2 * np.max(np.broadcast_arrays(*each), axis=0)
        return self._layout_bytes(ends)

    def _layout_bytes(self, tensors: Iterable[Tensor]) -> Floats:
        place = self._few.layout.of_activation
        shown = [t for t in tensors if not t.name[0].isupper() and not is_score(t)]
        return self._held_bytes(place(t) for t in shown)


class LeastSeconds:
    """What a step takes at least, wherever its axes lie and whichever strategies are chosen.

    FLOPs that all chips of a stage share, memory passes, what is recomputed, and the bubble.
    """

    def __init__(self, few: Points, setting: ForecastSetting) -> None:
        self._few, self._setting, self._works = few, setting, Works(few, setting)
        self._layers = {b: self._layer(b, ops) for b, ops in layer_runs(few.sizes.graph)}

    def _layer(self, block: int, ops: Sequence[Op]) -> dict[str, Floats]:
        recomputed = self._works.recomputed(block, ops)
        passes = self._works.passes(ops, recomputed)
        found = {
            part: passes.get(("memory", part), np.zeros(1)) for part in ("", *dict(recomputed))
        }
        for op in (op for op in ops if op.kind in HAS_FLOPS):
            seconds = self._works.least(op)
            found[""] = found[""] + (1 + len(op.contraction.operands)) * seconds
            for part, names in recomputed:
                if op.name in names:
                    found[part] = found[part] + seconds
        return {part: seconds + np.zeros(len(self._few)) for part, seconds in found.items()}

    def seconds(self, micro: Microbatching, remat: Remat) -> Floats:
        """On every point, for one option."""
        part = self._works.part
        work = {b: sums[""] + sums[part(b, remat)] for b, sums in self._layers.items()}
        bubble = bubble_part(micro, self._few.num_stages, in_step=self._setting.in_step)
        total = (self._few.count + bubble) * self._stage(work, micro)
        return total + self._setting.values["step_s"]

    def _stage(self, work: Mapping[int, Floats], micro: Microbatching) -> Floats:
        """The stage with least work: the slowest has no less."""
        few, order, in_step = self._few, self._few.sizes.graph.order, self._setting.in_step
        least = np.zeros(len(few))
        for number, stages in enumerate(few.distinct_stages):
            at = np.flatnonzero(few.stages_of == number)
            shares = step_shares(order, int(stages), micro, in_step=in_step)
            none = np.zeros(len(at))
            each = [sum((n * work[b][at] for b, n in s.items()), none) for s in shares]
            least[at] = np.min(each, axis=0)
        return least


@dataclass(frozen=True, slots=True)
class WorkTally:
    """The lines of a derivation that take time, those that take the same time once."""

    works: Mapping[str, list[tuple[WorkKind, Derived, int]]]
    casts: list[tuple[Tensor, int]]
    sent: Mapping[Key, list[tuple[Derived, int]]]


@lru_cache(maxsize=2048)
def tally_of(derivation: DerivedLayer, recomputed: Recomputed) -> WorkTally:
    works: dict[str, dict[object, list[Derived]]] = {"": {}}
    sent: dict[Key, dict[object, list[Derived]]] = {}
    read: dict[Tensor, None] = {}

    def add(part: str, line: Derived) -> None:
        step = line.step
        if step.op == "einsum":
            ends = *map(placing, (*step.inputs, step.output)), line.op.mask
            alike = works.setdefault(part, {})
            alike.setdefault((*ends, kind_of(line), has_weight(step)), []).append(line)
        else:
            key = part, _wait(line)
            alike = sent.setdefault(key, {})
            alike.setdefault((step.op, step.axes, placing(step.larger)), []).append(line)

    for line in derivation.spent:
        add("", line)
        if line.step.op == "einsum" and has_weight(line.step):
            read |= dict.fromkeys(t for t in line.step.inputs if not t.name[0].isupper())
    for line in derivation.forward:
        if line.step.op == "einsum" or (line.waits == "critical" and line.step.op != "slice"):
            for name, names in recomputed:
                if line.op.name in names:
                    add(name, line)
    casts: dict[object, list[Tensor]] = {}
    for tensor in read:
        casts.setdefault(placing(tensor), []).append(tensor)
    return WorkTally(
        {p: [(kind_of(x[0]), x[0], len(x)) for x in by.values()] for p, by in works.items()},
        [(alike[0], len(alike)) for alike in casts.values()],
        {key: [(x[0], len(x)) for x in by.values()] for key, by in sent.items()},
    )


def kind_of(line: Derived) -> WorkKind:
    if line.op.name.startswith("experts."):
        return "experts"
    return "matmul" if has_weight(line.step) else "attention"


def _wait(line: Derived) -> str:
    if line.hops:
        return "hops"
    if line.once:
        return "once"
    if line.waits != "critical":
        return "weights"
    return "experts" if line.step.op in ("all_to_all", "permute") else "activations"


def really_sent(line: Derived, chip_kind: str) -> tuple[str, ...]:
    """What a collective becomes: on a host sums are whole, see `traffic.sent_on_a_host`."""
    op = line.step.op
    if chip_kind != "cpu" or op not in ("reduce_scatter", "all_reduce"):
        return (op,)
    is_gathered = op == "all_reduce" and line.waits != "critical"
    return ("all_reduce", "all_gather") if is_gathered else ("all_reduce",)
