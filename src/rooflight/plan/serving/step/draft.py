"""`Draft`: tokens proposed ahead of a step and checked in it, by one more layer or a smaller model.

In: how many, how often one is accepted, who proposes. Out: tokens of a step, and the model that
holds the further layer. A step with draft tokens is a round: proposals one after another, then a
step of the model that checks them all and makes one token itself. Simulators spread a round over
the tokens it makes; what they leave out is that a round makes them at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.models.spec import ModelSpec, Repeat
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.curve import step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.layout import Precision, ServingLayout
from rooflight.plan.serving.step.model import StepModel
from rooflight.plan.serving.step.time import ServingStepTime
from rooflight.plan.serving.step.totals import tokens_per_round
from rooflight.units import many

ACCEPTED = 0.65  # of draft tokens; DeepSeek's own report says 0.85 for the first, fewer later
MOST_DRAFT = 16  # tokens


@dataclass(frozen=True, slots=True)
class Draft:
    """So many tokens ahead, by a further layer of the model itself unless by another `model`."""

    tokens: int
    acceptance: float = ACCEPTED
    model: ModelSpec | None = None

    def __str__(self) -> str:
        by = f" of {self.model.name}" if self.model else ""
        return (
            f"{many(self.tokens, 'draft token')}{by}, {self.acceptance:.0%} accepted:"
            f" {self.per_round:.2f} tokens per step"
        )

    @property
    def per_round(self) -> float:
        """Tokens that a step makes of each sequence."""
        return tokens_per_round(self.acceptance, self.tokens)

    @property
    def document(self) -> dict[str, object]:
        """As JSON."""
        return {
            "tokens": self.tokens,
            "acceptance": self.acceptance,
            "model": self.model and self.model.name,
            "tokens_per_step": self.per_round,
        }

    def check(self, layout: ServingLayout) -> None:
        """Raises for a layout whose rounds nobody has modelled."""
        if layout.pp > 1:
            raise UsageError(
                f"draft tokens through the {layout.pp} stages of {layout}: a round would wait for"
                " all of them",
                hint="take a layout without pp",
            )

    def held_by(self, model: ModelSpec) -> ModelSpec:
        """The model with the layer that proposes (MTP, EAGLE): another of its last kind."""
        if self.model:
            return model
        return replace(model, layers=(*model.layers, Repeat(model.layer_blocks[-1:], 1)))

    def layout(self, on: Slice) -> ServingLayout:
        """Of the draft model: by its heads as far as they go, whole sequences beyond."""
        heads = (b.attention for b in self.model.blocks) if self.model else ()
        tp = math.gcd(on.num_chips, *(a.num_heads if a.latent else a.num_kv_heads for a in heads))
        return ServingLayout(tp=tp, dp=on.num_chips // tp)


def accepted_share(asked: float, tokens: int) -> float:
    """The chance of a draft token: as it is up to 1, or of the tokens per step that engines report.

    >>> round(accepted_share(2.176, 3), 3), accepted_share(0.6, 3)
    (0.6, 0.6)
    """
    if 0 <= asked < 1:
        return asked
    if not 1 < asked < tokens + 1:
        raise UsageError(
            f"--acceptance must be below 1, or a number of tokens per step up to {tokens + 1},"
            f" got {asked:g}",
            hint="write 0.7 for the chance of a draft token, or 2.4 for the tokens of a step",
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_more = tokens_per_round(middle, tokens) > asked
        low, high = (low, middle) if is_more else (middle, high)
    return low


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft and the steps of its model; None where a further layer proposes."""

    draft: Draft
    steps: StepModel | None

    def cost(self, model: StepModel) -> "DraftedCost":
        """The roofs of a token."""
        propose = step_curve(self.steps) if self.steps else None
        check = step_curve(model, queries=1 + self.draft.tokens)
        return DraftedCost(check, self.draft, propose, model.model.num_layers)

    def token_share(
        self, model: StepModel, contexts: Sequence[int], check: ServingStepTime
    ) -> float:
        """Of a checking step, what a token of each sequence takes, proposals included."""
        one = 1 / model.model.num_layers
        if self.steps:
            one = self.steps.generate(contexts).expected_s / check.expected_s
        return (1 + self.draft.tokens * one) / self.draft.per_round


def drafter_on(draft: Draft, on: Slice, precision: Precision) -> Drafter:
    """On the chips of the model that it proposes for."""
    spec = draft.model
    return Drafter(draft, spec and serving_model(spec, on, draft.layout(on), precision))


@dataclass(frozen=True, slots=True)
class DraftedCost:
    """A `StepCost` of single tokens, of one that checks `1 + draft.tokens` of each sequence."""

    check: StepCost
    draft: Draft
    propose: StepCost | None  # a token of the draft model; None is a further layer
    num_layers: int

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        """Times a step; a chunk adds to a token's share of a round what it adds to a round."""
        whole_s = check_s = self.check.seconds(
            decode_rows=decode_rows,
            kv_tokens=kv_tokens,
            prefill_tokens=prefill_tokens,
            prefill_kv_tokens=prefill_kv_tokens,
        )
        if not decode_rows:
            return whole_s
        alone = {"prefill_tokens": 0, "prefill_kv_tokens": 0}
        if prefill_tokens:
            check_s = self.check.seconds(decode_rows=decode_rows, kv_tokens=kv_tokens, **alone)
        one_s = check_s / self.num_layers
        if self.propose:
            one_s = self.propose.seconds(decode_rows=decode_rows, kv_tokens=kv_tokens, **alone)
        round_s = check_s + self.draft.tokens * one_s
        return whole_s - check_s + round_s / self.draft.per_round

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        return self.check.late_s(prefill_tokens=prefill_tokens, prefill_kv_tokens=prefill_kv_tokens)
