"""Network time of one collective on any group of chips: torus axes, switched tiers, or both.

In: a kind, bytes V and a `Group`. Out: a `NetworkTime` with lower bound, expectation, upper bound.

V is the array as if this group did not shard it: what an all-gather leaves on each chip, what a
reduce-scatter starts from on each chip, what an all-reduce holds on each chip, group size times
the local bytes of an all-to-all. For a permute (a cyclic shift by one) it is what each chip sends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.costs.torus import AxisTime, exchange_time, gather_time, shift_time
from rooflight.errors import UsageError
from rooflight.hardware.mesh import Fan, Group, Ring
from rooflight.hardware.slice import Slice, TorusDim

# Time of a collective across switched tiers: NVLink node, leaf and spine, or DCN between slices.


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


CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
KINDS: tuple[CollectiveKind, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
)


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """Seconds of one collective, and what binds it.

    `lower_s` overlaps everything, `upper_s` nothing; `rule_s` is the book's rule for large groups.
    """

    kind: CollectiveKind
    nbytes: float
    lower_s: float
    expected_s: float
    upper_s: float
    rule_s: float
    bandwidth_s: float
    latency_s: float
    binds: str
    tiers: tuple[TierTime, ...]


def collective_time(
    kind: CollectiveKind, nbytes: float, group: Group, *, in_network_reduction: bool = False
) -> NetworkTime:
    """Prices one collective over one group, its sibling groups doing the same at the same time.

    >>> from rooflight.hardware.mesh import parse_mesh
    >>> group = parse_mesh("X=4,Y=4", on="v5e:4x4").group("Y")
    >>> gather = collective_time("all_gather", 2**25, group)
    >>> f"{gather.expected_s * 1e6:.1f} us, {gather.binds}"  # book, pop quiz 2 of chapter 3
    '562.2 us, y bandwidth'
    """
    rings = tuple(r for r in group.rings if r.size > 1)
    fans = tuple(f for f in group.fans if f.size > 1)
    if in_network_reduction:
        _check_reduces(kind, fans, rings)
    torus_bytes = nbytes
    if kind == "all_to_all":  # inside one slice only a slice's part of the array is exchanged
        for fan in fans:
            torus_bytes /= fan.size
    axes = _axis_time(kind, torus_bytes, rings) if rings else None
    tiers = _tier_times(kind, nbytes, fans, in_network_reduction=in_network_reduction)
    if tiers:  # once, and with the tier that begins
        first, launch_s = tiers[0], fans[0].launch_s
        tiers = (replace(first, latency_s=first.latency_s + launch_s), *tiers[1:])
    if axes is None:
        return _switched_time(kind, nbytes, tiers)
    return _torus_time(kind, nbytes, axes, tiers)


def _check_reduces(kind: CollectiveKind, fans: Sequence[Fan], rings: Sequence[Ring]) -> None:
    plain = [f.dim for f in fans if not f.reduces] + [r.dim for r in rings]
    if kind != "all_reduce" or plain:
        where = f"{kind} over {'+'.join(plain)}" if plain else kind
        raise UsageError(
            f"the network does not reduce an {where}",
            hint="ask for in-network reduction only of an all_reduce whose tiers all reduce",
        )


def _axis_time(kind: CollectiveKind, nbytes: float, rings: Sequence[Ring]) -> AxisTime:
    if kind == "all_to_all":
        return exchange_time(nbytes, rings)
    if kind == "permute":
        return shift_time(nbytes, rings)
    gather = gather_time(nbytes, rings)
    if kind != "all_reduce":
        return gather
    return replace(
        gather,
        bandwidth_s=2 * gather.bandwidth_s,
        serial_s=2 * gather.serial_s,
        latency_s=2 * gather.latency_s,
        rule_s=2 * gather.rule_s,
    )


def _tier_times(
    kind: CollectiveKind, nbytes: float, fans: Sequence[Fan], *, in_network_reduction: bool
) -> tuple[TierTime, ...]:
    if in_network_reduction:
        return reduce_in_network_tiers(nbytes, fans)
    if kind == "all_to_all":
        return exchange_tiers(nbytes, fans)
    if kind == "permute":
        return shift_tiers(nbytes, fans)
    gather = gather_tiers(nbytes, fans)
    if kind != "all_reduce":
        return gather
    return tuple(TierTime(t.name, 2 * t.bandwidth_s, 2 * t.latency_s, 2 * t.rule_s) for t in gather)


def _switched_time(kind: CollectiveKind, nbytes: float, tiers: tuple[TierTime, ...]) -> NetworkTime:
    """Tiers work at once on different pieces, so the slowest counts; at worst they take turns."""
    bandwidth_s = max((t.bandwidth_s for t in tiers), default=0.0)
    latency_s = sum(t.latency_s for t in tiers)
    worst = max(tiers, key=lambda t: t.bandwidth_s, default=None)
    return NetworkTime(
        kind,
        nbytes,
        lower_s=max(bandwidth_s, latency_s),
        expected_s=bandwidth_s + latency_s,
        upper_s=sum(t.bandwidth_s for t in tiers) + latency_s,
        rule_s=max((t.rule_s for t in tiers), default=0.0),
        bandwidth_s=bandwidth_s,
        latency_s=latency_s,
        binds=_binds(f"{worst.name} bandwidth" if worst else "nothing", bandwidth_s, latency_s),
        tiers=tiers,
    )


def _torus_time(
    kind: CollectiveKind, nbytes: float, axes: AxisTime, tiers: tuple[TierTime, ...]
) -> NetworkTime:
    """Torus axes stream together; the exchange between slices is a phase of its own."""
    outer_bandwidth_s = sum(t.bandwidth_s for t in tiers)
    bandwidth_s = axes.bandwidth_s + outer_bandwidth_s
    latency_s = axes.latency_s + sum(t.latency_s for t in tiers)
    worst = max(tiers, key=lambda t: t.bandwidth_s, default=None)
    binds = axes.binds
    if worst and worst.bandwidth_s > axes.bandwidth_s:
        binds = f"{worst.name} bandwidth"
    return NetworkTime(
        kind,
        nbytes,
        lower_s=max(axes.bandwidth_s, outer_bandwidth_s, latency_s),
        expected_s=bandwidth_s + latency_s - axes.hidden_s,
        upper_s=axes.serial_s + outer_bandwidth_s + latency_s,
        rule_s=axes.rule_s + sum(t.rule_s for t in tiers),
        bandwidth_s=bandwidth_s,
        latency_s=latency_s,
        binds=_binds(binds, bandwidth_s, latency_s),
        tiers=(TierTime("torus", axes.bandwidth_s, axes.latency_s, axes.rule_s), *tiers),
    )


def _binds(bandwidth: str, bandwidth_s: float, latency_s: float) -> str:
    return "hop latency" if latency_s > bandwidth_s else bandwidth


def permute_time(
    nbytes: float, on: Slice, *, source: Sequence[int], target: Sequence[int]
) -> NetworkTime:
    """One chip sends V bytes to another by shortest ways: V / (ports * link) + hops * hop_s.

    Book, exercise 2.5. Every axis the two chips differ in is a port at both ends; antipodes on
    every such ring use both its ports. Routes by different ports share no link. Detours could use
    the ports of the other axes too; routers that take the shortest way do not.

    >>> from rooflight.hardware.slice import parse_slice
    >>> corner = permute_time(2**24, parse_slice("v5e:4x4"), source=(0, 0), target=(3, 3))
    >>> f"{corner.expected_s * 1e6:.1f} us"
    '192.4 us'
    """
    for chip in (source, target):
        if len(chip) != len(on.shape) or any(map(_is_outside, chip, on.shape)):
            raise UsageError(
                f"{on} has no chip {tuple(chip)}",
                hint=f"the first chip is all zeros, the last {tuple(n - 1 for n in on.shape)}",
            )
    axes = [d for d in on.dims if isinstance(d, TorusDim)]
    ways = [_ways(d, s, t) for d, s, t in zip(axes, source, target, strict=True)]
    used = [ports for hops, ports in ways if hops]
    ports = len(used) * min(used, default=0)
    latency_s = sum(hops * d.hop_s for d, (hops, _) in zip(axes, ways, strict=True))
    bandwidth_s = nbytes / (ports * axes[0].link_bytes_per_s) if ports else 0.0
    return NetworkTime(
        "permute",
        nbytes,
        lower_s=max(bandwidth_s, latency_s),
        expected_s=bandwidth_s + latency_s,
        upper_s=bandwidth_s * max(ports, 1) + latency_s,
        rule_s=bandwidth_s,
        bandwidth_s=bandwidth_s,
        latency_s=latency_s,
        binds=_binds(f"{ports} ports", bandwidth_s, latency_s) if ports else "nothing",
        tiers=(TierTime("torus", bandwidth_s, latency_s, bandwidth_s),),
    )


def _is_outside(position: int, size: int) -> bool:
    return not 0 <= position < size


def _ways(axis: TorusDim, start: int, end: int) -> tuple[int, int]:
    """Hops between two positions by the shortest way, and how many shortest ways there are."""
    ahead = abs(end - start)
    around = axis.size - ahead if axis.wraps else ahead
    return min(ahead, around), 2 if axis.wraps and ahead == around else 1


def ragged_share(choices: int, shards: int) -> float:
    """The part of n shards that k independent even choices reach: 1 - (1 - 1/n)^k.

    Book, chapter 12. It stops holding when experts are chosen without repetition or unevenly.

    >>> round(ragged_share(4, 8), 4)
    0.4138
    """
    return 1 - (1 - 1 / shards) ** choices


def ragged_share_bound(choices: int, shards: int) -> float:
    """The most that k choices can reach: min(k/n, 1), as if no two met (book, chapter 12).

    >>> ragged_share_bound(4, 8), ragged_share_bound(16, 8)
    (0.5, 1.0)
    """
    return min(choices / shards, 1.0)
