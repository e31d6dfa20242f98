"""The step cost that a fleet is planned with: calibrated where anybody measured, else the roofs.

In: a `Setup` and mean lengths. Out: a `StepCost` and the `Calibration` it rests on. Under a
calibration (book chapter 7, with an efficiency for every roof):

    rows      g = fixed(rows) + positions * k
    chunk     p = launches + tokens * t + pairs * a
    both      max(p, g + interference * p)

Each is of the slowest of pp stages, whose microbatches are all at work; a prompt alone passes them
one after another, so its first token comes (pp - 1) * work later than the step ends. Constants are
read off the step model at the mean lengths; it stops being exact away from them where attention has
windows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rooflight.hardware.calibration import DENSE, EXPERTS, Calibration
from rooflight.hardware.chip import Chip
from rooflight.hardware.serving_calibration import load_first_token, load_serving_calibration
from rooflight.models.spec import ModelSpec, Moe
from rooflight.plan.serving.simulate.setup import Setup
from rooflight.plan.serving.step.calibrated import (
    LAUNCH_S,
    GenerateParts,
    Values,
    first_prompt_s,
    prompt_parts,
    prompt_s,
    token_parts,
    token_s,
)
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.draft import Drafter, drafter_on
from rooflight.plan.serving.step.model import StepModel

Find = Callable[[str, str, str, str], Calibration | None]


@dataclass(frozen=True, slots=True)
class CalibratedCost:
    """A `StepCost` under a calibration; a pipeline has as many microbatches as stages."""

    fixed_s: tuple[float, ...]  # by rows, from 0
    position_s: float
    ranks: float  # ways that sequences are split, times the stages
    launches_s: float
    token_s: float
    pair_s: float
    interference: float  # of a chunk's time, that it adds to a step of rows
    stages: int
    request_s: float = 0.0
    first_token: Calibration | None = None  # that chunks and requests are priced with

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        rows_s = prompt_s = 0.0
        if decode_rows:
            dealt = max(1.0, self.ranks / decode_rows)
            rows_s = self.fixed_s[decode_rows] + kv_tokens * dealt * self.position_s
        if prefill_tokens:
            work_s = prefill_tokens * self.token_s + prefill_kv_tokens * self.pair_s
            prompt_s = self.launches_s + work_s
        return max(prompt_s, rows_s + self.interference * prompt_s) if decode_rows else prompt_s

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        work_s = prefill_tokens * self.token_s + prefill_kv_tokens * self.pair_s
        return self.request_s + (self.stages - 1) * work_s


def is_mixture(model: ModelSpec) -> bool:
    """True if any layer has experts."""
    return any(isinstance(block.mlp, Moe) for block in model.blocks)


def blocks_of(model: ModelSpec) -> str:
    """The kind of model that calibrations and evidence are kept by."""
    return EXPERTS if is_mixture(model) else DENSE


def calibration_of(
    model: ModelSpec, chip: Chip, engine: str, load: Find = load_serving_calibration
) -> Calibration | None:
    """The nearest that is shipped for the chip, or its kind: of tokens, or of first ones."""
    return load(chip.name, chip.kind, engine, blocks_of(model))


def calibrated_cost(
    model: StepModel,
    values: Values,
    *,
    input_tokens: int,
    context: int,
    max_rows: int,
    first: Calibration | None = None,
    drafter: Drafter | None = None,
) -> CalibratedCost:
    """Boils a step model and a calibration down, at prompts and contexts of these lengths.

    Chunks are priced by the calibration of first tokens where there is one; what they add to the
    steps of others stays what rows of times per token say.
    """
    stages = model.layout.pp
    token, prompt = token_parts(model, context, drafter), prompt_parts(model, input_tokens)
    ranks = token[0].parts.ranks
    bare = [
        t.over(lambda p: p._replace(kv_s=0 * p.kv_s, attention_s=0 * p.attention_s)) for t in token
    ]
    read = token_s(token, values, ranks) - token_s(bare, values, ranks)
    by_rows = [t.over(lambda p: GenerateParts(*(column[:, None] for column in p))) for t in bare]
    fixed = token_s(by_rows, values, np.ceil(np.arange(1, max_rows + 1) / stages)[None, :])
    launches = LAUNCH_S * prompt.kernels
    chunk_s = (
        partial(first_prompt_s, values=first.values) if first else partial(prompt_s, values=values)
    )
    plain, whole = chunk_s(prompt._replace(attention_s=0 * prompt.attention_s)), chunk_s(prompt)
    pairs = input_tokens * (input_tokens + 1) / 2
    return CalibratedCost(
        fixed_s=(0.0, *(stages * fixed.max(axis=0)).tolist()),
        position_s=float((read / ranks).max()) / context,
        ranks=float(ranks[0]) * stages,
        launches_s=stages * float(launches.max()),
        token_s=float((plain - launches).max()) / input_tokens,
        pair_s=float((whole - plain).max()) / pairs,
        interference=values["interference"] * float(prompt_s(prompt, values).sum() / whole.sum()),
        stages=stages,
        request_s=first.values["request"] if first else 0.0,
        first_token=first,
    )


def fleet_cost(
    setup: Setup, *, input_tokens: int, context: int, engine: str | None
) -> tuple[StepCost, StepCost, Calibration | None]:
    """The cost to plan with, that of the roofs alone, and what the first rests on.

    Without an `engine` nothing is calibrated.
    """
    model, draft = setup.steps(), setup.draft
    drafter = draft and drafter_on(draft, setup.on, setup.precision)
    roofs = drafter.cost(model) if drafter else step_curve(model)
    found = calibration_of(setup.model, setup.on.chip, engine) if engine else None
    if engine is None or found is None:
        return roofs, roofs, None
    cost = calibrated_cost(
        model,
        found.values,
        input_tokens=input_tokens,
        context=context,
        max_rows=setup.sizes.max_rows,
        first=calibration_of(setup.model, setup.on.chip, engine, load_first_token),
        drafter=drafter,
    )
    return cost, roofs, found
