"""Bytes a chip holds in a training step, by component, each with its reason.

In: a `Job`: a graph, a layout, axis sizes, a chip, a batch, what is stored of a parameter and of an
activation. Out: `Memory`. Every tensor goes through the layout, so nothing here knows a
parallelism; the stages of a pipeline only share out the layers. The bytes are a closed form; a
compiler adds padding, fragments and its own buffers, and a `Framework` what is known of its copies.

    activations   saved in the layout's own sharding, not as gathered for a matmul
    attention     a kernel: arrays of T x S are never stored
    gathered      two weights, one in use and one ahead, and one gradient before it is scattered
    workspace     the larger of two moments: the loss, and the backward pass of a layer
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil

from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
from rooflight.models.graph.count import dim_sizes, op_flops, param_count, training_flops
from rooflight.plan.file.record import Part
from rooflight.plan.training.memory.framework import Spread, workspace_bytes
from rooflight.plan.training.memory.job import Job
from rooflight.plan.training.memory.remat import Remat, keep
from rooflight.plan.training.memory.sized import (
    BlockBytes,
    StateComponent,
    components,
    gathered_part,
    loss_dtypes,
    size_up,
    workspace_part,
)
from rooflight.plan.training.memory.template import Same
from rooflight.plan.training.time.stages import (
    Waiting,
    chunk_by_flops,
    chunk_layers,
    in_flight,
    num_chunks,
    stage_chunks,
)
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class Memory:
    """What one chip holds, what it has, and what the remat policy costs."""

    parts: tuple[Part, ...]
    hbm_bytes: int
    host_bytes: int  # of one chip, where saved activations wait in host memory
    offload_s: float | None  # to the host and back in each step; None where PCIe is unknown
    training_flops: int  # of the step on all chips, nothing recomputed
    recompute_flops: int  # recomputed in the backward pass
    stage: int = 0  # of the pipeline: the one that these chips hold
    num_layers: int = 0  # of the stage
    spread: Spread | None = None  # of the framework's measured runs

    @property
    def total_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.hbm_bytes

    @property
    def chance(self) -> float | None:
        """That it fits, by measured runs; what the allocator only caches it would give back."""
        needed = sum(part.nbytes for part in self.parts if part.name != "allocator")
        return self.spread.chance(needed, self.hbm_bytes) if self.spread else None

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative where it does not fit."""
        return self.hbm_bytes - self.total_bytes

    @property
    def extra_flops(self) -> float:
        """FLOPs recomputed as a part of the step's own."""
        return self.recompute_flops / self.training_flops

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def largest(self, count: int) -> list[Part]:
        return sorted(self.parts, key=lambda part: -part.nbytes)[:count]


def memory(job: Job) -> Memory:
    """Counts every component of a job on one chip: of the pipeline stage that needs most.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.layout.rules import parse_layout
    >>> from rooflight.hardware.catalog import load_chip
    >>> from rooflight.models.presets import load_model
    >>> graph, layout = model_graph(load_model("llama3-70b")), parse_layout("fsdp=X")
    >>> found = memory(Job(graph, layout, {"X": 512}, load_chip("v5p"), batch=512, seq=8192))
    >>> found.part("saved activations").nbytes == 82 * 8192 * 8192 * 2  # 80 layers and the head
    True
    """
    return max(memory_by_stage(job), key=lambda found: found.total_bytes)


