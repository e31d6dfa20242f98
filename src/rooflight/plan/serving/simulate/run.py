"""Requests through the real scheduler under a virtual clock.

In: a stream of arrivals, a step model, the limits of a replica, how many there are. Out: latencies
and goodput, beside the floor that physics sets. The scheduler is the object an engine drives;
only the time of a step comes from the step model instead of a device.
"""

import gc
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rooflight.batching.request import Limits
from rooflight.errors import UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.clients import Clients
from rooflight.plan.serving.simulate.clock import Floor, OffloadTimes, StepClock, floor_seconds
from rooflight.plan.serving.simulate.fleet import DisaggregatedFleet, Fleet, TogetherFleet, Transfer
from rooflight.plan.serving.simulate.replica import Ticket
from rooflight.plan.serving.simulate.reuse import HitCurve, ReuseLog, hit_curve
from rooflight.plan.serving.simulate.tally import PriorityClass, Quantiles, Slo, Tally
from rooflight.plan.serving.step.cost import StepCost

Watch = Callable[[int, int], None]  # requests that came, requests that are done
_WATCH_EVERY = 4096
_NO_CLASSES: Mapping[int, Slo] = MappingProxyType({})
OPEN_ONLY = "disaggregated replicas are not simulated in a closed loop or with turns that wait"


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """How many replicas prefill, how many generate, and the way between them."""

    prefill_replicas: int
    generate_replicas: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Simulation:
    """What became of the traffic. TTFT, TPOT and E2E are of finished requests."""

    num_requests: int
    num_finished: int
    num_rejected: int
    num_good: int  # finished within the SLO
    duration_s: float  # from time 0 to the last token
    input_tokens: int
    output_tokens: int
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    floor: Floor
    replicas: int
    prefill_replicas: int  # of these, that only prefill; 0 where all do everything
    busy_share: float  # of the replicas' time, that steps took
    mean_rows: float  # that decode, in steps in which any does
    steps: int
    preemptions: int
    cached_tokens: int
    restored_tokens: int  # of these, from host memory
    ssd_read_tokens: int = 0  # that came to host memory from an SSD
    ssd_written_tokens: int = 0
    ttft_first: Quantiles | None = None  # of the first turns of sessions
    ttft_later: Quantiles | None = None  # of their other turns
    by_priority: tuple[PriorityClass, ...] = ()  # where there are several
    hits: HitCurve | None = field(default=None, compare=False)  # where it was asked for

    @property
    def good_share(self) -> float:
        """Requests that met the SLO, of all that came; rejected ones did not."""
        return self.num_good / self.num_requests

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.num_good / self.duration_s if self.duration_s else 0.0

    @property
    def cached_share(self) -> float:
        """Prompt tokens that the prefix cache had, of all; recomputed ones count again."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def paid(self) -> float:
        """The mean end-to-end latency over the floor: how many times the physics one pays."""
        return self.e2e.mean / self.floor.e2e_s if self.e2e else 0.0


def simulate(
    arrivals: Iterable[Arrival],
    *,
    cost: StepCost,
    limits: Limits,
    replicas: int | PoolSplit = 1,
    slo: Slo | None = None,
    watch: Watch | None = None,
    most_late: float = math.inf,
    warm: Arrival | None = None,
    concurrency: int | None = None,
    has_turns: bool = False,
    offload: OffloadTimes | None = None,
    counts_hits: bool = False,
    slos: Mapping[int, Slo] = _NO_CLASSES,
) -> Simulation:
    """Runs all arrivals, in order of time, to the end of the last one.

    With a `concurrency` so many clients send them one after another, at no times of their own; all
    of them may wait. Where it `has_turns`, those of a session wait for the answer before. What
    `warm` shares with others is cached before the first comes. Priorities in `slos` have
    their own. It ends early where more than `most_late` miss the SLO: the rest would not make it a
    good one.
    """
    slo, clock = slo or Slo(), StepClock(cost, offload)
    tally = Clients(slo, concurrency) if concurrency or has_turns else Tally(slo, slos)
    if isinstance(tally, Clients) and not isinstance(replicas, int):
        raise UsageError(OPEN_ONLY, hint="leave out the concurrency and the turns")
    if concurrency:
        limits = replace(limits, max_waiting=max(limits.max_waiting, concurrency))
    fleet, ends_early = _fleet(limits, clock, tally, replicas), most_late < math.inf
    if warm:
        for replica in fleet.replicas:
            replica.warm(warm)
    if counts_hits:
        for replica in fleet.replicas:
            replica.reuse = ReuseLog(limits.block_tokens)
    with _uncollected():
        if isinstance(tally, Clients):
            arrivals = tally.sent(iter(arrivals), fleet.replicas)
        for id, arrival in enumerate(arrivals):
            fleet.arrive(Ticket(id, arrival))
            tally.num_arrived = id + 1
            if ends_early and tally.num_late + tally.num_rejected > most_late:
                return _result(tally, fleet, clock, replicas)
            if watch is not None and id % _WATCH_EVERY == 0:
                watch(id, tally.num_finished)
        if not tally.num_arrived:
            raise UsageError("no requests to simulate", hint="give a trace with at least one line")
        fleet.drain()
    return _result(tally, fleet, clock, replicas)


@contextmanager
def _uncollected() -> Generator[None, None, None]:
    """No search for cycles: requests leave none, and looking for them takes a tenth of a run."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _fleet(limits: Limits, clock: StepClock, tally: Tally, replicas: int | PoolSplit) -> Fleet:
    if isinstance(replicas, int):
        return TogetherFleet(limits, clock, tally, replicas=replicas)
    return DisaggregatedFleet(
        limits,
        clock,
        tally,
        prefill_replicas=replicas.prefill_replicas,
        generate_replicas=replicas.generate_replicas,
        transfer=replicas.transfer,
    )


