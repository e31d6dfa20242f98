"""Prices the strategies of a contraction on a mesh and picks one; the losers keep their price.

In: strategies from `algebra`, dim sizes, a placed `Mesh`, a dtype. Out: a `Choice`. A collective
that touches the local product directly (an all-gather before it, a reduce-scatter after it) can
stream through it piece by piece, which is the collective matmul; every other collective waits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.shapes import device_bytes, local_shape, ways
from rooflight.algebra.steps import Step
from rooflight.costs.network import CollectiveKind, NetworkTime, collective_time
from rooflight.costs.roofline import OpTime, contraction_time
from rooflight.dtypes import Dtype
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import Group, Mesh

TIE = 1e-9  # times that differ by less, relatively, differ by rounding


@dataclass(frozen=True, slots=True)
class StepPrice:
    """One step with its time: a network time, an op time, or nothing for a local slice."""

    step: Step
    nbytes: int
    flops: float
    network: NetworkTime | None = None
    op: OpTime | None = None

    @property
    def lower_s(self) -> float:
        return (self.network.lower_s if self.network else 0) + (self.op.lower_s if self.op else 0)

    @property
    def expected_s(self) -> float:
        return (self.network.expected_s if self.network else 0) + (
            self.op.lower_s if self.op else 0
        )

    @property
    def upper_s(self) -> float:
        return (self.network.upper_s if self.network else 0) + (self.op.upper_s if self.op else 0)

    @property
    def binds(self) -> str:
        if self.network:
            return self.network.binds
        return self.op.binds if self.op else "free"


@dataclass(frozen=True, slots=True)
class Price:
    """A strategy and what it costs one step of the machine."""

    strategy: Strategy
    steps: tuple[StepPrice, ...]

    @property
    def local_s(self) -> float:
        """Time of the local product."""
        return sum(s.expected_s for s in self.steps if s.op)

    @property
    def network_s(self) -> float:
        """Time of all collectives, one after another."""
        return sum(s.expected_s for s in self.steps if s.network)

    @property
    def network_bytes(self) -> int:
        """The book's V, summed over the collectives."""
        return sum(s.nbytes for s in self.steps if s.network)

    @property
    def lower_s(self) -> float:
        """Everything overlaps: max of product and network."""
        network = sum(s.lower_s for s in self.steps if s.network)
        return max(network, sum(s.lower_s for s in self.steps if s.op))

    @property
    def upper_s(self) -> float:
        """Nothing overlaps."""
        return sum(s.upper_s for s in self.steps)

    @property
    def expected_s(self) -> float:
        """What touches the product streams through it; the rest waits its turn."""
        streamed = sum(s.expected_s for s in self.steps if self.strategy.streams(s.step))
        return max(self.local_s, streamed) + self.network_s - streamed

    @property
    def summary(self) -> str:
        """The collectives in a few words, such as `gather B over X`."""
        words = [_words(s.step) for s in self.steps if s.network]
        return ", then ".join(words) or "no communication"


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy a compiler will take, why, and the others in order of price."""

    best: Price
    losers: tuple[Price, ...]
    because: str


def choose(
    candidates: Sequence[Strategy], *, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype
) -> Choice:
    """Prices every candidate; of those with the fewest reroutes, picks the one that ends first.

    A reroute may be faster still. It stays among the losers and `because` names it: XLA seldom
    takes it unless the program spells it out (docs/xla.md), so a plan must not count on it.

    >>> from rooflight.algebra.notation import parse_contraction
    >>> from rooflight.algebra.contract import strategies
    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    >>> fsdp = parse_contraction("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]")
    >>> sizes = {"I": 8192, "J": 8192, "K": 32768}
    >>> choose(strategies(fsdp), dims=sizes, mesh=mesh, dtype=DTYPES["bf16"]).best.summary
    'gather B over X'
    """
    legal = _legal(candidates, dims, mesh)
    ranked = sorted((price(s, dims=dims, mesh=mesh, dtype=dtype) for s in legal), key=_order)
    fewest = min(p.strategy.reroutes for p in ranked)
    best = _best([p for p in ranked if p.strategy.reroutes == fewest])
    losers = tuple(p for p in ranked if p is not best)
    return Choice(best, losers, _because(best, losers))


def pick(
    candidates: Sequence[Strategy], *, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype
) -> Price:
    """The best of `choose`, without pricing the strategies that have more reroutes."""
    legal = _legal(candidates, dims, mesh)
    fewest = min(s.reroutes for s in legal)
    direct = [s for s in legal if s.reroutes == fewest]
    return _best([price(s, dims=dims, mesh=mesh, dtype=dtype) for s in direct])


def _best(prices: Sequence[Price]) -> Price:
    """The one that ends first; of those that end together, the one that moves the least."""
    soonest = min(p.expected_s for p in prices)
    return min(
        (p for p in prices if p.expected_s <= soonest * (1 + TIE)), key=lambda p: _order(p)[1:]
    )


def _legal(candidates: Sequence[Strategy], dims: Mapping[str, int], mesh: Mesh) -> list[Strategy]:
    first = candidates[0].contraction
    for tensor in (*first.operands, first.result):
        local_shape(tensor, dims, mesh.axes)  # what was asked for must divide
    legal = [s for s in candidates if _divides(s, dims, mesh.axes)]
    if not legal:
        sizes = ", ".join(f"{dim}={dims[dim]}" for dim in sorted(first.dims))
        raise ShardingError(
            f"no way to compute {first} leaves whole blocks: {sizes} on {dict(mesh.axes)}",
            hint="split fewer ways, or make the sizes multiples of the ways",
        )
    return legal


def _order(price: Price) -> tuple[float, int, int]:
    return price.expected_s, price.network_bytes, len(price.steps)


def price(strategy: Strategy, *, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype) -> Price:
    """Prices one strategy: every operand and result at `dtype`, sums kept at it too."""
    return Price(strategy, tuple(map(Pricer(dims, mesh, dtype).price, strategy.steps)))


def _divides(strategy: Strategy, dims: Mapping[str, int], axis_sizes: Mapping[str, int]) -> bool:
    """Whether every block on the way is whole; a strategy that cuts a row in two is none."""
    tensors = {t for step in strategy.steps for t in (*step.inputs, step.output)}
    return all(
        dims[dim] % ways(axes, axis_sizes) == 0
        for tensor in tensors
        for dim, axes in zip(tensor.dims, tensor.axes, strict=True)
    )


def price_step(step: Step, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype) -> StepPrice:
    """The time of one step on the mesh."""
    return Pricer(dims, mesh, dtype).price(step)


class Pricer:
    """Prices steps of the same sizes on one mesh; equal collectives are worked out once."""

    def __init__(self, dims: Mapping[str, int], mesh: Mesh, dtype: Dtype) -> None:
        self._dims, self._mesh, self._dtype = dims, mesh, dtype
        self._axes = mesh.axes
        self._groups: dict[Axes, Group] = {}
        self._networks: dict[tuple[CollectiveKind, int, Axes], NetworkTime] = {}

    def price(self, step: Step) -> StepPrice:
        """The time of one step."""
        if step.op == "einsum":
            return self._product(step)
        nbytes = self._dtype.nbytes(math.ceil(step.elements(self._dims, self._axes)))
        if step.op == "slice":
            return StepPrice(step, nbytes, 0.0)
        kind: CollectiveKind = step.op
        if step.op == "permute":  # blocks change places all over the group, as in an all-to-all
            kind, nbytes = "all_to_all", nbytes * self._group(step.axes).size
        return StepPrice(step, nbytes, 0.0, network=self._network(kind, nbytes, step.axes))

    def _network(self, kind: CollectiveKind, nbytes: int, axes: Axes) -> NetworkTime:
        key = kind, nbytes, axes
        if key not in self._networks:
            self._networks[key] = collective_time(kind, nbytes, self._group(axes))
        return self._networks[key]

    def _group(self, axes: Axes) -> Group:
        if axes not in self._groups:
            self._groups[axes] = self._mesh.group(axes)
        return self._groups[axes]

    def _product(self, step: Step) -> StepPrice:
        """2 FLOPs for every multiply-add; every operand read once, the result written once."""
        chip, dims, axes, dtype = self._mesh.slice.chip, self._dims, self._axes, self._dtype
        tensors: tuple[Tensor, ...] = (*step.inputs, step.output)
        moved = sum(device_bytes(t, dims, axes, dtype) for t in tensors)
        flops = 2.0 * step.elements(dims, axes)
        compute = chip.matmul_dtype(dtype.name)
        op = contraction_time(chip, flops=flops, bytes_moved=moved, compute=compute)
        return StepPrice(step, moved, flops, op=op)


_VERBS = {
    "all_gather": "gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "exchange",
    "permute": "permute",
}


def _words(step: Step) -> str:
    return f"{_VERBS[step.op]} {step.output.name} over {'*'.join(step.axes)}"


def _because(best: Price, losers: Sequence[Price]) -> str:
    if not best.network_bytes:
        return "no collective is needed"
    if not losers:
        return "it is the only legal strategy"
    other = losers[0]
    ratio = other.expected_s / best.expected_s if best.expected_s else 1.0
    if ratio < 0.995:
        moves = "it moves two tensors over one axis, which XLA seldom does unless told"
        return f"`{other.summary}` would take {ratio:.2f}x as long, but {moves}"
    if ratio < 1.005:
        return f"about as fast as `{other.summary}`"
    return f"the next, `{other.summary}`, takes {ratio:.2f}x as long"
