"""Bytes a chip holds in a training step, by component, each with its reason.

In: a `Job`: a graph, a layout, axis sizes, a chip, a batch, what is stored of a parameter and of an
activation. Out: `Memory`. Every tensor goes through the layout, so nothing here knows a
parallelism. The bytes are a closed form; a compiler adds padding, fragments and its own buffers.

    activations   kept in the layout's own sharding, not as gathered for a product
    attention     a kernel: arrays of T x S are never stored
    gathered      two weights, one in use and one ahead, and one gradient before it is scattered
    workspace     the larger of two moments: the loss, and the backward pass of a layer
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rooflight.algebra import local_shape, ways
from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.graph import Param, op_flops, training_flops
from rooflight.plan.in_flight import Layers, Part, gathered_weights, workspace
from rooflight.plan.job import Job, kept_bytes
from rooflight.plan.remat import REMATS, keep
from rooflight.specs.chip import Chip
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class Memory:
    """What one chip holds, what it has, and what the remat policy costs."""

    parts: tuple[Part, ...]
    hbm_bytes: int
    host_bytes: int  # of one chip, where kept activations wait in host memory
    offload_s: float | None  # to the host and back in each step; None where PCIe is unknown
    training_flops: int  # of the step on all chips, nothing done again
    again_flops: int  # done again in the backward pass

    @property
    def total_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.hbm_bytes

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative where it does not fit."""
        return self.hbm_bytes - self.total_bytes

    @property
    def extra_flops(self) -> float:
        """FLOPs done again as a part of the step's own."""
        return self.again_flops / self.training_flops

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def largest(self, count: int) -> list[Part]:
        return sorted(self.parts, key=lambda part: -part.nbytes)[:count]


def memory(job: Job) -> Memory:
    """Counts every component of a job on one chip.

    >>> from rooflight.graph import model_graph
    >>> from rooflight.graph.layout import parse_layout
    >>> from rooflight.specs import load_chip, load_model
    >>> graph, layout = model_graph(load_model("llama3-70b")), parse_layout("fsdp=X")
    >>> found = memory(Job(graph, layout, {"X": 512}, load_chip("v5p"), batch=512, seq=8192))
    >>> found.part("saved activations").nbytes == 82 * 8192 * 8192 * 2  # 80 layers and the head
    True
    """
    layers = _layers(job)
    saved, host_bytes = _saved(job, layers)
    return Memory(
        parts=(*_state(job), saved, gathered_weights(job), workspace(job, layers)),
        hbm_bytes=usable_hbm_bytes(job.chip),
        host_bytes=host_bytes,
        offload_s=_offload_seconds(job.chip, host_bytes),
        training_flops=training_flops(job.graph, batch=job.batch, seq=job.seq, causal=True),
        again_flops=_again_flops(job, layers),
    )


def usable_hbm_bytes(chip: Chip) -> int:
    """What the compiler lets a program use where the catalog has it, else all of the HBM."""
    usable = chip.detail.get("hbm_usable_bytes", chip.hbm_bytes)
    if usable is None:
        raise UsageError(
            f"the catalog does not know the HBM of {chip.title}",
            hint="add hbm_bytes to your own chip file, or choose another chip (`rooflight chips`)",
        )
    return int(usable)


def _state(job: Job) -> list[Part]:
    """Weights, gradients, master weights and moments: every param through the layout."""
    recipe = job.recipe
    optimizer = job.data_axes if job.zero >= 1 else ()
    gradients = job.data_axes if job.zero >= 2 else ()
    return [
        _stored("weights", _one(recipe.weights), (), job),
        _stored("gradients", _one(recipe.gradients), gradients, job),
        _stored("master weights", _one(recipe.master), optimizer, job),
        _stored("optimizer moments", recipe.moments, optimizer, job),
    ]


def _one(dtype: Dtype | None) -> tuple[Dtype, ...]:
    return (dtype,) if dtype else ()


def _stored(name: str, dtypes: Sequence[Dtype], extra: tuple[str, ...], job: Job) -> Part:
    """Numbers of each parameter; `extra` axes split what the layout leaves on a chip."""
    if not dtypes:
        return Part(name, 0, f"recipe {job.recipe.name} keeps none")
    nbytes = sum(
        p.count * dtype.nbytes(_elements(p, extra, job))
        for p in job.graph.params
        for dtype in dtypes
    )
    each = " + ".join(dtype.name for dtype in dtypes)
    more = f", split over {'*'.join(extra)} too (zero {job.zero})" if extra else ""
    return Part(name, nbytes, f"{each} under {job.layout.text}{more}")


def _elements(param: Param, extra: tuple[str, ...], job: Job) -> int:
    """What a chip holds of a param; ZeRO splits it flat, so the last chip's part is shorter."""
    tensor = job.layout.of_weight(param.tensor)
    local = math.prod(local_shape(tensor, job.graph.sizes, job.axes))
    free = [axis for axis in extra if axis not in tensor.sharded_over]
    return -(-local // ways(free, job.axes))


def _layers(job: Job) -> list[Layers]:
    ops = [op for op in job.graph.ops if op.block is not None]
    found: list[Layers] = []
    for block in dict.fromkeys(op.block for op in ops):
        layer = tuple(op for op in ops if op.block == block)
        found.append(Layers(layer, keep(layer, job.remat), layer[0].count))
    return found


def _saved(job: Job, layers: Sequence[Layers]) -> tuple[Part, int]:
    """Kept activations on the chip, and those on the host; no policy touches the head."""
    compute = job.recipe.compute
    kept = sum(b.count * kept_bytes(b.kept.tensors, job, compute) for b in layers)
    frame = [op for op in job.graph.ops if op.block is None]
    ends = [t for t in keep(frame, REMATS["none"]).tensors if "V" not in t.dims]
    head = kept_bytes(ends, job, compute)
    if job.remat.on_host:
        because = f"inputs of the head; {format_si(kept, 'B')} more a chip wait on the host"
        return Part("saved activations", head, because), kept
    names = ", ".join(dict.fromkeys(t.name for b in layers for t in b.kept.tensors))
    because = f"{compute.name}, remat {job.remat.name}: {names} of each layer"
    return Part("saved activations", kept + head, because), 0


def _again_flops(job: Job, layers: Iterable[Layers]) -> int:
    exact: dict[str, int | Fraction] = {
        name: share * job.tokens for name, share in job.graph.per_token.items()
    }
    sizes = job.sizes() | exact
    ops = [op for b in layers for op in b.kept.ops]
    return math.ceil(sum(op.count * op_flops(op, sizes, causal=True) for op in ops))


def _offload_seconds(chip: Chip, host_bytes: int) -> float | None:
    """Out in the forward pass and back in the backward pass, t = 2 V / PCIe bandwidth."""
    if not host_bytes:
        return 0.0
    return 2 * host_bytes / chip.pcie_bytes_per_s if chip.pcie_bytes_per_s else None
