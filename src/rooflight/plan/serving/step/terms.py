"""The steps of a layer as seconds for each token, so that a step of any size is a few matmuls.

In: a graph, a layout of its dims and a mesh. Out: `MatmulTerm`s and `CommTerm`s, by the steps
of `training.derive.derivation`; weights and caches stay where they are, and of the strategies that
leave them there `costs.pick` takes the fastest at few tokens. Everything is linear in the tokens of
a step, so it is worked out once, for one token. What a token drives, by the dims of a tensor:

    T, or C (routed)   tokens of the step        T and S   pairs of query and key
    S                  positions of the cache    none      a weight, read once
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Contraction, Tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.shapes import ways
from rooflight.algebra.steps import Step
from rooflight.costs.choose import pick
from rooflight.costs.network import CollectiveKind, collective_time
from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.dtypes import DTYPES, Dtype
from rooflight.hardware.mesh import Mesh
from rooflight.models.graph.ops import Graph, Op
from rooflight.models.layout.rules import Layout
from rooflight.plan.serving.step.adapters import Adapters, is_target
from rooflight.plan.serving.step.experts import Balance
from rooflight.plan.serving.step.layout import Precision
from rooflight.plan.training.derive.algorithm import is_routed
from rooflight.plan.training.derive.derivation import Derived, derive_forward, known_strategies

Unit = Literal["tokens", "positions", "pairs"]


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """Routed experts of a chip: the time to read all it holds, and a token's chance to visit one.

    Of LoRA adapters likewise, one of which each sequence visits.

    >>> round(256 * ExpertReads(1.0, 8 / 256).touched(32), 1)
    163.3
    """

    read_s: float
    share: float  # k / E
    balance: Balance | None = None  # where some experts are hotter than others

    def touched(self, tokens: float) -> float:
        """The part of the experts that `tokens` visit: 1 - (1 - k/E)^n, routed uniformly."""
        if self.balance:
            return self.balance.touched(tokens)
        return 1 - (1 - self.share) ** tokens


@dataclass(frozen=True, slots=True)
class MatmulTerm:
    """One local matmul of a chip: seconds of the matrix unit and of HBM for each unit."""

    op: str
    part: str
    work: Unit  # what the FLOPs grow with
    split: int  # ways that sequences are split; 0 where tokens are routed and always balanced
    flops_s: float
    weights_s: float = 0.0
    experts: ExpertReads | None = None
    kv_s: float = 0.0  # of one position
    activations_s: float = 0.0  # of one token
    window: int | None = None


@dataclass(frozen=True, slots=True)
class CommTerm:
    """One collective: a latency, and seconds of bandwidth for each unit."""

    op: str
    part: str
    kind: str
    where: str
    unit: Unit
    split: int
    unit_s: float
    latency_s: float
    window: int | None = None


Term = MatmulTerm | CommTerm


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What the terms of all layers share."""

    graph: Graph
    layout: Layout
    mesh: Mesh
    precision: Precision
    balance: Balance | None = None  # of experts; None where all are alike
    adapters: Adapters | None = None

    @property
    def busiest(self) -> float:
        """Of the ranks that have experts, over the mean."""
        return self.balance.busiest if self.balance else 1.0

    @property
    def axes(self) -> dict[str, int]:
        return self.mesh.axes

    @property
    def weights(self) -> frozenset[str]:
        return frozenset(p.tensor.name for p in self.graph.params)

    @property
    def caches(self) -> frozenset[str]:
        return frozenset(c.tensor.name for c in self.graph.caches)


def layer_terms(setting: StepSpec, ops: Iterable[Op]) -> tuple[Term, ...]:
    """Derives the forward steps of a layer, or of the head, and sizes them up."""
    ops, sizes = list(ops), padded_sizes(setting)
    shares = {c: float(n) for c, n in setting.graph.per_token.items()}
    one = sizes | {"B": 1, "T": 1, "S": 1} | shares
    read: set[str] = set()
    found: list[Term] = []
    for derived in derive_steps(setting, ops):
        if derived.step.op == "einsum":
            found.append(_matmul(derived, setting, one, read))
        elif derived.step.op != "slice":
            found.append(_message(derived, setting, one))
    return (*found, *_adapter_terms(setting, ops))


