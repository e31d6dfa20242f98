"""`Job`: one training step and where it runs; and what a chip holds of any tensor of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.algebra import Tensor, device_bytes, ways
from rooflight.dtypes import DTYPES, Dtype
from rooflight.graph import Graph, dim_sizes
from rooflight.graph.layout import Layout
from rooflight.plan.recipe import RECIPES, Recipe
from rooflight.plan.remat import REMATS, Remat
from rooflight.specs.chip import Chip

Zero = Literal[0, 1, 2]
_LOSS = (DTYPES["f32"], DTYPES["bf16"])  # logits raised to fp32 for the softmax, their gradient


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, how and where; `dataclasses.replace` asks what if."""

    graph: Graph
    layout: Layout
    axes: Mapping[str, int]
    chip: Chip
    batch: int  # sequences
    seq: int
    recipe: Recipe = RECIPES["10"]
    remat: Remat = REMATS["block"]
    zero: Zero = 0  # 1 also splits the optimizer over the data axes, 2 the gradients too
    loss: tuple[Dtype, ...] = _LOSS  # arrays of the size of the logits, in memory together

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Axes that split tokens: along them a replicated weight is the same on every chip."""
        return (*self.layout.inner.get("B", ()), *self.layout.inner.get("T", ()))

    def sizes(self) -> dict[str, int]:
        return dim_sizes(self.graph, batch=self.batch, seq=self.seq)


def kept_bytes(tensors: Iterable[Tensor], job: Job, dtype: Dtype) -> int:
    """Activations on one chip, where the layout keeps them."""
    return sum(local_bytes(job.layout.of_activation(t), job, dtype) for t in tensors)


def local_bytes(placed: Tensor, job: Job, dtype: Dtype) -> int:
    """An activation on one chip; C, a mean over experts, is rounded up to split evenly."""
    sizes = job.sizes()
    for dim in set(placed.dims) & set(job.graph.per_token):
        shards = ways(placed.axes_of(dim), job.axes)
        sizes[dim] = -(-sizes[dim] // shards) * shards
    return device_bytes(placed, sizes, job.axes, dtype)
