"""Time of a collective across switched tiers: NVLink node, leaf and spine, or DCN between slices.

In: bytes V (see `network`) and the `Fan`s of a group, inner first. Out: one `TierTime` a tier.
Legend: D units at a tier, U units of that kind in the whole group, W the group's share of the
egress of one unit (`Fan.bytes_per_s`).
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
    """All-gather (or reduce-scatter), tier by tier: V * (D - 1) / D / W; rule V / W.

    Book, chapter 12: every unit takes in all that it does not hold. As there, the traffic of outer
    tiers through the links of inner units is left out: at most 1 / D of a tier's own.
    """
    return tuple(
        TierTime(
            fan.dim,
            bandwidth_s=nbytes * (fan.size - 1) / (fan.size * fan.bytes_per_s),
            latency_s=fan.hop_s,
            rule_s=nbytes / fan.bytes_per_s,
        )
        for fan in fans
    )


def reduce_in_network_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """All-reduce where the switches add (SHARP): each unit sends V up once, V / W per tier.

    Book, chapter 12; predicts a gain of 2 (D - 1) / D over a plain all-reduce, of which real
    systems show about 30 %.
    """
    seconds = [nbytes / fan.bytes_per_s for fan in fans]
    return tuple(TierTime(fan.dim, s, fan.hop_s, s) for fan, s in zip(fans, seconds, strict=True))


def exchange_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """All-to-all: what leaves a unit is V / U * (1 - 1 / U), over W; rule V / (U * W).

    Book, chapter 12: in one node V * (N - 1) / N^2 / W; across M nodes V / (M * W_node).
    """
    tiers: list[TierTime] = []
    for level, fan in enumerate(fans):
        units = math.prod(f.size for f in fans[level:])
        rule_s = nbytes / (units * fan.bytes_per_s)
        tiers.append(TierTime(fan.dim, rule_s * (1 - 1 / units), fan.hop_s, rule_s))
    return tuple(tiers)


def shift_tiers(nbytes: float, fans: Sequence[Fan]) -> tuple[TierTime, ...]:
    """Every chip sends V to the next of its group: a chip crosses a tier by its own part of W."""
    seconds = [nbytes * fan.unit_chips / fan.egress_bytes_per_s for fan in fans]
    return tuple(TierTime(fan.dim, s, fan.hop_s, s) for fan, s in zip(fans, seconds, strict=True))
