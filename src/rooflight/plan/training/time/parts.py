"""The parts of a training step that take time on a chip: what a calibration prices one by one.

In: a graph, a layout, a mesh, a batch. Out: `Parts`, seconds at the roofs of the catalog. Beside
the matmuls and collectives of `algorithm`, these are the memory passes that a roof leaves out:

    elementwise   norms, activations, sums, the loss: every operand read, every result written;
                  the backward pass moves twice as much
    rotary        queries and keys read and written once forward and once backward
    casts         matmuls in fewer than 16 bits: what they read and is no weight is written once
                  along rows and once along columns; reading it is part of the op before
    dispatch      tokens copied to the order of their experts and back
    optimizer     weights, gradient, master and two moments of this chip's share, once a step; on a
                  host also the stacks of weights and gradients that a program scans
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import device_bytes, ways
from rooflight.algebra.steps import Step
from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES, Dtype
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.count import dim_sizes, training_flops
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import Layout
from rooflight.plan.training.derive.algorithm import (
    Algorithm,
    PricedStep,
    derive_algorithm,
    pad_routed,
)
from rooflight.plan.training.derive.derivation import token_axes
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS, Remat, is_score, keep
from rooflight.plan.training.time.stage_time import HEAD, step_shares
from rooflight.plan.training.time.stages import BUBBLES, idle_rounds, seconds_of
from rooflight.plan.training.time.step_time import layer_runs
from rooflight.plan.training.time.traffic import (
    Traffic,
    experts_per_token,
    sent_on_a_host,
    sent_once,
    traffic_of,
)
from rooflight.plan.training.time.work import Hops, Parts, Work, WorkKind

STORED = DTYPES["bf16"]  # activations, gathered weights and gradients, unless a run says so
_WHOLE = Microbatching()
OPTIMIZER_BYTES = 30  # a parameter: read gradient, master, two moments (16), write them and bf16
LOSS_BYTES = 16  # a logit: written, read twice in float32, its gradient written
_HOST_BYTES = 28  # a parameter updated by the host: the optimizer's bytes in its memory
# Of our own program on a host, over weights that are split no further than their layout says: the
# stack of gradients is cleared, written layer by layer and read for its sum; the stack of new
# weights is gathered, read and laid out anew. Elsewhere what is fitted has this in its constants.
STACK_PASSES = 6


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training step as a calibration sees it; `compute` is the dtype of weight matmuls."""

    graph: Graph
    layout: Layout
    mesh: Mesh
    batch: int
    seq: int
    compute: Dtype = STORED
    micro: Microbatching = _WHOLE
    remat: Remat = REMATS["none"]
    freezes_weights: bool = False  # adapters only: no weight gradients
    updates_on_host: bool = False
    stored: Dtype = STORED
    in_step: bool = False  # stages of a pipeline run in lock step, as those of our own program do
    sends_once: bool = True  # a unit gets a token once; a plain all-to-all sends k copies
    hides_exchanges: bool = True  # False where tokens to experts are known to wait alone


def training_parts(run: TrainingRun) -> Parts:
    """Lists what the slowest stage of a step spends time on.

    >>> from rooflight.models.graph.build import model_graph
    >>> from rooflight.models.layout.rules import parse_layout
    >>> from rooflight.models.presets import load_model
    >>> from rooflight.hardware.mesh import parse_mesh
    >>> mesh = parse_mesh("X=256", on="v5e:16x16")
    >>> graph = model_graph(load_model("llama3-8b"))
    >>> parts = training_parts(TrainingRun(graph, parse_layout("fsdp=X"), mesh, 512, 2048))
    >>> matmuls_s = sum(w.count * w.flops_s for w in parts.works)
    >>> round(matmuls_s * parts.peak_flops / parts.model_flops, 6)  # nothing is recomputed
    1.0
    """
    layers = _LayerParts(run)
    stages = ways(run.layout.stages, run.mesh.axes)
    shares = step_shares(run.graph.order, stages, run.micro, in_step=run.in_step)
    roofs = {block: layers.roof_s(block) for block in layers.ops}
    held = max(shares, key=lambda share: sum(n * roofs[b] for b, n in share.items()))
    count = run.micro.count
    works = [w for block, n in held.items() for w in _times(layers.works(block), n * count)]
    traffic = [t for block, n in held.items() for t in _sent(layers.traffic(block), n, count)]
    traffic += _between_stages(run, stages)
    works += _updates(run, stages)
    chip = run.mesh.slice.chip
    return Parts(
        _merged(works),
        tuple(traffic),
        count,
        bubble_part(run.micro, stages, in_step=run.in_step),
        float(training_flops(run.graph, batch=run.batch, seq=run.seq, causal=True))
        / run.mesh.slice.num_chips,
        chip.peak_flops(chip.matmul_dtype(run.compute.name)),
        host_s=host_seconds(
            chip, count * sum(n * layers.host_bytes(block) for block, n in held.items())
        ),
        hides_exchanges=run.hides_exchanges,
        hops=tuple(
            replace(h, count=h.count * n * count) for b, n in held.items() for h in layers.hops(b)
        ),
    )