def _adapter_terms(setting: StepSpec, ops: Iterable[Op]) -> Iterator[MatmulTerm]:
    """Down to the rank and up again; weights of one input (q, k, v) share the two kernels."""
    adapters, chip, layout = setting.adapters, setting.mesh.slice.chip, setting.layout
    if adapters is None:
        return
    kept, hbm = setting.precision.activations, memory_bytes_per_s(chip)
    peak = chip.peak_flops(chip.matmul_dtype(kept.name))
    split = ways(layout.stream.get("B", ()), setting.axes)
    ranks = split * ways(layout.stream.get("T", ()), setting.axes)
    element_s = kept.bits_per_element / 8 / hbm
    fused: dict[str, list[Op]] = {}
    for op in filter(is_target, ops):
        (fed,) = (x.name for x in op.contraction.operands if x.name not in setting.weights)
        fused.setdefault(fed, []).append(op)
    for alike in fused.values():
        inner, outer = zip(*(adapter_sides(setting, op) for op in alike), strict=True)
        # the result of the matmul is read, added to and written
        for name, side, moved in (("a", sum(inner), inner[0]), ("b", sum(outer), 2 * sum(outer))):
            held = adapters.rank * side
            reads = ExpertReads(adapters.count * held * element_s, 1 / adapters.count)
            flops_s = 2 * held / ranks / peak
            moved_s = (moved + len(alike) * adapters.rank) / ranks * element_s
            op = f"{alike[0].name}.lora_{name}"
            yield MatmulTerm(op, "adapters", "tokens", split, flops_s, 0.0, reads, 0.0, moved_s)


