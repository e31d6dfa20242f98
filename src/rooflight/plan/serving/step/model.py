"""`StepModel`: a served model on a slice under a layout; times any prefill or generate step.

In: terms that `derive_model` made of a graph. Out: `ServingStepTime`s. Prefill and decode may share
a step: matmuls with weights then see the tokens of both, each phase has its own attention.
Not priced: the embedding lookup, elementwise ops, sampling.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.mesh import Mesh
from rooflight.models.spec import ModelSpec
from rooflight.plan.serving.simulate.load import Load, chunk_load, generate_load, prefill_load
from rooflight.plan.serving.step.experts import Balance
from rooflight.plan.serving.step.layout import Phase, Precision, ServingLayout
from rooflight.plan.serving.step.terms import CommTerm, MatmulTerm, Term
from rooflight.plan.serving.step.time import ServingStepTime


@dataclass(frozen=True, slots=True)
class Counted:
    """A term, how many layers of a stage have it, and the phases whose tokens it meets."""

    count: int
    phases: frozenset[Phase]
    term: Term


Stage = tuple[Counted, ...]


@dataclass(frozen=True, slots=True)
class StepModel:
    """Everything that a step's time depends on, but its size."""

    model: ModelSpec
    mesh: Mesh
    layout: ServingLayout
    precision: Precision
    stages: Mapping[frozenset[Phase], tuple[Stage, ...]]
    overhead_s: float = 0.0  # of one step; 0 is uncalibrated
    balance: Balance | None = None  # of experts; None where all are alike

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention windows of its layers; None sees every position."""
        return tuple(dict.fromkeys(b.attention.window for b in self.model.blocks))

    def generate(self, contexts: Sequence[int], *, queries: int = 1) -> ServingStepTime:
        """One token for every sequence; `queries` more than one checks proposed tokens."""
        return self.step([generate_load(contexts, self.windows, queries=queries)])

    def prefill(self, prompts: Sequence[int], *, cached: int = 0) -> ServingStepTime:
        """Whole prompts at once, `cached` positions of each being there already.

        Stages of a pipeline work one after another on it: this is the time to the first token.
        """
        if min(prompts) <= cached:
            raise UsageError(
                f"{cached} cached positions leave nothing of a prompt of {min(prompts)}",
                hint=f"give at most {min(prompts) - 1} cached positions",
            )
        load = prefill_load(prompts, self.windows, cached=cached)
        stages = self.stages[frozenset[Phase]((load.phase,))]
        return _added([self._spent(stage, [load]) for stage in stages], load.logits)

    def mixed(self, contexts: Sequence[int], *, tokens: int, kv_tokens: int) -> ServingStepTime:
        """A generate step that also computes a chunk of `tokens` of a prompt."""
        decode = generate_load(contexts, self.windows)
        return self.step([decode, chunk_load(tokens, kv_tokens, self.windows)])

    def step(self, loads: Sequence[Load]) -> ServingStepTime:
        """Any step; a pipeline has as many microbatches as stages, all of them at work."""
        stages = self.stages[frozenset[Phase](load.phase for load in loads)]
        parts = [load.part(len(stages)) for load in loads]
        spent = [self._spent(stage, parts) for stage in stages]
        slowest = max(spent, key=lambda s: s.expected_s)
        return _added([slowest] * len(stages), sum(load.logits for load in loads))

    def _spent(self, stage: Stage, loads: Sequence[Load]) -> ServingStepTime:
        matmul = attention = weights = kv = activations = matmuls = latency = 0.0
        num_matmuls = num_collectives = 0
        axes: dict[str, float] = {}
        for counted in stage:
            met = [load for load in loads if load.phase in counted.phases]
            term, n = counted.term, counted.count
            if isinstance(term, CommTerm):
                axes[term.where] = axes.get(term.where, 0.0) + n * message_s(term, met)
                latency += n * term.latency_s
                num_collectives += n
                continue
            flops_s, weights_s, kv_s, activations_s = term_s(term, met)
            matmul += n * flops_s if term.work == "tokens" else 0.0
            attention += 0.0 if term.work == "tokens" else n * flops_s
            weights += n * weights_s
            kv += n * kv_s
            activations += n * activations_s
            matmuls += n * max(flops_s, weights_s + kv_s + activations_s)
            num_matmuls += n
        return ServingStepTime(
            matmul,
            attention,
            weights,
            kv,
            activations,
            matmuls,
            axes,
            self.overhead_s,
            latency_s=latency,
            num_matmuls=num_matmuls,
            num_collectives=num_collectives,
        )


def term_s(term: MatmulTerm, loads: Iterable[Load]) -> tuple[float, float, float, float]:
    """Seconds of the matrix unit, and of HBM for weights, cache and activations."""
    flops = kv = activations = tokens = sequences = 0.0
    for load in loads:
        dealt = load.dealt(term.split)
        here = (load.logits if term.part == "head" else load.tokens) * dealt
        tokens += here
        sequences += (load.rows or load.logits) * dealt / max(term.split, 1)
        activations += term.activations_s * here
        if term.work == "tokens":
            flops += term.flops_s * here
        else:
            flops += term.flops_s * load.pairs[term.window] * dealt
            kv += term.kv_s * load.positions[term.window] * dealt
    weights = term.weights_s
    if term.experts:
        visitors = sequences if term.part == "adapters" else tokens
        weights += term.experts.read_s * term.experts.touched(visitors)
    return flops, weights, kv, activations


def message_s(term: CommTerm, loads: Iterable[Load]) -> float:
    """Seconds of one collective."""
    units = 0.0
    for load in loads:
        amount = load.logits if term.part == "head" else load.tokens
        if term.unit == "positions":
            amount = load.positions[term.window]
        units += amount * load.dealt(term.split)
    return term.latency_s + term.unit_s * units


def _added(stages: Sequence[ServingStepTime], tokens: float) -> ServingStepTime:
    """Stages one after another."""
    axes = {a: sum(s.axes_s.get(a, 0.0) for s in stages) for s in stages for a in s.axes_s}
    return ServingStepTime(
        sum(s.matmul_s for s in stages),
        sum(s.attention_s for s in stages),
        sum(s.weights_s for s in stages),
        sum(s.kv_s for s in stages),
        sum(s.activations_s for s in stages),
        sum(s.matmuls_s for s in stages),
        axes,
        sum(s.overhead_s for s in stages),
        tokens,
        sum(s.latency_s for s in stages),
        sum(s.num_matmuls for s in stages),
        sum(s.num_collectives for s in stages),
    )