def host_seconds(chip: Chip, nbytes: Any) -> Any:
    """Out in the forward pass and back in the backward pass; `nbytes` may be an array."""
    return 2 * nbytes / (chip.pcie_bytes_per_s or float("inf"))


def _merged(works: Sequence[Work]) -> tuple[Work, ...]:
    """Equal matmuls as one; memory passes of a kind as one of their mean size."""
    counts: dict[Work, float] = {}
    moved: dict[WorkKind, tuple[float, float]] = {}
    for w in works:
        if w.flops_s or w.once:
            one = replace(w, count=1.0)
            counts[one] = counts.get(one, 0.0) + w.count
        else:
            n, seconds = moved.get(w.kind, (0.0, 0.0))
            moved[w.kind] = (n + w.count, seconds + w.count * w.bytes_s)
    passes = [Work(k, STORED.name, 0.0, s / n, n) for k, (n, s) in moved.items()]
    return (*(replace(w, count=n) for w, n in counts.items()), *passes)


def _times(works: Sequence[Work], n: float) -> Iterator[Work]:
    for w in works:
        yield replace(w, count=w.count * n)


def _sent(traffic: Sequence[Traffic], layers: float, microbatches: int) -> Iterator[Traffic]:
    for t in traffic:
        n = layers * (1 if t.once else microbatches)
        yield replace(t, count=t.count * n)


def bubble_part(micro: Microbatching, stages: Any, *, in_step: bool = False) -> Any:
    """Microbatches that fill and drain a pipeline; `stages` may be an array.

    Forms are linear, so a third of each slot makes one microbatch. In lock step a backward runs its
    forward again: a quarter is forward.
    """
    if in_step:
        idle = seconds_of(*idle_rounds(stages), micro.virtual, (1 / 4, 1 / 2, 1 / 4))
    else:
        form = BUBBLES.get(micro.schedule, BUBBLES["1f1b"])
        idle = form.idle(stages, micro.virtual, 1 / 3, 1 / 3, 1 / 3)
    return idle * (stages > 1) + 0.0


