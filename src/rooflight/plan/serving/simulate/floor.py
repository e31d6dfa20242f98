"""The floor under a simulation: a request all alone on a replica, by its mean lengths.

In: a step model and the mean lengths. Out: the least seconds to the first token, between tokens and
to the end. No schedule beats it while more work never makes a step shorter and a step in two parts
is never shorter than in one; the mean over many lengths lies above the value at the mean, because
seconds bend upwards with length (Jensen). Prompts that are cached beat it.
"""

import math
from dataclasses import dataclass

from rooflight.plan.serving.simulate.clock import StepClock


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that even an idle replica needs."""

    ttft_s: float
    tpot_s: float
    e2e_s: float


def floor_seconds(
    clock: StepClock, *, input_tokens: int, output_tokens: int, transfer_s: float = 0.0
) -> Floor:
    """The closed form: the prompt in one step, then a token per step, each alone.

    TTFT = t(P)        E2E = TTFT + transfer + sum of t(1 row, P + i) for i = 1 .. output - 1
    """
    attended = input_tokens * (input_tokens + 1) // 2
    ttft_s = clock.step(rows=0, kv=0, chunk_tokens=input_tokens, attended=attended)
    ttft_s += clock.late(chunk_tokens=input_tokens, attended=attended)
    gaps = output_tokens - 1
    if not gaps:
        return Floor(ttft_s, 0.0, ttft_s)
    _, decode_s = clock.decode(rows=1, kv=input_tokens + 1, steps=gaps, until_s=math.inf)
    tail_s = transfer_s + decode_s
    return Floor(ttft_s, tail_s / gaps, ttft_s + tail_s)
