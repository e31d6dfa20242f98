"""The inverse question: how should the tensors of a contraction be sharded?

In: a contraction whose tensors without subscripts are free to shard, a mesh, a memory cap. Out:
the layouts that end first. For every way to split the iteration space, each free tensor is stored
where that needs least traffic within the cap; the choices of the tensors are independent, so a
short list of (time, bytes) compromises for each is enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Axes, Contraction, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.shapes import device_bytes, local_shape
from rooflight.algebra.steps import Step
from rooflight.costs.choose import Price, StepPrice, price_step
from rooflight.dtypes import Dtype
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import Mesh
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class PricedLayout:
    """A sharding of every tensor, its price, and the bytes that one device stores."""

    price: Price
    stored_bytes: int

    @property
    def contraction(self) -> Contraction:
        return self.price.strategy.contraction


@dataclass(frozen=True, slots=True)
class _StorageChoice:
    """One way to store a tensor: the steps between storage and product, and its bytes."""

    tensor: Tensor
    steps: tuple[StepPrice, ...]
    nbytes: int

    @property
    def seconds(self) -> float:
        return sum(s.expected_s for s in self.steps)


@dataclass(frozen=True, slots=True)
class _Task:
    contraction: Contraction
    dims: Mapping[str, int]
    mesh: Mesh
    dtype: Dtype


def best_layouts(
    contraction: Contraction,
    *,
    dims: Mapping[str, int],
    mesh: Mesh,
    dtype: Dtype,
    memory_bytes: int | None = None,
    count: int = 5,
) -> tuple[PricedLayout, ...]:
    """The fastest layouts whose stored shards fit `memory_bytes` a device, best first.

    >>> from rooflight.algebra.notation import parse_contraction
    >>> from rooflight.dtypes import DTYPES
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> free = parse_contraction("A[I,J] * B[J,K] -> C[I,K]")
    >>> best = best_layouts(free, dims={"I": 4096, "J": 4096, "K": 4096}, dtype=DTYPES["bf16"],
    ...     mesh=parse_mesh("X=2,Y=2", on="v5e:2x2"), memory_bytes=10**9)[0]
    >>> str(best.contraction)
    'A[I_X,J] * B[J,K_Y] -> C[I_X,K_Y]'
    """
    task = _Task(contraction, dims, mesh, dtype)
    found: dict[str, PricedLayout] = {}
    smallest: int | None = None
    for split in _splits(contraction, mesh):
        for layout in _layouts(task, split):
            smallest = min(smallest or layout.stored_bytes, layout.stored_bytes)
            if memory_bytes is not None and layout.stored_bytes > memory_bytes:
                continue
            pattern = _pattern(layout.contraction, mesh)
            if pattern not in found or _order(layout) < _order(found[pattern]):
                found[pattern] = layout
    if not found:
        raise _too_small(contraction, memory_bytes, smallest)
    return tuple(sorted(found.values(), key=_order)[:count])


def _order(layout: PricedLayout) -> tuple[float, int, int, int]:
    """Time first, then bytes on the links, then bytes in memory, then the simpler program."""
    price = layout.price
    return price.expected_s, price.network_bytes, layout.stored_bytes, len(price.steps)


def _pattern(contraction: Contraction, mesh: Mesh) -> str:
    """The layout with alike axes numbered in order of appearance: mirror images count once."""
    names: dict[str, tuple[str, int]] = {}
    for axis in contraction.mesh_axes:
        group = mesh.group([axis])
        wires = [(r.size, r.wraps, r.stride) for r in group.rings]
        kind = f"{wires}{[(f.dim, f.size, f.members) for f in group.fans]}"
        names[axis] = (kind, sum(other == kind for other, _ in names.values()))
    tensors = (*contraction.operands, contraction.result)
    return str([[[names[a] for a in axes] for axes in t.axes] for t in tensors])


def _splits(contraction: Contraction, mesh: Mesh) -> Iterator[dict[str, Axes]]:
    """Every way to give each mesh axis one dim of the iteration space, or none."""
    dims = (*contraction.dims, None)
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    for choice in product(dims, repeat=len(axes)):
        taken = list(zip(axes, choice, strict=True))
        yield {d: tuple(a for a, chosen in taken if chosen == d) for d in contraction.dims}


def _layouts(task: _Task, split: Mapping[str, Axes]) -> Iterator[PricedLayout]:
    """For one split: every combination of the stored tensors' compromises."""
    contraction = task.contraction
    inputs = tuple(_split_as(t, split) for t in contraction.operands)
    summed = tuple(a for d in contraction.contracted for a in split[d])
    local = _split_as(contraction.result, split).with_unreduced(summed)
    try:
        einsum = price_step(Step("einsum", inputs, local), task.dims, task.mesh, task.dtype)
        stored = [
            _options(task, t, needed=i) for t, i in zip(contraction.operands, inputs, strict=True)
        ]
        stored.append(_options(task, contraction.result, made=local))
    except ShardingError:  # the sizes do not divide this way
        return
    for choice in product(*stored):
        yield _assemble(choice, einsum)


