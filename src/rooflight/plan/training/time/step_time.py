"""The time of one training step under a layout: every layer's algorithm, times its count.

In: a graph, a layout, a mesh, a batch, its microbatches and remat policy. Out: a `StepTime`.
Overlap is a stated convention, the book's chapter 5: matmuls and collectives overlap, and the
collectives of different mesh axes either queue up ("sum", the 2025 edition) or run side by side
("max", the newer one). The stages of a pipeline run in lock step, as our program has them
(`layout.in_step`): each runs its layers again in the backward pass, and then there is the bubble.
Not priced: the embedding lookup, elementwise ops, the optimizer's own arithmetic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rooflight.algebra.shapes import ways
from rooflight.dtypes import Dtype
from rooflight.errors import ModelError, ShardingError
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.count import dim_sizes, training_flops
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.algorithm import derive_algorithm
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS, Remat
from rooflight.plan.training.time.stage_time import (
    HEAD,
    Overlap,
    StageTime,
    layer_spent,
    share_in_step,
    spent_in_step,
    stage_shares,
    together,
    transfers,
)
from rooflight.plan.training.time.stages import idle_seconds, published_idle_seconds

_WHOLE = Microbatching()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step on the chips of a stage, by what they are spent on."""

    matmuls_s: float  # recomputed ones too
    axes_s: Mapping[str, float]  # collectives by the mesh axes they run over: "X", "X+Y"
    waits_s: Mapping[str, float]  # collectives by what waits for them: critical, ahead, async
    model_flops: float  # a chip's share of the FLOPs that the model needs, causal
    peak_flops: float
    bubble_s: float = 0.0  # while the pipeline fills and drains
    recompute_s: float = 0.0  # recomputed matmuls, in the backward pass

    def __post_init__(self) -> None:
        if self.lower_s * self.peak_flops < self.model_flops * (1 - 1e-9):
            raise ModelError("a step takes less time than its FLOPs allow")

    def collectives_s(self, overlap: Overlap) -> float:
        """All collectives: one after another, or mesh axes side by side."""
        return together(self.axes_s, overlap)

    def expected_s(self, overlap: Overlap = "sum") -> float:
        """Matmuls and collectives overlap: the longer of the two, then the bubble."""
        return max(self.matmuls_s, self.collectives_s(overlap)) + self.bubble_s

    @property
    def lower_s(self) -> float:
        return self.expected_s("max")

    @property
    def upper_s(self) -> float:
        """Nothing overlaps."""
        return self.matmuls_s + self.collectives_s("sum") + self.bubble_s

    def mfu(self, overlap: Overlap = "sum") -> float:
        """Model FLOPs, causal, over what the chip could do in the expected time."""
        return self.model_flops / self.peak_flops / self.expected_s(overlap)

    def binds(self, overlap: Overlap = "sum") -> str:
        """What the step waits for: the matmuls, or the slowest axes."""
        if self.matmuls_s >= self.collectives_s(overlap):
            return "matmuls"
        return "collectives over " + max(self.axes_s, key=lambda a: self.axes_s[a])


def layer_runs(graph: Graph) -> Iterator[tuple[int, list[Op]]]:
    """The ops of each kind of layer, then those of the output head."""
    for block in dict.fromkeys(graph.order):
        yield block, [op for op in graph.ops if op.block == block]
    yield HEAD, [op for op in graph.ops if op.part == "head"]


def training_step(
    graph: Graph,
    layout: Layout,
    *,
    mesh: Mesh,
    batch: int,
    seq: int,
    dtype: Dtype,
    micro: Microbatching = _WHOLE,
    remat: Remat = REMATS["none"],
    overlap: Overlap = "sum",
    in_step: bool = True,
) -> StepTime:
    """Times one step of `batch` sequences; gathered activations are saved for the backward pass.

    `overlap` only decides how long a slot of a pipeline is, and so its bubble. Where stages do not
    run `in_step`, each runs its own layers once, and the bubble is the published one.

    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.layout.rules import parse_layout
    >>> from rooflight.models.presets import load_model
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> step = training_step(
    ...     model_graph(load_model("llama3-70b")), parse_layout("fsdp=X"),
    ...     mesh=parse_mesh("X=512", on="v5p:8x8x8"), batch=512, seq=8192, dtype=DTYPES["bf16"])
    >>> step.binds(), round(step.expected_s(), 2)
    ('matmuls', 8.02)
    """
    if batch % micro.count:
        raise ShardingError(
            f"{batch} sequences are not {micro.count} equal microbatches",
            hint=f"use a batch of {-(-batch // micro.count) * micro.count} sequences",
        )
    time = stage_time(graph, layout, mesh, batch, seq, dtype, micro, remat, in_step=in_step)
    stages = ways(layout.stages, mesh.axes)
    idle = idle_seconds if in_step else published_idle_seconds
    slots = (time.slot_s("F", overlap), time.slot_s("B", overlap), time.slot_s("W", overlap))
    chip = mesh.slice.chip
    return StepTime(
        time.step_matmuls_s,
        time.step_axes_s,
        time.step_waits_s,
        training_flops(graph, batch=batch, seq=seq, causal=True) / mesh.slice.num_chips,
        chip.peak_flops(chip.matmul_dtype(dtype.name)),
        idle(micro, stages, *slots),
        micro.count * time.matmuls_s(("recompute",)),
    )


def stage_time(
    graph: Graph,
    layout: Layout,
    mesh: Mesh,
    batch: int,
    seq: int,
    dtype: Dtype,
    micro: Microbatching,
    remat: Remat,
    *,
    in_step: bool = True,
) -> StageTime:
    """What any pipeline stage of our program spends, in lock step all alike; else the slowest."""
    dims = dim_sizes(graph, batch=batch // micro.count, seq=seq)
    spent = {
        block: list(
            layer_spent(
                derive_algorithm(graph, ops, layout, mesh=mesh, dims=dims, dtype=dtype), ops, remat
            )
        )
        for block, ops in layer_runs(graph)
    }
    stages = ways(layout.stages, mesh.axes)
    sent = [(1.0, s) for s in transfers(layout, micro, mesh, dims, dtype)]
    if stages == 1 or not in_step:
        each = [
            StageTime([*sent, *((n, s) for b, n in share.items() for s in spent[b])], micro.count)
            for share in {
                tuple(s.items()): s for s in stage_shares(graph.order, stages, micro)
            }.values()
        ]
        return max(each, key=lambda stage: stage.step_matmuls_s)
    share = share_in_step(graph.order, stages, micro)
    layers = [(n, s) for b, n in share.items() for s in spent_in_step(spent[b], b)]
    return StageTime([*sent, *layers], micro.count)
