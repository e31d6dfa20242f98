"""The expected seconds of serving steps under a calibration: a named sum over their parts.

In: a `StepModel`, or parts of many in arrays, and constants (`hardware.serving_calibration`). Out:
seconds. A generate step of n sequences, with an efficiency for every roof (book chapter 7):

    smooth max(weights / hbm, n matmul / eff) + the same of experts
    + smooth max(n kv / eff, n attention / eff)
    + activations, network, kernels, collectives, rows

With draft tokens (`step.draft`) it is the share of a token in a round. The stages of a pipeline are
priced one by one: each has a microbatch of at least one sequence, and all wait for the slowest.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflight.plan.serving.simulate.load import Load, even_load, prefill_load
from rooflight.plan.serving.step.draft import ACCEPTED, Drafter
from rooflight.plan.serving.step.experts import Balance
from rooflight.plan.serving.step.layout import Phase
from rooflight.plan.serving.step.model import Stage, StepModel, term_s
from rooflight.plan.serving.step.terms import CommTerm
from rooflight.plan.serving.step.totals import tokens_per_round

Floats = NDArray[np.float64]
Values = Mapping[str, float]

LAUNCH_S = 1.5e-5  # of a kernel outside a graph: prompts, and engines that use no graphs
# Beside the matmuls of a layer with experts, however it is split: top-k and its softmax, counts,
# offsets and sort of tokens by expert, gather, two quantisations, activation, weighted sum. Of 0,
# 6, 10 and 16, ten fits the rows best; without them collectives stood for it, and TP cost too much.
ROUTING_KERNELS = 10
_GENERATE: frozenset[Phase] = frozenset(("generate",))
_PREFILL: frozenset[Phase] = frozenset(("prefill",))


class GenerateParts(NamedTuple):
    """Of a generate step: once, for each sequence or token, and in counts."""

    weights_s: Floats  # HBM, once a step
    weight_bits: Floats
    experts_s: Floats  # HBM, once a step if every expert is read
    expert_bits: Floats
    expert_share: Floats  # a token's chance to visit one
    kv_s: Floats  # HBM, of a sequence
    attention_s: Floats  # matrix unit, of a sequence
    matmul_s: Floats  # matrix unit, of a token
    expert_matmul_s: Floats
    activations_s: Floats  # HBM, of a token
    network_s: Floats  # of a token
    kernels: Floats
    collectives: Floats
    ranks: Floats  # ways that sequences are split
    drafted: Floats
    adapters_s: Floats  # HBM, once a step if every LoRA adapter is read
    adapter_share: Floats  # a sequence's chance to have one
    adapter_matmul_s: Floats  # matrix unit, of a token
    is_eager: Floats  # 1 where kernels are launched one by one
    layers: Floats


class PromptParts(NamedTuple):
    """Of one prompt."""

    weight_bits: Floats
    matmul_s: Floats
    expert_matmul_s: Floats
    attention_s: Floats
    network_s: Floats
    kernels: Floats


def generate_s(
    parts: GenerateParts,
    values: Values,
    rows: Floats,
    acceptance: float = ACCEPTED,
    balance: Balance | None = None,
) -> Floats:
    """Seconds of a generate step, for each token that it hands to a sequence."""
    queries = 1 + parts.drafted
    dealt = np.maximum(rows, parts.ranks)  # a rank without a sequence waits for the others
    kept = _kept(parts.weight_bits, values)
    read = np.where(parts.expert_bits < 8, values["experts4"], values["experts8"])
    if balance:
        touched = np.vectorize(balance.touched, otypes=[float])(rows * queries)
    else:
        touched = 1 - (1 - parts.expert_share) ** (rows * queries)
    weights = _smooth_max(
        parts.weights_s / (values["hbm"] * kept),
        parts.matmul_s * dealt * queries / (values["matmul"] * kept),
    )
    experts = _smooth_max(
        parts.experts_s * touched / read, parts.expert_matmul_s * rows * queries / values["matmul"]
    )
    loras = 1 - (1 - parts.adapter_share) ** (dealt / parts.ranks)
    adapters = _smooth_max(
        parts.adapters_s * loras / values["hbm"],
        parts.adapter_matmul_s * dealt * queries / values["matmul"],
    )
    attention = _smooth_max(
        parts.kv_s * dealt / values["kv"], parts.attention_s * dealt * queries / values["attention"]
    )
    kernel = np.where(parts.is_eager > 0, LAUNCH_S, values["kernel"])
    rest = (
        parts.activations_s * dealt * queries / values["hbm"]
        + parts.network_s * dealt * queries / values["network"]
        + kernel * parts.kernels
        + values["collective"] * parts.collectives
        + values["row"] * rows
    )
    per_draft = 1 + parts.drafted / parts.layers  # each is drafted by one more layer
    per_round = tokens_per_round(acceptance, parts.drafted)
    return (weights + experts + adapters + attention + rest) * per_draft / per_round


def prompt_s(parts: PromptParts, values: Values) -> Floats:
    """Seconds to compute one prompt alone."""
    kept = _kept(parts.weight_bits, values)
    return (
        parts.matmul_s / (values["matmul"] * kept)
        + parts.expert_matmul_s / values["matmul"]
        + parts.attention_s / values["attention"]
        + parts.network_s / values["network"]
        + LAUNCH_S * parts.kernels
    )


def first_prompt_s(parts: PromptParts, values: Values) -> Floats:
    """Seconds to compute one prompt alone, as its first token shows them: one part of all roofs."""
    roofs_s = parts.matmul_s + parts.expert_matmul_s + parts.attention_s + parts.network_s
    return roofs_s / values["prefill"] + LAUNCH_S * parts.kernels


def _kept(bits: Floats, values: Values) -> Floats:
    """What quantised weights leave of an efficiency."""
    return values["quantised"] ** np.log2(16 / bits)


def _smooth_max(one: Floats, other: Floats) -> Floats:
    """The 4-norm: the larger of two roofs, 19 % more where they meet."""
    return np.sqrt(np.hypot(one * one, other * other))


def generate_parts(model: StepModel, context: float, *, drafted: int = 0) -> GenerateParts:
    """Of a step of sequences of `context` positions, stage by stage."""
    load = even_load(1, context, model.windows)
    rows = [_sums(model, stage, load) | {"drafted": drafted} for stage in model.stages[_GENERATE]]
    return GenerateParts(*(np.array([float(r[n]) for r in rows]) for n in GenerateParts._fields))


def prompt_parts(model: StepModel, tokens: int, *, cached: int = 0) -> PromptParts:
    """Of one prompt, of which the first `cached` positions are there already, stage by stage."""
    load = prefill_load([tokens], model.windows, cached=cached)
    rows = [_sums(model, stage, load) for stage in model.stages[_PREFILL]]
    rows = [r | {"matmul_s": r["matmul_s"] + r["adapter_matmul_s"]} for r in rows]
    return PromptParts(*(np.array([float(r[n]) for r in rows]) for n in PromptParts._fields))


def _sums(model: StepModel, stage: Stage, load: Load) -> dict[str, float]:
    """The terms of a stage added up by what they are spent on, for one sequence or prompt."""
    load = replace(load, rows=0)  # dealt out evenly; `generate_s` deals out whole sequences
    total = dict.fromkeys((*GenerateParts._fields, "tokens", "pairs", "positions"), 0.0)
    for counted in stage:
        count, term = counted.count, counted.term
        if isinstance(term, CommTerm):
            total["collectives"] += count
            total["network_s"] += count * term.unit_s * load.tokens
            continue
        flops_s, _, kv_s, activations_s = term_s(term, [load])
        total["kernels"] += count * (1 + ROUTING_KERNELS if term.part == "router" else 1)
        total["weights_s"] += count * term.weights_s
        total["kv_s"] += count * kv_s
        total["activations_s"] += count * activations_s
        if term.experts and term.part == "adapters":
            total["adapter_share"] = term.experts.share
            total["adapters_s"] += count * term.experts.read_s
            total["adapter_matmul_s"] += count * flops_s
            continue
        if term.experts:
            total["expert_share"] = term.experts.share
            total["experts_s"] += count * term.experts.read_s
        total["expert_matmul_s" if term.experts else term.work] += count * flops_s
    return total | {
        "matmul_s": total["tokens"],
        "attention_s": total["pairs"] + total["positions"],
        "weight_bits": model.precision.of_part("attention").bits,
        "expert_bits": model.precision.of_part("experts").bits,
        "ranks": model.layout.dp,
        "layers": model.model.num_layers,
    }


class TokenParts(NamedTuple):
    """Parts of a step, and how many such steps a token of a sequence takes."""

    parts: GenerateParts
    steps: float = 1.0
    acceptance: float = ACCEPTED
    balance: Balance | None = None  # of experts

    def over(self, change: Callable[[GenerateParts], GenerateParts]) -> "TokenParts":
        return self._replace(parts=change(self.parts))


def token_parts(
    model: StepModel, context: float, drafter: Drafter | None = None
) -> tuple[TokenParts, ...]:
    """Of the model, and of the draft model if one proposes."""
    if drafter is None:
        return (TokenParts(generate_parts(model, context), balance=model.balance),)
    draft = drafter.draft
    check = generate_parts(model, context, drafted=draft.tokens)
    if drafter.steps is None:
        return (TokenParts(check, 1.0, draft.acceptance, model.balance),)
    check = check._replace(layers=np.inf * check.layers)  # no layer of its own proposes
    each = generate_parts(drafter.steps, context)
    proposals = draft.tokens / draft.per_round
    return TokenParts(check, 1.0, draft.acceptance, model.balance), TokenParts(each, proposals)


def token_s(priced: Iterable[TokenParts], values: Values, rows: Floats) -> Floats:
    """Seconds of each stage for a token of each of `rows` sequences."""
    found = (
        each.steps * generate_s(each.parts, values, rows, each.acceptance, each.balance)
        for each in priced
    )
    return reduce(np.add, found)


def calibrated_generate_s(
    model: StepModel,
    values: Values,
    *,
    rows: float,
    context: float,
    drafter: Drafter | None = None,
) -> float:
    """Seconds for each token of `rows` sequences of `context` positions, under a calibration."""
    stages = model.layout.pp
    dealt = np.full(stages, rows if stages == 1 else math.ceil(rows / stages), dtype=np.float64)
    return stages * float(token_s(token_parts(model, context, drafter), values, dealt).max())


def calibrated_prefill_s(
    model: StepModel, values: Values, *, tokens: int, cached: int = 0
) -> float:
    """Seconds to compute one prompt under a calibration, through every stage in turn.

    Those of a first token are for its request too.
    """
    parts = prompt_parts(model, tokens, cached=cached)
    if "request" in values:
        return float(first_prompt_s(parts, values).sum()) + values["request"]
    return float(prompt_s(parts, values).sum())