def memory_by_stage(job: Job) -> tuple[Memory, ...]:
    """The same for every stage, from the first to the last."""
    sized = size_up(job)
    flops = _training_flops(Same(job.graph), job.batch, job.seq)
    recomputed = _recompute_flops(Same(job.graph), job.remat, job.microbatch, job.seq)
    found: list[Memory] = []
    for stage in _stages(job):
        waiting = _fullest(job, sized, stage)
        saved, host_bytes = _saved(job, sized, stage, waiting)
        parts = (*_state(job, sized, stage), saved, *_for_a_moment(job, sized, stage, waiting))
        parts += _of_the_framework(job, sized, stage, sum(part.nbytes for part in parts))
        found.append(
            Memory(
                parts=parts,
                hbm_bytes=usable_hbm_bytes(job.chip, job.hbm_margin),
                host_bytes=host_bytes,
                offload_s=_offload_seconds(job.chip, host_bytes),
                training_flops=flops,
                recompute_flops=job.micro.count * recomputed,
                stage=stage.index,
                num_layers=stage.layers.total(),
                spread=job.framework.spread,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Stage:
    """The layers of one stage by chunk, which ends it holds, and its fullest moments."""

    index: int
    chunks: tuple[Counter[int], ...]
    layers: Counter[int]  # of all its chunks
    has_embedding: tuple[bool, ...]  # for each chunk
    has_head: tuple[bool, ...]
    moments: tuple[Waiting, ...]

    def has_loss(self, waiting: Waiting) -> bool:
        """Whether a microbatch waits in the chunk of the head."""
        return any(n and head for n, head in zip(waiting, self.has_head, strict=True))


def _stages(job: Job) -> list[_Stage]:
    micro, stages = job.micro, job.num_stages
    if stages == 1:  # one chunk; microbatches follow each other and add up gradients
        layers = Counter(job.graph.order)
        return [_Stage(0, (layers,), layers, (True,), (True,), ((1,),))]
    places = stage_chunks(micro.schedule, stages, micro.virtual)
    last = num_chunks(places) - 1
    chunks = _cut(job, last + 1)
    waiting = in_flight(
        micro.schedule, stages=stages, microbatches=micro.count, virtual=micro.virtual
    )
    return [
        _Stage(
            index,
            tuple(Counter(chunks[c]) for c in held),
            Counter(block for c in held for block in chunks[c]),
            tuple(c == 0 for c in held),
            tuple(c == last for c in held),
            moments,
        )
        for index, (held, moments) in enumerate(zip(places, waiting, strict=True))
    ]


def _cut(job: Job, count: int) -> list[Sequence[int]]:
    layers = job.graph.order
    if job.micro.layers:
        return _as_given(layers, job.micro.layers, count)
    if len(layers) + job.framework.counted_ends < count:
        raise UsageError(
            f"{len(layers)} layers do not fill {count} pipeline stages",
            hint=f"use at most {len(layers)} stages, virtual ones included",
        )
    if not job.framework.cuts_by_flops:
        return chunk_layers(layers, count)
    matrices = [p for p in job.graph.params if p.block is not None and len(p.tensor.dims) > 1]
    mean = sum(param_count(job.graph, p, active=True) for p in matrices) / Fraction(len(layers))
    head = job.graph.sizes["V"] * job.graph.sizes["D"]
    return chunk_by_flops(layers, count, head=head / mean)


def _as_given(layers: Sequence[int], sizes: tuple[int, ...], count: int) -> list[Sequence[int]]:
    if len(sizes) != count or sum(sizes) != len(layers):
        found = f"{len(sizes)} chunks have {sum(sizes)} layers"
        raise UsageError(found, hint=f"give the {len(layers)} layers as {count} chunks")
    return [layers[end - n : end] for n, end in zip(sizes, accumulate(sizes), strict=True)]


def _fullest(job: Job, sized: BlockBytes, stage: _Stage) -> Waiting:
    """The fullest moment of a stage: the loss comes only where its chunk has a microbatch."""
    both = list(map(sum, zip(*_by_chunk(sized, stage), strict=True)))
    layer = max((sized.backward[b] for b in stage.layers), default=0)
    loss = 0 if job.framework.scans_layers else max(0, sized.loss - layer)  # a scan is in step
    return max(stage.moments, key=lambda w: _dot(w, both) + loss * stage.has_loss(w))


def _by_chunk(sized: BlockBytes, stage: _Stage) -> tuple[list[int], list[int]]:
    """What a microbatch keeps of the layers of each chunk, and of the head."""
    saved = [sum(n * sized.saved[b] for b, n in chunk.items()) for chunk in stage.chunks]
    return saved, [sized.head_saved if last else 0 for last in stage.has_head]


def _for_a_moment(job: Job, sized: BlockBytes, stage: _Stage, waiting: Waiting) -> tuple[Part, ...]:
    layers, has_head = stage.layers, any(stage.has_head)
    if job.framework.scans_layers:
        return scanned_parts(job, sized, layers, has_head=has_head)
    runs = [(n, sized.gathered[b]) for b, n in layers.items()]
    runs += [(1, sized.gathered["head"])] if has_head else []
    widest = max((sized.backward[b] for b in layers), default=0)
    loss = sized.loss if stage.has_loss(waiting) else None
    return gathered_part(job, runs), workspace_part(job, layer=widest, loss=loss)


def _of_the_framework(job: Job, sized: BlockBytes, stage: _Stage, nbytes: int) -> tuple[Part, ...]:
    """What only a named framework holds."""
    found: list[Part] = []
    buffers = workspace_bytes(job.framework, job.chip, has_experts="E" in job.graph.sizes)
    if buffers:
        because = "matmul workspaces of cuBLAS and Transformer Engine"
        found.append(Part("library buffers", buffers, because))
    if job.framework.unread_gradients:
        keys = [*stage.layers, *(["head"] if any(stage.has_head) else [])]
        shapes = {shape for key in keys for shape in sized.shapes[key]}
        size = sum(job.recipe.compute.nbytes(math.prod(shape)) for _, shape in shapes)
        because = f"{job.recipe.compute.name}, one of each shape of weight, which autograd asks for"
        found.append(Part("unread gradients", size, because))
    if job.framework.reserved:
        because = f"{job.framework.reserved:.0%} more than is allocated, as measured"
        found.append(Part("allocator", math.ceil(nbytes * job.framework.reserved), because))
    return tuple(found)


def usable_hbm_bytes(chip: Chip, margin: float = 0.0) -> int:
    """What the compiler lets a program use where the catalog has it, else all of the HBM.

    A margin is left for fragments, communication buffers and what else a closed form leaves out.
    """
    usable = chip.detail.get("hbm_usable_bytes", chip.hbm_bytes)
    if usable is None:
        raise UsageError(
            f"the catalog does not know the HBM of {chip.title}",
            hint="add hbm_bytes to your own chip file, or choose another chip (`rooflight chips`)",
        )
    return int(usable * (1 - margin))


def _state(job: Job, sized: BlockBytes, stage: _Stage) -> list[Part]:
    """Weights, gradients, master weights and moments; tied weights are on both end stages."""
    first, last = any(stage.has_embedding), any(stage.has_head)
    ends = (*(["embedding"] if first else ()), *(["head"] if last else ()))
    ends += ("tied",) if last and not first else ()
    held = [(n, sized.state[b]) for b, n in stage.layers.items()]
    held += [(1, sized.state[end]) for end in ends]
    return [
        _state_part(component, sum(n * sizes[index] for n, sizes in held), job)
        for index, component in enumerate(components(job))
    ]


def _state_part(component: StateComponent, nbytes: int, job: Job) -> Part:
    if not component.dtypes:
        return Part(component.name, 0, f"recipe {job.recipe.name} keeps none")
    each = " + ".join(dtype.name for dtype in component.dtypes)
    extra = component.extra
    more = f", split over {'*'.join(extra)} too (zero {job.zero})" if extra else ""
    return Part(component.name, nbytes, f"{each} under {job.layout.text}{more}")


def _saved(job: Job, sized: BlockBytes, stage: _Stage, waiting: Waiting) -> tuple[Part, int]:
    """Saved activations on the chip, and those on the host; no policy touches the head."""
    saved, head = (_dot(waiting, sizes) for sizes in _by_chunk(sized, stage))
    if job.remat.on_host:
        because = f"inputs of the head; {format_si(saved, 'B')} more a chip wait on the host"
        return Part("saved activations", head, because), saved
    layers = (sized.template.layers[b] for b in stage.layers)
    names = ", ".join(dict.fromkeys(name for layer in layers for name in layer.names))
    because = f"{job.recipe.compute.name}, remat {job.remat.name}: {names} of each layer"
    if job.num_stages > 1:
        because += f"; {' + '.join(map(str, waiting))} microbatches wait"
    return Part("saved activations", saved + head, because), 0


def _dot(counts: Sequence[int], sizes: Sequence[int]) -> int:
    return sum(n * size for n, size in zip(counts, sizes, strict=True))


@lru_cache(maxsize=256)
def _training_flops(same: Same, batch: int, seq: int) -> int:
    return training_flops(same.graph, batch=batch, seq=seq, causal=True)


@lru_cache(maxsize=256)
def _recompute_flops(same: Same, remat: Remat, batch: int, seq: int) -> int:
    graph = same.graph
    layers = [[op for op in graph.ops if op.block == block] for block in set(graph.order)]
    recomputed = [op for layer in layers for op in keep(layer, remat).ops]
    exact: dict[str, int | Fraction] = {
        name: share * batch * seq for name, share in graph.per_token.items()
    }
    sizes = dim_sizes(graph, batch=batch, seq=seq) | exact
    return math.ceil(sum(op.count * op_flops(op, sizes, causal=True) for op in recomputed))


def _offload_seconds(chip: Chip, host_bytes: int) -> float | None:
    """Out in the forward pass and back in the backward pass, t = 2 V / PCIe bandwidth."""
    if not host_bytes:
        return 0.0
    return 2 * host_bytes / chip.pcie_bytes_per_s if chip.pcie_bytes_per_s else None


# What a program that scans its layers holds for a moment: the fuller one of two.


@dataclass(frozen=True, slots=True)
class _WorkingSet:
    name: str
    stacked: int
    gathered: int
    workspace: int

    @property
    def nbytes(self) -> int:
        return self.stacked + self.gathered + self.workspace


def scanned_parts(
    job: Job, sized: BlockBytes, layers: dict[int, int], *, has_head: bool
) -> tuple[Part, ...]:
    """Of a stage that has so many `layers` of each block."""
    moments = [_layers(sized, layers, has_head=has_head)]
    moments += [_loss(job, sized)] if has_head else []
    most, *rest = sorted(moments, key=lambda moment: -moment.nbytes)
    others = "".join(f"; {m.name} takes {format_si(m.nbytes, 'B')} in all" for m in rest)
    recipe = job.recipe
    stacked = f"{recipe.weights.name}, of all layers until the optimizer takes them"
    what = {"the loss": "the table of the head and its gradient"}
    gathered = what.get(most.name, "a layer's weights and their gradients before the scatter")
    return (
        Part("stacked gradients", most.stacked, stacked if most.stacked else "after the loss"),
        Part("gathered weights", most.gathered, f"{recipe.compute.name}: {gathered}"),
        Part("workspace", most.workspace, f"{_work(job, most)}{others}"),
    )


def _work(job: Job, moment: _WorkingSet) -> str:
    if moment.name != "the loss":
        return "a layer in its backward pass"
    dtypes = " + ".join(d.name for d in loss_dtypes(job))
    return f"logits of up to {job.framework.loss_tokens} tokens at the loss ({dtypes})"


def _layers(sized: BlockBytes, layers: dict[int, int], *, has_head: bool) -> _WorkingSet:
    ends = ("head", "tied") if has_head else ()
    stacked = sum(n * sized.state[b][0] for b, n in layers.items())
    stacked += sum(sized.state[end][0] for end in ends)
    gathered = max((sum(g.nbytes for g in sized.gathered[b]) for b in layers), default=0)
    widest = max((sized.backward[b] for b in layers), default=0)
    return _WorkingSet("a layer", stacked, 2 * gathered, widest)


def _loss(job: Job, sized: BlockBytes) -> _WorkingSet:
    table = sum(g.nbytes for g in sized.gathered["head"])
    tokens = job.tokens_of_a_chip
    some = min(1.0, job.framework.loss_tokens / tokens) if job.framework.loss_tokens else 1.0
    return _WorkingSet("the loss", 0, table + sized.head_gradient, ceil(some * sized.loss))
