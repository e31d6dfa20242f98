"""How much may wait: what the engine can prefill within the TTFT SLO.

    tokens that may wait = TTFT * prefill tokens per second

A full step decodes all rows and prefills with the rest of its budget; the planner says how long
that takes. It stops holding when steps are not full, where a request waits less than the SLO.
"""

from dataclasses import dataclass

from rooflight.batching.request import Limits
from rooflight.plan.serving.step.cost import StepCost

_DEFAULT_STEPS = 64


@dataclass(frozen=True, slots=True)
class WaitingLimit:
    """The limit, and where it comes from."""

    max_waiting_tokens: int
    step_seconds: float | None  # of a full step, predicted
    prefill_tokens_per_s: float | None
    because: str

    def seconds(self, waiting_tokens: float) -> float:
        """How long these take to prefill; a second if nothing is known."""
        rate = self.prefill_tokens_per_s
        return 1.0 if rate is None else waiting_tokens / rate


def waiting_limit(
    limits: Limits, cost: StepCost | None, *, ttft_s: float | None, max_model_tokens: int
) -> WaitingLimit:
    """From the planner's step time and the SLO; a stated default where either is missing."""
    seconds, rate = None, None
    prefill = limits.max_step_tokens - limits.max_rows
    if cost is not None and prefill > 0:
        seconds = cost.seconds(
            decode_rows=limits.max_rows,
            kv_tokens=limits.pool_tokens // 2,
            prefill_tokens=prefill,
            prefill_kv_tokens=prefill * (prefill + 1) // 2,
        )
        rate = prefill / seconds
    if rate is None or ttft_s is None:
        missing = "the time of a step is unknown" if rate is None else "there is no TTFT SLO"
        tokens = max(_DEFAULT_STEPS * limits.max_step_tokens, max_model_tokens)
        because = f"{missing}: the default of {_DEFAULT_STEPS} full steps"
        return WaitingLimit(tokens, seconds, rate, because)
    tokens = max(int(ttft_s * rate), max_model_tokens)
    because = f"a TTFT of {ttft_s:g} s at {rate:,.0f} prefill tokens per second, as planned"
    return WaitingLimit(tokens, seconds, rate, because)
