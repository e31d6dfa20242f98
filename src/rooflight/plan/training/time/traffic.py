"""The collectives of a step by how far they go and who waits for them.

In: network times of `costs`. Out: `Traffic`, one for each tier, which a calibration prices alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.costs.network import NetworkTime, collective_time
from rooflight.hardware.mesh import FAR, Group
from rooflight.models.graph.ops import Graph

Tier = Literal["fast", "slow"]  # links of a torus or inside a node; all that is further away


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one tier that wait alike, `count` times in the step."""

    tier: Tier
    is_critical: bool  # an activation waits for it; else a weight or its gradient
    once: bool
    is_exchange: bool  # tokens on their way to experts and back
    bandwidth_s: float
    latency_s: float
    count: float


def traffic_of(time: NetworkTime | None, *, is_critical: bool, once: bool) -> Iterator[Traffic]:
    """A collective on a torus and between slices is one of each tier; else its slowest tier's."""
    if time is None or time.expected_s == 0:
        return
    is_exchange = time.kind == "all_to_all" and is_critical
    far = {t.name: t for t in time.tiers if t.name in FAR}
    outer_s = sum(t.bandwidth_s for t in far.values())
    if set(far) == {"dcn"} and time.bandwidth_s > outer_s:
        yield Traffic("slow", is_critical, once, is_exchange, outer_s, 0.0, 1.0)
        inner_s = time.bandwidth_s - outer_s
        yield Traffic("fast", is_critical, once, is_exchange, inner_s, time.latency_s, 1.0)
        return
    inside = max((t.bandwidth_s for t in time.tiers if t.name == "node"), default=0.0)
    tier: Tier = "slow" if far and max(t.bandwidth_s for t in far.values()) >= inside else "fast"
    yield Traffic(tier, is_critical, once, is_exchange, time.bandwidth_s, time.latency_s, 1.0)


def experts_per_token(graph: Graph) -> int:
    """k = C's share of a token times the experts; the largest where blocks differ."""
    shares = [float(share) * graph.sizes["E" + dim[1:]] for dim, share in graph.per_token.items()]
    return round(max(shares, default=1.0))


def sent_once(time: NetworkTime, group: Group, k: int) -> NetworkTime:
    """An exchange of routed tokens where each unit gets a token once, however many of k it holds.

    Without this k (n-1)/n copies of a token leave one of n units; with it (n-1) (1 - (1-1/n)^k).
    Holds behind switches, where the receiving node hands a token on to its chips.
    """
    if group.rings or k <= 1:
        return time
    nodes = math.prod(f.size for f in group.fans if f.dim in FAR)
    units = {tier.name: nodes if tier.name in FAR else group.size for tier in time.tiers}
    tiers = tuple(
        replace(t, bandwidth_s=t.bandwidth_s * _distinct(units[t.name], k)) for t in time.tiers
    )
    slowest_s = max((t.bandwidth_s for t in tiers), default=0.0)
    return replace(time, bandwidth_s=slowest_s, tiers=tiers)


def _distinct(units: int, k: int) -> float:
    """The part of k copies that go to different ones of n units, both without the home unit."""
    if units <= 1:
        return 1.0
    return (units - 1) * (1 - (1 - 1 / units) ** k) / (k * (1 - 1 / units))


def sent_on_a_host(time: NetworkTime, group: Group, *, is_critical: bool) -> Iterator[NetworkTime]:
    """What XLA makes of a collective for CPUs, which have no reduce-scatter.

    A sum of which each device keeps a part is an all-reduce and a slice. So a gradient that goes
    to the parts of an optimizer is all-reduced whole, and the new weights are gathered on top,
    where elsewhere a scatter and a gather together send what the all-reduce does.
    """
    is_sum = time.kind in ("reduce_scatter", "all_reduce")
    yield collective_time("all_reduce", time.nbytes, group) if is_sum else time
    if time.kind == "all_reduce" and not is_critical:
        yield collective_time("all_gather", time.nbytes, group)
