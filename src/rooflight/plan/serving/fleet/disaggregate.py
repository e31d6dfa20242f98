"""Disaggregate prefill, or not: requests that a replica serves either way, and the flip.

In: a way to serve, a `Demand`. Out: a `PolicyComparison`, in the limit of smooth traffic.
Together, prompts use the FLOPs that steps bound by HBM leave idle, but stretch every step;
disaggregated, steps stay short and may have more rows, but the cache must travel. Bursts and whole
replicas move the flip: the search simulates both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rooflight.plan.serving.fleet.bound import MeanSteps
from rooflight.plan.serving.fleet.cost import fleet_cost
from rooflight.plan.serving.fleet.demand import Demand
from rooflight.plan.serving.fleet.smooth import disaggregated_rate, together_rate
from rooflight.plan.serving.fleet.way import transfer_of
from rooflight.plan.serving.simulate.fleet import Transfer
from rooflight.plan.serving.simulate.setup import Setup

_SPAN = 64  # times more and less, that a flip is looked for within
_ROUNDS = 12  # of halving: a flip to one part in a thousand


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Requests per second of one replica under either policy, and where the better one changes."""

    together: float
    disaggregated: float
    input_flip: float | None  # mean prompt tokens; None where none is in sight
    bandwidth_flip: float | None  # bytes per second between two replicas

    @property
    def is_faster(self) -> bool:
        return self.disaggregated > self.together

    @property
    def gain(self) -> float:
        """The better of the two over the other."""
        low, high = sorted((self.together, self.disaggregated))
        return high / low if low else math.inf


def disaggregate_or_not(
    setup: Setup, demand: Demand, *, engine: str | None
) -> PolicyComparison | None:
    """Both policies at the demand, and the nearest prompt length and bandwidth that change it.

    None where there is nothing to disaggregate: answers of one token, chips without a network.
    """
    transfer = transfer_of(setup)
    if transfer is None or not demand.work().row_steps:
        return None

    def lead(factor: float, speed: float) -> float:
        moved = replace(transfer, bytes_per_s=transfer.bytes_per_s * speed)
        together, disaggregated = _rates(setup, demand.scaled(input=factor), moved, engine)
        return disaggregated - together

    together, disaggregated = _rates(setup, demand, transfer, engine)
    longer = _flip(lambda factor: lead(factor, 1.0))
    faster = _flip(lambda factor: lead(1.0, factor))
    return PolicyComparison(
        together,
        disaggregated,
        None if longer is None else longer * demand.input.mean,
        None if faster is None else faster * transfer.bytes_per_s,
    )


def _flip(lead: Callable[[float], float]) -> float | None:
    """The factor nearest to 1 at which a lead changes its sign, by doubling, then halving."""
    is_ahead = lead(1.0) > 0
    for away in (2.0**i for i in range(1, _SPAN.bit_length())):
        for factor in (away, 1 / away):
            if (lead(factor) > 0) != is_ahead:
                near = factor / 2 if factor > 1 else factor * 2
                return _between(lead, near, factor)
    return None


def _between(lead: Callable[[float], float], near: float, far: float) -> float:
    is_ahead = lead(near) > 0
    for _ in range(_ROUNDS):
        middle = math.sqrt(near * far)
        near, far = (middle, far) if (lead(middle) > 0) == is_ahead else (near, middle)
    return math.sqrt(near * far)


def _rates(
    setup: Setup, demand: Demand, transfer: Transfer, engine: str | None
) -> tuple[float, float]:
    work, limits = demand.work(), setup.limits()
    if limits.pool_tokens < work.longest:
        return 0.0, 0.0
    context, prompt = round(work.positions / work.row_steps), max(1, round(work.input_tokens))
    cost, _, _ = fleet_cost(setup, input_tokens=prompt, context=context, engine=engine)
    steps, tpot_s = MeanSteps(cost, limits, work, setup.on.num_chips), demand.slo.tpot_s
    return together_rate(steps, tpot_s), disaggregated_rate(steps, transfer, tpot_s)