def _assemble(choice: tuple[_StorageChoice, ...], einsum: StepPrice) -> PricedLayout:
    before = [s for stored in choice[:-1] for s in stored.steps]
    steps = (*before, einsum, *choice[-1].steps)
    contraction = Contraction(tuple(s.tensor for s in choice[:-1]), choice[-1].tensor)
    strategy = Strategy(contraction, {}, tuple(s.step for s in steps))
    return PricedLayout(Price(strategy, steps), sum(s.nbytes for s in choice))


def _split_as(tensor: Tensor, split: Mapping[str, Axes]) -> Tensor:
    return Tensor(tensor.name, tensor.dims, tuple(split[d] for d in tensor.dims))


def _options(
    task: _Task, tensor: Tensor, *, needed: Tensor | None = None, made: Tensor | None = None
) -> list[_StorageChoice]:
    """The ways to store a tensor that no other way beats in both time and bytes."""
    options: list[_StorageChoice] = []
    for stored in _storages(tensor, task.mesh):
        source, target = (stored, needed) if needed else (made, stored)
        assert source is not None and target is not None
        try:
            nbytes = device_bytes(stored, task.dims, task.mesh.axes, task.dtype)
            path = reshard(source, target, task.mesh.axes)
            for step in path:
                local_shape(step.output, task.dims, task.mesh.axes)
            steps = tuple(price_step(s, task.dims, task.mesh, task.dtype) for s in path)
        except ShardingError:
            continue
        options.append(_StorageChoice(stored, steps, nbytes))
    return _undominated(options)


def _storages(tensor: Tensor, mesh: Mesh) -> Iterator[Tensor]:
    """A tensor with subscripts stays as written; a free one may use any axis on any dim."""
    if tensor.mesh_axes:
        yield tensor
        return
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    for choice in product((*range(len(tensor.dims)), None), repeat=len(axes)):
        taken = list(zip(axes, choice, strict=True))
        held = tuple(tuple(a for a, c in taken if c == i) for i in range(len(tensor.dims)))
        yield Tensor(tensor.name, tensor.dims, held)


def _undominated(options: list[_StorageChoice]) -> list[_StorageChoice]:
    kept: list[_StorageChoice] = []
    for option in sorted(options, key=lambda o: (o.seconds, o.nbytes, len(o.steps))):
        if not kept or option.nbytes < kept[-1].nbytes:
            kept.append(option)
    return kept


def _too_small(
    contraction: Contraction, memory_bytes: int | None, smallest: int | None
) -> ShardingError:
    if smallest is None:
        return ShardingError(
            f"no sharding of {contraction} divides the dims",
            hint="choose dim sizes that the mesh axes divide",
        )
    return ShardingError(
        f"no sharding of {contraction} fits {format_si(memory_bytes or 0, 'B')} per device;"
        f" the smallest stores {format_si(smallest, 'B')}",
        hint=f"allow at least --memory-cap {smallest}",
    )
