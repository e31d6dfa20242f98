"""Time of a collective across switched tiers: NVLink node, leaf and spine, or DCN between slices.

In: bytes V (see `network`) and the `Fan`s of a group, inner first. Out: one `TierTime` a tier.
Legend: D units at a tier; M units that the group has there and further out behind the same ports;
U units of that kind in the whole group; W the group's share of the egress of one unit
(`Fan.bytes_per_s`).

A chip has one NIC, so at the leaf M counts all nodes of the group, those beyond the spine too.
NVLink is a port of its own: in a node M = D.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.specs.mesh import Fan


@dataclass(frozen=True, slots=True)
class TierTime:
    """One level of the network: seconds of bandwidth, of latency, and by the rule of thumb."""

    name: str
    bandwidth_s: float
    latency_s: float
    rule_s: float


def gather_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """All-gather (or reduce-scatter), tier by tier: V * (M - 1) / M / W; rule V / W.

    Book, chapter 12: every unit takes in all that it does not hold. Chips of a node first fetch
    what their peers in the same place of other nodes hold (a rail), then share it over NVLink.
    """
    tiers: list[TierTime] = []
    for level, fan in enumerate(fans):
        rule_s = nbytes / fan.bytes_per_s
        bandwidth_s = rule_s * (1 - 1 / _behind_ports(fans, level))
        tiers.append(TierTime(fan.dim, bandwidth_s, fan.hops * fan.hop_s, rule_s))
    return tuple(tiers)


def _behind_ports(fans: Sequence[Fan], level: int) -> int:
    """M: units at a tier, times those of outer tiers that its NICs lead to as well."""
    if fans[level].nic_bytes_per_s is None:
        return fans[level].size
    return math.prod(f.size for f in fans[level:] if f.nic_bytes_per_s is not None)


def reduce_in_network_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """All-reduce where the switches add (SHARP): each unit sends V up once, V / W per tier.

    Book, chapter 12; predicts a gain of 2 (D - 1) / D over a plain all-reduce, of which real
    systems show about 30 %. A tier takes one hop, however many units its switches add up.
    """
    seconds = [nbytes / fan.bytes_per_s for fan in fans]
    return tuple(TierTime(fan.dim, s, fan.hop_s, s) for fan, s in zip(fans, seconds, strict=True))


def exchange_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """All-to-all: what leaves a unit is V / U * (1 - 1 / M), over W; rule V / (U * W).

    Book, chapter 12: in one node V * (N - 1) / N^2 / W; across M nodes V / (M * W_node). What goes
    to another node goes by NVLink to the chip whose rail it takes, so of what a chip of a node
    holds all but 1 / D passes NVLink.
    """
    tiers: list[TierTime] = []
    for level, fan in enumerate(fans):
        units = math.prod(f.size for f in fans[level:])
        rule_s = nbytes / (units * fan.bytes_per_s)
        bandwidth_s = rule_s * (1 - 1 / _behind_ports(fans, level))
        tiers.append(TierTime(fan.dim, bandwidth_s, math.log2(fan.size) * fan.hop_s, rule_s))
    return tuple(tiers)


def shift_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """Every chip sends V to the next of its group: V / min(W, a chip's own port).

    One chip of a unit sends to the next unit, the others to each other, so a group crosses a tier
    with V. The longest way is one hop over the outermost tier.
    """
    tiers: list[TierTime] = []
    for fan in fans:
        seconds = nbytes / min(fan.bytes_per_s, fan.chip_bytes_per_s)
        hop_s = fan.hop_s if fan is fans[-1] else 0.0
        tiers.append(TierTime(fan.dim, seconds, hop_s, seconds))
    return tuple(tiers)
