"""What the chips of one pipeline stage spend a step on; a model without a pipeline is one stage.

In: the algorithm of each kind of layer, a remat policy, which layers a stage has. Out: `StageTime`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import device_bytes, ways
from rooflight.costs.network import collective_time
from rooflight.dtypes import Dtype
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.ops import Op
from rooflight.models.layout.rules import Layout
from rooflight.models.layout.staging import stage_kinds
from rooflight.plan.training.derive.algorithm import Algorithm, PricedStep
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import Remat, keep
from rooflight.plan.training.time.stages import stage_chunks, stage_layers

Overlap = Literal["sum", "max"]
OVERLAPS: tuple[Overlap, ...] = ("sum", "max")
Part = Literal["F", "B", "W", "recompute", "once"]  # recompute: remat; once: not in each microbatch
SLOTS: Mapping[str, tuple[Part, ...]] = {"F": ("F",), "B": ("B", "recompute"), "W": ("W",)}
HEAD = -1  # stands for the output head where layers are named by their block


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one layer in one microbatch, or in one step where `part` is once."""

    part: Part
    where: str  # mesh axes, "" for a matmul
    waits: str
    seconds: float


def layer_spent(algorithm: Algorithm, ops: Sequence[Op], remat: Remat) -> Iterator[Spent]:
    """The lines of a layer, and those that the remat policy recomputes in the backward pass.

    A weight that is gathered for an op recomputed is the one that the op's gradient needs.
    """
    for line in algorithm.spent:
        yield _spent(line, "once" if line.once else line.slot)
    recomputed = {op.name for op in keep(ops, remat).ops}
    for line in algorithm.forward:
        if line.op in recomputed and (line.price.op or line.waits == "critical"):
            yield _spent(line, "recompute")


def _spent(line: PricedStep, part: Part) -> Spent:
    where = "" if line.price.op else "+".join(sorted(line.step.axes))
    return Spent(part, where, line.waits, line.price.expected_s)


def transfers(
    layout: Layout, micro: Microbatching, mesh: Mesh, dims: Mapping[str, int], dtype: Dtype
) -> Iterator[Spent]:
    """The stream to the next stage and its gradient back, once for each chunk of a stage."""
    if ways(layout.stages, mesh.axes) == 1:
        return
    stream = layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    nbytes = device_bytes(stream, dims, mesh.axes, dtype)
    time = collective_time("permute", nbytes, mesh.group(layout.stages))
    where = "+".join(sorted(layout.stages))
    for part in ("F", "B"):
        yield Spent(part, where, "critical", micro.virtual * (time.bandwidth_s + time.latency_s))


def stage_shares(
    order: Sequence[int], stages: int, micro: Microbatching
) -> tuple[Mapping[int, float], ...]:
    """How many layers of each block, and heads, one microbatch meets on every stage.

    Where a schedule sends microbatches both ways, each meets only half of what a stage holds.
    """
    if stages == 1:
        return ({b: float(order.count(b)) for b in dict.fromkeys(order)} | {HEAD: 1.0},)
    schedule, virtual = micro.schedule, micro.virtual
    last = stages * virtual - 1
    held = stage_layers(order, stages, virtual, schedule=schedule)
    places = stage_chunks(schedule, stages, virtual)
    met = [virtual / len(chunks) for chunks in places]
    return tuple(
        {block: n * part for block, n in layers.items()} | ({HEAD: part} if last in chunks else {})
        for layers, chunks, part in zip(held, places, met, strict=True)
    )


@lru_cache(maxsize=4096)
def step_shares(
    order: tuple[int, ...], stages: int, micro: Microbatching, *, in_step: bool
) -> tuple[Mapping[int, float], ...]:
    """How many layers of each block, and heads, one microbatch meets on a stage: each case once."""
    if in_step and stages > 1:
        return (share_in_step(order, stages, micro),)
    shares = stage_shares(order, stages, micro)
    return tuple(dict(case) for case in dict.fromkeys(tuple(s.items()) for s in shares))


def share_in_step(order: Sequence[int], stages: int, micro: Microbatching) -> Mapping[int, float]:
    """How many layers of each block, and heads, one microbatch meets on any stage of our program.

    All stages run the same ops (`layout.staging`), padding and the head among them, in every chunk.
    """
    kinds = stage_kinds(tuple(order), stages * micro.virtual)
    layers = {b: float(micro.virtual * kinds.count(b)) for b in dict.fromkeys(kinds)}
    return layers | {HEAD: float(micro.virtual)}


def spent_in_step(spent: Iterable[Spent], block: int) -> Iterator[Spent]:
    """The lines of a layer where each stage keeps only its input: a backward runs it again.

    The head runs with the loss, in the backward alone.
    """
    for s in spent:
        if s.part != "F" or block != HEAD:
            yield s
        if s.part == "F":
            yield replace(s, part="B" if block == HEAD else "recompute")


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of all layers of a stage by part, axes and waits, and how many microbatches pass."""

    spent: Sequence[tuple[float, Spent]]
    count: int

    def matmuls_s(self, parts: Iterable[Part]) -> float:
        return sum(n * s.seconds for n, s in self.spent if not s.where and s.part in parts)

    def axes_s(self, parts: Iterable[Part]) -> dict[str, float]:
        found: dict[str, float] = {}
        for n, s in self.spent:
            if s.where and s.part in parts:
                found[s.where] = found.get(s.where, 0.0) + n * s.seconds
        return found

    def slot_s(self, slot: str, overlap: Overlap) -> float:
        """One microbatch's forward, input gradient or weight gradient."""
        parts = SLOTS[slot]
        return max(self.matmuls_s(parts), together(self.axes_s(parts), overlap))

    @property
    def step_matmuls_s(self) -> float:
        return self.count * self.matmuls_s(("F", "B", "W", "recompute"))

    @property
    def step_axes_s(self) -> dict[str, float]:
        each, once = self.axes_s(("F", "B", "W", "recompute")), self.axes_s(("once",))
        return {a: self.count * each.get(a, 0.0) + once.get(a, 0.0) for a in each | once}

    @property
    def step_waits_s(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for n, s in self.spent:
            if s.where:
                times = 1 if s.part == "once" else self.count
                found[s.waits] = found.get(s.waits, 0.0) + times * n * s.seconds
        return found

    def work_s(self, overlap: Overlap) -> float:
        return max(self.step_matmuls_s, together(self.step_axes_s, overlap))


def together(axes_s: Mapping[str, float], overlap: Overlap) -> float:
    """Collectives: one after another, or those of different mesh axes side by side."""
    times = axes_s.values()
    return sum(times) if overlap == "sum" else max(times, default=0.0)
