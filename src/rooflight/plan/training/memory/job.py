"""`Job`: one training step and where it runs; and what a chip holds of any tensor of it.

`Recipe`: what training holds of every parameter, by component and dtype. The field names recipes by
their bytes per parameter: 10, 16, 18. What is left out of one is either not there or assumed to
live only a moment, and `used_by` says who counts so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import device_bytes, ways
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UnknownNameError, UsageError
from rooflight.hardware.chip import Chip
from rooflight.models.graph.count import dim_sizes
from rooflight.models.graph.ops import Graph
from rooflight.models.layout.rules import Layout
from rooflight.models.layout.schedules import SCHEDULES
from rooflight.models.layout.zero import data_axes
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework
from rooflight.plan.training.memory.remat import REMATS, Remat

_BF16, _F32 = DTYPES["bf16"], DTYPES["f32"]

Zero = Literal[0, 1, 2, 3]
# Fewest and most virtual stages; interleaved has no most.
_VIRTUAL: dict[str, tuple[int, int | None]] = {"interleaved": (2, None), "zb-v": (2, 2)}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dtypes of what is stored; None is not stored. Adam has two moments.

    >>> {name: recipe.weights.name for name, recipe in RECIPES.items()}
    {'10': 'bf16', '16': 'bf16', '18': 'bf16', 'f32': 'f32'}
    """

    name: str
    weights: Dtype
    gradients: Dtype | None
    master: Dtype | None
    moments: tuple[Dtype, ...]
    used_by: str
    compute: Dtype = _BF16  # of activations, of gathered weights and of their gradients


RECIPES = {
    r.name: r
    for r in (
        Recipe(
            "10",
            _BF16,
            None,
            None,
            (_F32, _F32),
            "chapters 5 and 6 of the book: gradients are used up as they come, no master weights",
        ),
        Recipe(
            "16",
            _BF16,
            _BF16,
            _F32,
            (_F32, _F32),
            "mixed precision of the ZeRO paper (arXiv 1910.02054): 2 + 2 + K, K = 12",
        ),
        Recipe(
            "18",
            _BF16,
            _F32,
            _F32,
            (_F32, _F32),
            "Megatron-LM's distributed optimizer, which adds up gradients in fp32",
        ),
        Recipe(
            "f32",
            _F32,
            _F32,
            None,
            (_F32, _F32),
            "fp32 weights cast to bf16 for each matmul: torchtitan's FSDP, MaxText's default",
        ),
    )
}


def parse_recipe(text: str) -> Recipe:
    """Finds a recipe by name; unknown names get a did-you-mean."""
    if text not in RECIPES:
        raise UnknownNameError("recipe", text, RECIPES)
    return RECIPES[text]


@dataclass(frozen=True, slots=True)
class Microbatching:
    """How a step's sequences are cut in time, and in which order pipeline stages take them."""

    count: int = 1
    schedule: str = "1f1b"
    virtual: int = 1  # chunks of layers a stage holds: 2 for zb-v, 2 or more for interleaved
    layers: tuple[int, ...] = ()  # of each chunk, where they are not cut evenly

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnknownNameError("pipeline schedule", self.schedule, SCHEDULES)
        if self.count < 1 or self.virtual < 1:
            raise UsageError(
                f"{self.count} microbatches and {self.virtual} virtual stages make no step",
                hint="give at least 1 of each",
            )
        fewest, most = _VIRTUAL.get(self.schedule, (1, 1))
        if not fewest <= self.virtual <= (most or self.virtual):
            raise UsageError(
                f"{self.schedule} does not take {self.virtual} virtual stages",
                hint="interleaved takes 2 or more, zb-v 2, every other schedule 1",
            )


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, how and where; `dataclasses.replace` asks what if."""

    graph: Graph
    layout: Layout
    axes: Mapping[str, int]
    chip: Chip
    batch: int  # sequences of a whole step, on all chips
    seq: int
    recipe: Recipe = RECIPES["10"]
    remat: Remat = REMATS["block"]
    zero: Zero = 0  # splits over the data axes: 1 the optimizer, 2 also gradients, 3 also weights
    micro: Microbatching = Microbatching()
    framework: Framework = FRAMEWORKS["none"]
    hbm_margin: float = 0.0  # the part of the memory that is left for what nobody counts

    @property
    def tokens(self) -> int:
        """Tokens of a whole step."""
        return self.batch * self.seq

    @property
    def microbatch(self) -> int:
        """Sequences that pass through the model together, on all chips."""
        if self.batch % self.micro.count:
            raise UsageError(
                f"{self.batch} sequences do not make {self.micro.count} equal microbatches",
                hint=f"make the batch a multiple of {self.micro.count} sequences",
            )
        return self.batch // self.micro.count

    @property
    def num_stages(self) -> int:
        """Pipeline stages: parts of the chips that hold different layers."""
        return ways(self.layout.stages, self.axes)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Axes that split tokens: along them a replicated weight is the same on every chip."""
        return data_axes(self.layout)

    @property
    def tokens_of_a_chip(self) -> float:
        """Tokens of a microbatch that pass through one chip."""
        return self.microbatch * self.seq / ways(self.data_axes, self.axes)

    def sizes(self) -> dict[str, int]:
        """Sizes of the dims in one microbatch."""
        return dim_sizes(self.graph, batch=self.microbatch, seq=self.seq)


_IN_LANES = ("k", "v", "attended_heads")


@dataclass(frozen=True, slots=True)
class OnChip:
    """A job with the sizes of its dims worked out once: bytes of any placed tensor on one chip."""

    job: Job
    sizes: Mapping[str, int]

    def nbytes(self, placed: Tensor, dtype: Dtype) -> int:
        """A weight or activation; C, a mean over experts, is rounded up to split evenly."""
        job, sizes = self.job, self.sizes
        for dim in placed.dims:
            if dim in job.graph.per_token:
                shards = ways(placed.axes_of(dim), job.axes)
                sizes = {**sizes, dim: -(-sizes[dim] // shards) * shards}
        return device_bytes(placed, sizes, job.axes, dtype)

    def saved(self, placed: Iterable[Tensor], beside: Iterable[tuple[Tensor, Dtype]] = ()) -> int:
        """Activations that wait for the backward pass, those of attention in whole lanes."""
        is_tiled = self.job.chip.kind == "tpu"
        lanes = self.job.framework.lanes if is_tiled else 1

        def times(tensor: Tensor) -> int:
            is_padded = tensor.name in _IN_LANES and self.sizes[tensor.dims[-1]] < lanes
            return lanes // self.sizes[tensor.dims[-1]] if is_padded else 1

        dtype = self.job.recipe.compute
        own = sum(times(tensor) * self.nbytes(tensor, dtype) for tensor in placed)
        return own + sum(self.nbytes(tensor, other) for tensor, other in beside)

    def total(self, placed: Iterable[Tensor]) -> int:
        """Activations, all in the compute dtype."""
        return sum(self.nbytes(tensor, self.job.recipe.compute) for tensor in placed)
