"""`Step`: one local einsum or one collective, the unit of every derivation.

What each collective does to a sharding (the book's chapter 3):

    all_gather      [I_XY] -> [I_X]          the innermost axes of a dim go away
    reduce_scatter  [I]{U_X} -> [I_X]        a pending sum is taken and its axis splits a dim
    all_reduce      [I]{U_X} -> [I]          a pending sum is taken
    all_to_all      [I_X,J] -> [I,J_X]       an axis moves from one dim to another
    permute         [I_XY] -> [I_YX]         blocks change places, no device gains any
    slice           [I] -> [I_X]             each device keeps its part: no traffic
    einsum          A, B -> C                local product
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rooflight.algebra.notation import Axes, Tensor, format_axes

Op = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "slice", "einsum"
]

_TITLES: dict[Op, str] = {
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
    "slice": "Slice",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One derived step. `dim` loses the axes, `to_dim` gains them, where the op has such a dim."""

    op: Op
    inputs: tuple[Tensor, ...]
    output: Tensor
    axes: Axes = ()
    dim: str = ""
    to_dim: str = ""

    def __str__(self) -> str:
        left = " * ".join(map(str, self.inputs))
        if self.op == "einsum":
            return f"{left} -> {self.output}   local"
        where = ",".join(p for p in (format_axes(self.axes), self.to_dim) if p)
        where = where if len(where) == 1 else "{" + where.strip("{}") + "}"
        return f"{_TITLES[self.op]}_{where} {left} -> {self.output}"

    @property
    def is_collective(self) -> bool:
        """Whether bytes cross a link."""
        return self.op not in ("einsum", "slice")

    @property
    def larger(self) -> Tensor:
        """The side of a collective that its bytes are counted on."""
        return self.output if self.op == "all_gather" else self.inputs[0]

    def elements(self, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int]) -> float:
        """The book's V of a collective, in elements: the array as if this group did not split it.

        Sizes may be numpy arrays. For a local einsum, the multiply-adds of one device.
        """
        if self.op == "einsum":
            return _product(self, dim_sizes, axis_sizes)
        local = _local(self.larger, dim_sizes, axis_sizes)
        if self.op == "all_to_all":
            return local * math.prod(axis_sizes[a] for a in self.axes)
        return local


def _local(tensor: Tensor, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int]) -> float:
    whole = math.prod(dim_sizes[d] for d in tensor.dims)
    return whole / math.prod(axis_sizes[a] for a in tensor.sharded_over)


def _product(step: Step, dim_sizes: Mapping[str, int], axis_sizes: Mapping[str, int]) -> float:
    """Every dim once, divided by the axes that split it in any operand."""
    dims = dict.fromkeys(d for t in step.inputs for d in t.dims)
    axes = dict.fromkeys(a for t in step.inputs for a in t.sharded_over)
    return math.prod(dim_sizes[d] for d in dims) / math.prod(axis_sizes[a] for a in axes)