@dataclass(slots=True)
class _LayerParts:
    """The work and traffic of one layer of each block, in one microbatch, derived once."""

    run: TrainingRun
    dims: Mapping[str, int]
    ops: Mapping[int, Sequence[Op]]
    algorithms: Mapping[int, Algorithm]

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        sizes = dim_sizes(run.graph, batch=run.batch // run.micro.count, seq=run.seq)
        self.dims = pad_routed(sizes, ways(token_axes(run.layout), run.mesh.axes))
        self.ops = dict(layer_runs(run.graph))
        self.algorithms = {
            block: derive_algorithm(
                run.graph, ops, run.layout, mesh=run.mesh, dims=sizes, dtype=run.stored
            )
            for block, ops in self.ops.items()
        }

    def roof_s(self, block: int) -> float:
        return sum(w.count * max(w.flops_s, w.bytes_s) for w in self.works(block))

    def works(self, block: int) -> list[Work]:
        recomputed = self._recomputed(block)
        matmuls = list(self._matmuls(block, recomputed))
        found = [self._matmul(line) for line in matmuls]
        found += [self._pass("elementwise", nbytes) for nbytes in self._casts(matmuls)]
        found += [w for op in self.ops[block] for w in self._memory(op, recomputed)]
        return found

    def host_bytes(self, block: int) -> float:
        """What one microbatch leaves in host memory."""
        if not self.run.remat.on_host or block == HEAD or self._is_in_step:
            return 0.0
        return self._bytes(keep(self.ops[block], self.run.remat).tensors)

    @property
    def _is_in_step(self) -> bool:
        return self.run.in_step and ways(self.run.layout.stages, self.run.mesh.axes) > 1

    def _recomputed(self, block: int) -> set[str]:
        """The ops that the backward pass recomputes; in lock step all of a stage."""
        if self._is_in_step and block != HEAD:
            return {op.name for op in self.ops[block]}
        return {op.name for op in keep(self.ops[block], self.run.remat).ops}

    def _matmuls(self, block: int, recomputed: set[str]) -> Iterator[PricedStep]:
        algorithm = self.algorithms[block]
        for line in algorithm.spent:
            if line.price.op and not (line.slot == "W" and self.run.freezes_weights):
                yield line
        for line in algorithm.forward:
            if line.price.op and line.op in recomputed:
                yield line

    def _matmul(self, line: PricedStep) -> Work:
        """Matmuls with a weight run in the run's dtype, those of attention in 16 bits."""
        chip, dtype = (
            self.run.mesh.slice.chip,
            self.run.compute if has_weight(line.step) else self.run.stored,
        )
        kind: WorkKind = "matmul" if has_weight(line.step) else "attention"
        kind = "experts" if line.op.startswith("experts.") else kind
        peak = chip.peak_flops(chip.matmul_dtype(dtype.name))
        moved = line.price.nbytes
        if dtype.bits < self.run.stored.bits:
            read = self._held(line.step.inputs)
            moved -= read - read * dtype.bits // self.run.stored.bits
        return Work(kind, dtype.name, line.price.flops / peak, moved / _hbm(chip), 1.0)

    def _casts(self, matmuls: Sequence[PricedStep]) -> Iterator[int]:
        """Bytes written to narrow what matmuls read; weights are narrowed once a step."""
        if self.run.compute.bits >= self.run.stored.bits:
            return
        read = {t: None for p in matmuls if has_weight(p.step) for t in p.step.inputs}
        for tensor in read:
            if not tensor.name[0].isupper():
                yield 2 * self._held([tensor]) * self.run.compute.bits // self.run.stored.bits

    def _held(self, tensors: Sequence[Tensor]) -> int:
        axes = self.run.mesh.axes
        return sum(device_bytes(t, self.dims, axes, self.run.stored) for t in tensors)

    def _memory(self, op: Op, recomputed: set[str]) -> Iterator[Work]:
        if op.name == "head.logits":
            logits = self._bytes([op.contraction.result]) / self.run.stored.nbytes(1)
            yield self._pass("elementwise", LOSS_BYTES * logits)
        if op.name == "attention.scores":
            yield self._pass("elementwise", 4 * self._bytes(op.contraction.operands))
        if op.kind in ("elementwise", "route"):
            moved = self._moved(op)
            kind: WorkKind = "dispatch" if op.kind == "route" else "elementwise"
            yield self._pass(kind, (4 if op.name in recomputed else 3) * moved)

    def _moved(self, op: Op) -> float:
        if op.kind == "route":  # the zero-one operand is never there; rows are read and written
            routed = [t for t in (*op.contraction.operands, op.contraction.result) if "D" in t.dims]
            return 2 * max(self._bytes([t]) for t in routed)
        return self._bytes([*op.contraction.operands, op.contraction.result])

    def _bytes(self, tensors: Sequence[Tensor]) -> float:
        layout, axes = self.run.layout, self.run.mesh.axes
        return float(
            sum(
                device_bytes(layout.of_activation(t), self.dims, axes, self.run.stored)
                for t in tensors
                if not t.name[0].isupper() and not is_score(t)
            )
        )

    def _pass(self, kind: WorkKind, nbytes: float) -> Work:
        return Work(kind, self.run.stored.name, 0.0, nbytes / _hbm(self.run.mesh.slice.chip), 1.0)

    def traffic(self, block: int) -> list[Traffic]:
        algorithm = self.algorithms[block]
        recomputed = self._recomputed(block)
        found: list[Traffic] = []
        for line in algorithm.spent:
            if not (line.hops or (line.waits == "async" and self.run.freezes_weights)):
                found += self._traffic(line, once=line.once)
        for line in algorithm.forward:
            if line.op in recomputed and line.waits == "critical" and not line.hops:
                found += self._traffic(line, once=False)
        return found

    def hops(self, block: int) -> Iterator[Hops]:
        """The passes of a layer that go hop by hop; a forward that is recomputed hops again."""
        algorithm, recomputed = self.algorithms[block], self._recomputed(block)
        for side in (algorithm.forward, algorithm.backward):
            sent = [line for line in side if line.hops]
            if not sent:
                continue
            names = {line.op for line in sent}
            again = side is algorithm.forward and bool(names & recomputed)
            devices = ways(sent[0].step.axes, self.run.mesh.axes)
            sums = (line for line in sent if line.step.op == "reduce_scatter")
            yield Hops(
                tuple(self._matmul(x) for x in side if x.price.op and x.op in names),
                tuple(t for line in sent for t in self._traffic(line, once=False)),
                tuple(
                    replace(t, count=1 / devices)
                    for line in sums
                    for t in self._traffic(line, once=False)
                ),
                devices,
                1.0 + again,
            )

    def _traffic(self, line: PricedStep, *, once: bool) -> Iterator[Traffic]:
        time = line.price.network
        is_critical = line.waits == "critical"
        if time and time.kind == "all_to_all" and is_critical and self.run.sends_once:
            group = self.run.mesh.group(line.step.axes)
            time = sent_once(time, group, experts_per_token(self.run.graph))
        if time and self.run.mesh.slice.chip.kind == "cpu":
            group = self.run.mesh.group(line.step.axes)
            for one in sent_on_a_host(time, group, is_critical=is_critical):
                yield from traffic_of(one, is_critical=is_critical, once=once)
            return
        yield from traffic_of(time, is_critical=is_critical, once=once)


def has_weight(step: Step) -> bool:
    """Whether a matmul reads a weight or makes the gradient of one."""
    tensors = (*step.inputs, step.output)
    return any(t.name[0].isupper() or t.name[:2] == "dW" for t in tensors)


def _hbm(chip: Chip) -> float:
    return chip.hbm_bytes_per_s or float("inf")


def _between_stages(run: TrainingRun, stages: int) -> Iterator[Traffic]:
    """The stream to the next stage and its gradient back, for each chunk of a stage."""
    if stages == 1:
        return
    dims = dim_sizes(run.graph, batch=run.batch // run.micro.count, seq=run.seq)
    stream = run.layout.of_activation(Tensor("x", ("B", "T", "D"), ((), (), ())))
    nbytes = device_bytes(stream, dims, run.mesh.axes, run.stored)
    time = collective_time("permute", nbytes, run.mesh.group(run.layout.stages))
    count = 2.0 * run.micro.virtual * run.micro.count
    for t in traffic_of(time, is_critical=True, once=False):
        yield replace(t, count=count)


def _updates(run: TrainingRun, stages: int) -> Iterator[Work]:
    """The optimizer's pass over this chip's share of the parameters, split over all data axes."""
    if run.freezes_weights:
        return
    params = sum(elements_of(run.graph, p.tensor) * p.count for p in run.graph.params)
    share = params / run.mesh.slice.num_chips
    chip = run.mesh.slice.chip
    if run.updates_on_host:
        rate = chip.pcie_bytes_per_s or float("inf")
        yield Work("host", run.stored.name, 0.0, _HOST_BYTES * share / rate, 1.0, once=True)
        return
    yield Work(
        "optimizer", run.stored.name, 0.0, OPTIMIZER_BYTES * share / _hbm(chip), 1.0, once=True
    )
    if chip.kind == "cpu":
        bytes_s = STACK_PASSES * held_weights(run) / _hbm(chip)
        yield Work("optimizer", run.stored.name, 0.0, bytes_s, 1.0, once=True)


def held_weights(run: TrainingRun) -> int:
    """Bytes of the weights that a device has between steps, copies on other devices not counted."""
    sizes, axes = run.graph.sizes, run.mesh.axes
    return sum(
        p.count * device_bytes(run.layout.of_weight(p.tensor), sizes, axes, run.stored)
        for p in run.graph.params
    )


def elements_of(graph: Graph, tensor: Tensor) -> int:
    found = 1
    for dim in tensor.dims:
        found *= graph.sizes[dim]
    return found
