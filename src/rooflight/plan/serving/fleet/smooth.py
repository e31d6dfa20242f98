"""Requests per second of a replica in the limit of smooth traffic: no queue, always r rows.

In: `MeanSteps`, a TPOT. Out: a rate. With T the TPOT and t the mean step:

    together      r / (steps * t(r rows, their share of prompts)),  the largest r with t <= T
    disaggregated 1 / (prompt + max(steps * t(r rows) / r, transfer)),  t + transfer / steps <= T
"""

from rooflight.plan.serving.fleet.bound import MeanSteps, most_rows_within
from rooflight.plan.serving.simulate.fleet import Transfer


def together_rate(steps: MeanSteps, tpot_s: float) -> float:
    """Requests per second of a replica that does both; 0 where one alone is too slow."""
    work = steps.work
    if not work.row_steps:
        return 1 / steps.prefill_s(work.pairs)
    share, each = work.prompt_tokens / work.row_steps, work.pairs / work.prompt_tokens

    def step_s(rows: int) -> float:
        """Most steps only decode; now and then one has a prompt, or as much as fits."""
        chunk = max(1, min(round(work.prompt_tokens), steps.limits.max_step_tokens - rows))
        often = min(1.0, rows * share / chunk)
        with_chunk_s = steps.step(rows, chunk, chunk * each)
        return (1 - often) * steps.step(rows, 0, 0.0) + often * with_chunk_s

    most = int(min(steps.room()[0], steps.limits.max_step_tokens / (1 + share)))
    rows = most_rows_within(step_s, most, tpot_s)
    return rows / (work.row_steps * step_s(rows)) if rows else 0.0


def disaggregated_rate(steps: MeanSteps, transfer: Transfer, tpot_s: float) -> float:
    """The same of replicas that prefill or generate, in the best proportion."""
    work = steps.work
    if not work.row_steps:
        return 1 / steps.prefill_s(work.pairs)
    moved_s = transfer.seconds(round(work.input_tokens))

    def step_s(rows: int) -> float:
        return steps.step(rows, 0, 0.0)

    rows = most_rows_within(step_s, int(steps.room()[0]), tpot_s - moved_s / work.row_steps)
    if not rows:
        return 0.0
    generate_s = max(work.row_steps * step_s(rows) / rows, moved_s)
    return 1 / (steps.prefill_s(work.pairs) + generate_s)
