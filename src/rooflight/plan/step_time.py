"""The time of one training step under a layout: every layer's algorithm, times its count.

In: a graph, a layout, a mesh, a batch. Out: a `StepTime`. Overlap is a stated convention, the
book's chapter 5: products and collectives overlap, and the collectives of different mesh axes
either queue up ("sum", the 2025 edition) or run side by side ("max", the newer one).
Not priced: the embedding lookup, elementwise ops, the optimizer's own arithmetic.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.dtypes import Dtype
from rooflight.errors import ModelError
from rooflight.graph import Graph, dim_sizes, training_flops
from rooflight.graph.layout import Layout
from rooflight.graph.ops import Op
from rooflight.plan.algorithm import Algorithm, Line, derive_algorithm
from rooflight.specs.mesh import Mesh

Overlap = Literal["sum", "max"]
OVERLAPS: tuple[Overlap, ...] = ("sum", "max")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step on every chip, by what they are spent on."""

    products_s: float
    axes_s: Mapping[str, float]  # collectives by the mesh axes they run over: "X", "X+Y"
    waits_s: Mapping[str, float]  # collectives by what waits for them: critical, ahead, async
    model_flops: float  # a chip's share of the FLOPs that the model needs, causal
    peak_flops: float

    def __post_init__(self) -> None:
        if self.products_s * self.peak_flops < self.model_flops * (1 - 1e-9):
            raise ModelError("the products of a step take less time than their FLOPs allow")

    def collectives_s(self, overlap: Overlap) -> float:
        """All collectives: one after another, or mesh axes side by side."""
        times = self.axes_s.values()
        return sum(times) if overlap == "sum" else max(times, default=0.0)

    def expected_s(self, overlap: Overlap = "sum") -> float:
        """Products and collectives overlap: the longer of the two."""
        return max(self.products_s, self.collectives_s(overlap))

    @property
    def lower_s(self) -> float:
        return self.expected_s("max")

    @property
    def upper_s(self) -> float:
        """Nothing overlaps."""
        return self.products_s + self.collectives_s("sum")

    def mfu(self, overlap: Overlap = "sum") -> float:
        """Model FLOPs, causal, over what the chip could do in the expected time."""
        return self.model_flops / self.peak_flops / self.expected_s(overlap)

    def binds(self, overlap: Overlap = "sum") -> str:
        """What the step waits for: the products, or the slowest axes."""
        if self.products_s >= self.collectives_s(overlap):
            return "products"
        return "collectives over " + max(self.axes_s, key=lambda a: self.axes_s[a])


def layer_runs(graph: Graph) -> Iterator[tuple[list[Op], int]]:
    """The ops of each kind of layer with its count, then those of the output head."""
    for block in dict.fromkeys(op.block for op in graph.ops if op.block is not None):
        ops = [op for op in graph.ops if op.block == block]
        yield ops, ops[0].count
    yield [op for op in graph.ops if op.part == "head"], 1


def training_step(
    graph: Graph, layout: Layout, *, mesh: Mesh, batch: int, seq: int, dtype: Dtype
) -> StepTime:
    """Times one step of `batch` sequences; gathered activations are kept for the backward pass.

    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.graph import model_graph
    >>> from rooflight.graph.layout import parse_layout
    >>> from rooflight.specs import load_model, parse_mesh
    >>> step = training_step(
    ...     model_graph(load_model("llama3-70b")), parse_layout("fsdp=X"),
    ...     mesh=parse_mesh("X=512", on="v5p:8x8x8"), batch=512, seq=8192, dtype=DTYPES["bf16"])
    >>> step.binds(), round(step.expected_s(), 2)
    ('products', 8.02)
    """
    dims = dim_sizes(graph, batch=batch, seq=seq)
    products_s = 0.0
    axes_s: dict[str, float] = {}
    waits_s: dict[str, float] = {}
    for ops, count in layer_runs(graph):
        layer = derive_algorithm(graph, ops, layout, mesh=mesh, dims=dims, dtype=dtype)
        for line in spent(layer):
            seconds = count * line.price.expected_s
            if line.price.op:
                products_s += seconds
            else:
                where = "+".join(sorted(line.step.axes))
                axes_s[where] = axes_s.get(where, 0.0) + seconds
                waits_s[line.waits] = waits_s.get(line.waits, 0.0) + seconds
    chip = mesh.slice.chip
    flops = training_flops(graph, batch=batch, seq=seq, causal=True) / mesh.slice.num_chips
    peak = chip.peak_flops(chip.matmul_dtype(dtype.name))
    return StepTime(products_s, axes_s, waits_s, flops, peak)


def spent(algorithm: Algorithm) -> list[Line]:
    """The lines that take time: slices are free, and what the forward pass made is kept."""
    lines = (*algorithm.forward, *algorithm.backward)
    return [x for x in lines if (x.price.op or x.price.network) and not x.kept]
