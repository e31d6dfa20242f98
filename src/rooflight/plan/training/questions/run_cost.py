"""A whole training run at the pace of a plan: days, dollars, energy, failures, goodput.

In: a planned step and a number of tokens. Out: a `RunCost`, at the forecast of the step (or at the
roofline, where the plan was ranked by that).

    M mean time between failures of the whole slice    d seconds that a checkpoint stops it
    t seconds between checkpoints                      R seconds to start again
"""

import math
from dataclasses import dataclass

from rooflight.hardware.failures import FailureRate, load_failure_rates
from rooflight.plan.training.questions.budget import Budget, Terms, run_flops
from rooflight.plan.training.search.candidate import Candidate, Question

CONVENTION = "matmuls + causal attention"  # what the MFU of a plan counts
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What is lost to checkpoints and failures, to first order.

    t = sqrt(2 d M) loses least (Young 1974), and then d/t + t/(2 M) + R/M of the time is lost: to
    writing, to repeated work, to starting again. It stops holding where t is not well below M.
    """

    write_s: float
    restart_s: float | None  # None: unknown, and not counted
    between_failures_s: float

    @property
    def interval_s(self) -> float:
        return math.sqrt(2 * self.write_s * self.between_failures_s)

    @property
    def goodput(self) -> float | None:
        """The part of the time that makes progress; None where failures come too often to say.

        >>> round(CheckpointCost(60.0, 300.0, 3 * 3600.0).goodput, 3)
        0.867
        """
        if 2 * self.interval_s > self.between_failures_s:
            return None
        writing = self.write_s / self.interval_s
        again = self.interval_s / (2 * self.between_failures_s)
        return 1 - writing - again - (self.restart_s or 0.0) / self.between_failures_s


@dataclass(frozen=True, slots=True)
class RunCost:
    """A run of `tokens` at the plan's pace; what the catalog does not know is None in `budget`."""

    tokens: int
    steps: float
    budget: Budget
    failure_rate: FailureRate
    is_assumed: bool  # the rate was measured on another chip
    checkpoints: CheckpointCost | None

    @property
    def between_failures_s(self) -> float:
        """Of the whole slice: any chip that fails stops the run."""
        return self.failure_rate.mtbf_hours * _HOUR_S / self.budget.terms.on.num_chips

    @property
    def goodput(self) -> float | None:
        """Of the checkpoints; where none are given, as the source of the failures reported it."""
        if self.checkpoints:
            return self.checkpoints.goodput
        return self.failure_rate.goodput_on(self.budget.terms.on.num_chips)

    @property
    def days_with_failures(self) -> float | None:
        return self.budget.days / self.goodput if self.goodput else None

    @property
    def chip_hours_with_failures(self) -> float | None:
        return self.budget.chip_hours / self.goodput if self.goodput else None


def run_cost(
    question: Question,
    best: Candidate,
    tokens: int,
    *,
    write_s: float | None = None,
    restart_s: float | None = None,
) -> RunCost:
    """Prices a run; its days are steps x the expected seconds of one."""
    q, chip = question, question.on.chip
    rates = load_failure_rates()
    rate = rates.get(chip.name) or next(iter(rates.values()))
    flops = run_flops(q.graph, tokens=tokens, seq=q.seq)[CONVENTION]
    terms = Terms(
        q.on, mfu=best.mfu, dtype=chip.matmul_dtype(q.dtype.name), mtbf_hours=rate.mtbf_hours
    )
    between_s = rate.mtbf_hours * _HOUR_S / q.on.num_chips
    return RunCost(
        tokens,
        tokens / (q.batch * q.seq),
        Budget(flops, terms),
        rate,
        chip.name != rate.chip,
        None if write_s is None else CheckpointCost(write_s, restart_s, between_s),
    )
