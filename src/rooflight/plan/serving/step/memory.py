"""What one chip holds of a served model: weights, caches by length, activations of a step.

In: a model, a slice, a `ServingLayout`, a `Precision`. Out: `ChipUsage`, and the largest batch and
the longest context that fit. The chip of the fullest pipeline stage is meant.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import ways
from rooflight.hardware.mesh import place
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.ops import HAS_FLOPS, Cache
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.step.adapters import Adapters, is_target
from rooflight.plan.serving.step.layout import Precision, ServingLayout, mesh_axes, rules
from rooflight.plan.serving.step.terms import StepSpec, adapter_sides, padded_sizes
from rooflight.plan.training.memory.count import usable_hbm_bytes
from rooflight.plan.training.time.stages import stage_layers

_LONGEST = 2**40  # positions; no memory on earth holds more


@dataclass(frozen=True, slots=True)
class ChipUsage:
    """Bytes on the fullest chip."""

    weights_bytes: int
    kv_bytes: int
    activations_bytes: int
    usable_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.activations_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.usable_bytes

    @property
    def headroom_bytes(self) -> int:
        return self.usable_bytes - self.total_bytes

    def beside(self, other: "ChipUsage") -> "ChipUsage":
        """With the weights and caches of another model, whose steps come in turn."""
        return replace(
            self,
            weights_bytes=self.weights_bytes + other.weights_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            activations_bytes=max(self.activations_bytes, other.activations_bytes),
        )


@dataclass(frozen=True)  # no slots: what never changes is worked out once
class ServingMemory:
    """The memory of a layout at any batch and context; a step has at most `step_tokens`.

    >>> from rooflight.plan.serving.step.layout import parse_precision
    >>> from rooflight.models.presets import load_model
    >>> from rooflight.hardware.slice import parse_slice
    >>> memory = ServingMemory(load_model("llama3-70b"), parse_slice("v5e:4x4"),
    ...                        ServingLayout(tp=16, kv="batch"), parse_precision("int8"))
    >>> memory.most_sequences(8192), memory.most_sequences(2048)
    (146, 586)
    """

    model: ModelSpec
    on: Slice
    layout: ServingLayout
    precision: Precision
    step_tokens: int = 2048
    beside: "ServingMemory | None" = None  # a draft model on the same chips
    redundant: int = 0  # replicas of experts, on all ranks together
    adapters: Adapters | None = None

    def held(self, batch: int, context: int) -> ChipUsage:
        """With `batch` sequences of `context` positions."""
        own = max(
            (self._stage_held(stage, batch, context) for stage in range(self.layout.pp)),
            key=lambda held: held.total_bytes,
        )
        return own.beside(self.beside.held(batch, context)) if self.beside else own

    def most_sequences(self, context: int) -> int:
        """The largest batch that fits; 0 where not even one does."""
        return _largest(lambda batch: self.held(batch, context).fits)

    def longest_context(self, batch: int) -> int:
        """The longest context that fits; 0 where none does."""
        return _largest(lambda context: self.held(batch, context).fits)

    @cached_property
    def _setting(self) -> StepSpec:
        mesh = place(mesh_axes(self.layout, self.model), self.on)
        graph = model_graph(self.model)
        return StepSpec(graph, rules(self.layout, self.model, "generate"), mesh, self.precision)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return padded_sizes(self._setting)

    @cached_property
    def _stages(self) -> tuple[Mapping[int | None, int], ...]:
        """Layers of each kind by stage."""
        held = stage_layers(self._setting.graph.order, self.layout.pp)
        return tuple(dict[int | None, int](h.items()) for h in held)

    @cached_property
    def _weights(self) -> tuple[int, ...]:
        return tuple(sum(self._weight_bytes(stage)) for stage in range(self.layout.pp))

    @cached_property
    def _activations(self) -> int:
        """The operands and result of the largest matmul of a step, and the stream beside it."""
        graph = self._setting.graph
        sizes = self._sizes | {"B": 1, "T": self.step_tokens, "S": self.step_tokens}
        sizes |= {c: math.ceil(n * self.step_tokens) for c, n in graph.per_token.items()}
        matmuls = [
            op.contraction for op in graph.ops if op.kind in HAS_FLOPS and op.block is not None
        ]
        moved = [
            [t for t in (*c.operands, c.result) if not t.name[0].isupper() and "S" not in t.dims]
            for c in matmuls
        ]
        stream = self._activation_bytes(Tensor("x", ("B", "T", "D"), ((), (), ())), sizes)
        return stream + max(sum(self._activation_bytes(t, sizes) for t in ts) for ts in moved)

    def _stage_held(self, stage: int, batch: int, context: int) -> ChipUsage:
        held = ((c, self._stages[stage].get(c.block, 0)) for c in self._setting.graph.caches)
        kv = sum(self._cache_bytes(c, n, batch, context) for c, n in held)
        logits = 0
        if stage == self.layout.pp - 1:
            split = ways(self._setting.layout.inner["V"], self._setting.axes)
            logits = 4 * batch * self._sizes["V"] // split  # scores are sampled from in f32
        return ChipUsage(
            self._weights[stage], kv, self._activations + logits, usable_hbm_bytes(self.on.chip)
        )

    def _weight_bytes(self, stage: int) -> Iterator[int]:
        """Of every param on a stage: its layers', the embedding on the first, the head last."""
        setting, last = self._setting, self.layout.pp - 1
        for param in setting.graph.params:
            count = self._stages[stage].get(param.block, 0)
            if param.block is None:
                is_tied = self.model.is_tied and param.part == "embedding"
                home = stage == 0 if param.part == "embedding" else stage == last
                count = int(home or (is_tied and stage == last))
            tensor = setting.layout.of_weight(param.tensor)
            dtype = self.precision.of_part(param.part)
            sizes = self._sizes
            if self.redundant and param.part == "experts" and self.layout.ep > 1:
                sizes = sizes | {"E": self._setting.graph.sizes["E"] + self.redundant}
            yield count * dtype.nbytes(self._local(tensor, sizes))
        if self.adapters:
            for op in filter(is_target, setting.graph.ops):
                held = self.adapters.slots * self.adapters.rank * sum(adapter_sides(setting, op))
                yield self._stages[stage].get(op.block, 0) * self.precision.activations.nbytes(held)

    def _cache_bytes(self, cache: Cache, count: int, batch: int, context: int) -> int:
        """Sequences stay whole on a rank; positions are split where the layout says so."""
        layout, axes = self._setting.layout, self._setting.axes
        tensor = layout.of_cache(cache.tensor)
        assert tensor is not None, "a generate layout has a rule for the cache"
        kept = context if cache.window is None else min(context, cache.window)
        rows = -(-batch // ways(tensor.axes_of("B"), axes))
        positions = -(-kept // ways(tensor.axes_of("S"), axes))
        rest = [d for d in tensor.dims if d not in ("B", "S")]
        each = math.prod(self._sizes[d] // ways(tensor.axes_of(d), axes) for d in rest)
        return count * self.precision.kv.nbytes(rows * positions * each)

    def _activation_bytes(self, tensor: Tensor, sizes: Mapping[str, int]) -> int:
        placed = self._setting.layout.of_activation(tensor)
        return self.precision.activations.nbytes(self._local(placed, sizes))

    def _local(self, tensor: Tensor, sizes: Mapping[str, int]) -> int:
        """Elements on one chip, each dim rounded up."""
        axes = self._setting.axes
        pairs = zip(tensor.dims, tensor.axes, strict=True)
        return math.prod(-(-sizes[d] // ways(a, axes)) for d, a in pairs)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest whole number for which a falling question is still true, by doubling."""
    if not fits(1):
        return 0
    high = 2
    while high < _LONGEST and fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