def adapter_sides(setting: StepSpec, op: Op) -> tuple[int, int]:
    """Of the part of a weight that a chip has: rows by which A is as long, columns as of B."""
    sizes, contracted = padded_sizes(setting), op.contraction.contracted
    (weight,) = (t for t in op.contraction.operands if t.name in setting.weights)
    placed = setting.layout.of_weight(weight)
    local = {d: -(-sizes[d] // ways(placed.axes_of(d), setting.axes)) for d in placed.dims}
    inner = math.prod(n for d, n in local.items() if d in contracted)
    return inner, math.prod(local.values()) // inner


def derive_steps(setting: StepSpec, ops: Iterable[Op]) -> tuple[Derived, ...]:
    """The steps, each contraction done in the fastest way that moves no weight and no cache."""
    dims, mesh = nominal_sizes(setting), setting.mesh
    stays = setting.weights | (
        setting.caches if setting.layout.cache is not None else frozenset[str]()
    )

    def choose(contraction: Contraction) -> Strategy:
        found = known_strategies(contraction)
        still = [s for s in found if not any(c.output.name in stays for c in s.collectives)]
        dtype = setting.precision.activations
        return pick(still or found, dims=dims, mesh=mesh, dtype=dtype).strategy

    ops = list(ops)
    found = derive_forward(setting.graph, ops, setting.layout, choose)
    merges = [d for op in ops if op.name == "attention.softmax" for d in _merge(setting, op)]
    last = next((i for i, d in enumerate(found) if d.op.name == "attention.mix"), 0)
    found = (*found[:last], *merges, *found[last:])
    return tuple(d for d in found if not _is_summed_before(d, found))


def _merge(setting: StepSpec, softmax: Op) -> list[Derived]:
    """Where positions are split, each chip has a part of every sum of the softmax.

    The largest score travels and then the sum of exponentials, one for a query and head.
    """
    scores = setting.layout.of_activation(softmax.contraction.result)
    pairs = zip(scores.dims, scores.axes, strict=True)
    dims, axes = zip(*((d, a) for d, a in pairs if d != "S"), strict=True)
    found = [Tensor(name, dims, axes) for name in ("softmax_max", "softmax_sum")]
    sums = [reshard(t.with_unreduced(scores.axes_of("S")), t) for t in found]
    return [Derived(softmax, step, "critical") for steps in sums for step in steps]


def _is_summed_before(derived: Derived, found: Sequence[Derived]) -> bool:
    """Routed and shared experts' parts of a sum are added on the chip: one all-reduce for both."""
    step = derived.step
    return derived.op.part == "shared" and any(
        d.op.name == "experts.combine" and (d.step.op, d.step.axes) == (step.op, step.axes)
        for d in found
    )


def padded_sizes(setting: StepSpec) -> dict[str, int]:
    """The model's dims, rounded up to what splits evenly, as engines pad heads and vocabulary."""
    layout = setting.layout
    rules = (layout.weight, layout.stream, layout.inner, layout.scores, layout.cache or {})
    losable = layout.weight.get("D", ())

    def multiple(dim: str) -> int:
        base = dim.rstrip("0123456789")
        every = [ways(rule.get(base, ()), setting.axes) for rule in rules]
        return math.lcm(*every, ways(losable, setting.axes) if base in ("Q", "R", "L") else 1)

    return {d: -(-n // multiple(d)) * multiple(d) for d, n in setting.graph.sizes.items()}


def nominal_sizes(setting: StepSpec) -> dict[str, int]:
    """Sizes to choose strategies at: a token for every chip, so that every split is even."""
    chips = math.prod(setting.axes.values())
    received = dict.fromkeys(setting.graph.per_token, chips)
    return padded_sizes(setting) | {"B": chips, "T": chips, "S": chips} | received


def _local(tensor: Tensor, sizes: Mapping[str, float], axes: Mapping[str, int]) -> float:
    return math.prod(sizes[d] for d in tensor.dims) / ways(tensor.sharded_over, axes)


def _unit(dims: Iterable[str]) -> Unit:
    held = set(dims)
    if "S" not in held:
        return "tokens"
    return "pairs" if "T" in held else "positions"


def _split(tensors: Sequence[Tensor], axes: Mapping[str, int]) -> int:
    if any(is_routed(d) for t in tensors for d in t.dims):
        return 0
    return max(ways(t.axes_of("B"), axes) for t in tensors)


def _matmul(
    derived: Derived, setting: StepSpec, one: Mapping[str, float], read: set[str]
) -> MatmulTerm:
    """Each operand read once, the result written once; scores are never written."""
    op, step, axes = derived.op, derived.step, setting.axes
    chip, precision = setting.mesh.slice.chip, setting.precision
    hbm = memory_bytes_per_s(chip)
    compute = (
        precision.activations.name if op.kind == "attention" else precision.compute_of(op.part)
    )
    seconds = {"weights": 0.0, "positions": 0.0, "tokens": 0.0, "pairs": 0.0}
    experts: ExpertReads | None = None
    for tensor in (*step.inputs, step.output):
        kind, dtype = _kept_as(tensor, op, setting)
        read_s = _local(tensor, one, axes) * dtype.bits_per_element / 8 / hbm
        if kind == "weights" and "E" in tensor.dims and op.part == "experts":
            share = next(float(p.active) for p in setting.graph.params if p.name in op.params)
            experts = ExpertReads(read_s, share, setting.balance)
        elif tensor.name not in read or kind != "positions":
            seconds[kind] += read_s
        if kind == "positions":  # a latent is key and value at once
            read.add(tensor.name)
    busiest = setting.busiest if experts else 1.0
    return MatmulTerm(
        op.name,
        op.part,
        _unit(d for t in step.inputs for d in t.dims),
        _split((*step.inputs, step.output), axes),
        busiest * 2 * _multiplies(step, one, axes) / chip.peak_flops(chip.matmul_dtype(compute)),
        seconds["weights"],
        experts,
        seconds["positions"],
        busiest * seconds["tokens"],
        op.mask.window if op.mask else None,
    )


def _multiplies(step: Step, one: Mapping[str, float], axes: Mapping[str, int]) -> float:
    dims = dict.fromkeys(d for t in step.inputs for d in t.dims)
    split = dict.fromkeys(a for t in step.inputs for a in t.sharded_over)
    return math.prod(one[d] for d in dims) / ways(tuple(split), axes)


def _kept_as(tensor: Tensor, op: Op, setting: StepSpec) -> tuple[str, Dtype]:
    """What a tensor's reads are counted as, and the dtype it is stored in."""
    precision = setting.precision
    if tensor.name in setting.weights:
        return "weights", precision.of_part(op.part)
    unit = _unit(tensor.dims)
    is_cache = unit == "positions" and tensor.name in setting.caches
    return unit, precision.kv if is_cache else precision.activations


def _message(derived: Derived, setting: StepSpec, one: Mapping[str, float]) -> CommTerm:
    step, axes, op = derived.step, setting.axes, derived.op
    group = setting.mesh.group(step.axes)
    kind: CollectiveKind = "all_to_all" if step.op == "permute" else _kind(step)
    larger = step.larger
    elements = _local(larger, one, axes)
    if kind == "all_to_all":
        elements *= group.size
    nbytes = elements * sent_dtype(op, setting.precision.activations).bits_per_element / 8
    split = _split((step.inputs[0], step.output), axes)
    busiest = 1.0 if split else setting.busiest  # of what is routed
    time = collective_time(kind, nbytes, group)
    return CommTerm(
        op.name,
        op.part,
        kind,
        "+".join(sorted(step.axes)),
        _unit(larger.dims),
        split,
        busiest * time.bandwidth_s,
        time.latency_s,
        op.mask.window if op.mask else None,
    )


def sent_dtype(op: Op, activations: Dtype) -> Dtype:
    """What the collectives of an op carry."""
    return DTYPES["f32"] if op.name == "attention.softmax" else activations


def _kind(step: Step) -> CollectiveKind:
    assert step.op != "einsum" and step.op != "slice", f"not a collective: {step}"
    return step.op