def _result(tally: Tally, fleet: Fleet, clock: StepClock, replicas: int | PoolSplit) -> Simulation:
    latencies = tally.latencies()
    done = max(1, tally.num_finished)
    schedulers = [replica.scheduler for replica in fleet.replicas]
    tiers = [s.room.tier for s in schedulers if s.room.tier]
    block_tokens = schedulers[0].limits.block_tokens
    input_tokens = max(1, tally.input_tokens // done)
    cached_tokens = sum(scheduler.room.cached_tokens for scheduler in schedulers)
    floor = floor_seconds(
        clock,
        input_tokens=input_tokens,
        output_tokens=max(1, tally.output_tokens // done),
        cached_tokens=min(cached_tokens // done, input_tokens - 1),
        transfer_s=0.0 if isinstance(replicas, int) else replicas.transfer.seconds(input_tokens),
    )
    busy_s = sum(replica.busy_s for replica in fleet.replicas)
    decode_steps = sum(replica.decode_steps for replica in fleet.replicas)
    return Simulation(
        num_requests=tally.num_arrived,
        num_finished=tally.num_finished,
        num_rejected=tally.num_rejected,
        num_good=tally.num_good,
        duration_s=tally.end_s,
        input_tokens=tally.input_tokens,
        output_tokens=tally.output_tokens,
        ttft=latencies.ttft,
        tpot=latencies.tpot,
        e2e=latencies.e2e,
        floor=floor,
        replicas=len(fleet.replicas),
        prefill_replicas=0 if isinstance(replicas, int) else replicas.prefill_replicas,
        busy_share=busy_s / (tally.end_s * len(fleet.replicas)) if tally.end_s else 0.0,
        mean_rows=sum(r.row_steps for r in fleet.replicas) / max(1, decode_steps),
        steps=sum(replica.steps for replica in fleet.replicas),
        preemptions=sum(scheduler.num_preemptions for scheduler in schedulers),
        cached_tokens=cached_tokens,
        restored_tokens=sum(tier.num_restored for tier in tiers) * block_tokens,
        ssd_read_tokens=sum(tier.num_read for tier in tiers) * block_tokens,
        ssd_written_tokens=sum(tier.num_written for tier in tiers) * block_tokens,
        ttft_first=latencies.ttft_first,
        ttft_later=latencies.ttft_later,
        by_priority=tally.by_priority(),
        hits=hit_curve([replica.reuse for replica in fleet.replicas if replica.reuse]),
    )
