"""Time of a collective on torus axes: rings where an axis wraps, lines where it does not.

In: bytes V (see `network`) and the `Ring`s of a group. Out: an `AxisTime`, bandwidth and latency
apart. Legend: n_i chips and rate w_i (bytes/s of one chip) on axis i, N = prod n_i.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from rooflight.hardware.mesh import Ring


@dataclass(frozen=True, slots=True)
class AxisTime:
    """Seconds on a set of axes: all streaming at once, one after another, and in flight.

    `hidden_s` is flight time that always overlaps with sending.
    """

    bandwidth_s: float
    serial_s: float
    latency_s: float
    rule_s: float
    binds: str
    hidden_s: float = 0.0


def gather_time(nbytes: float, rings: Sequence[Ring]) -> AxisTime:
    """All-gather (or its mirror image, reduce-scatter) of V bytes over every axis at once.

    bandwidth = V * max over sets S of axes of (prod_S n - 1) / (N * sum_S w)
    latency   = sum_i hops_i * stride_i * hop_s

    Book, chapter 3: V / (W * axes). Each order of the axes carries a share of the array; the
    loads such shares can reach are the base polytope of prod_S n - 1, so the bound is reached.
    Usually all axes bind together; a long slow axis beside a short fast one binds alone. Needs
    shards large enough to cut in pieces; between the two regimes the sum is an upper estimate.
    """
    chips = math.prod(r.size for r in rings)
    worst = max(_axis_sets(rings), key=lambda s: _set_seconds(nbytes, s, chips, less=1))
    return AxisTime(
        bandwidth_s=_set_seconds(nbytes, worst, chips, less=1),
        serial_s=_serial_gather_seconds(nbytes, rings, chips),
        latency_s=_flight_seconds(rings),
        rule_s=max(_set_seconds(nbytes, s, chips, less=0) for s in _axis_sets(rings)),
        binds="+".join(r.dim for r in worst) + " bandwidth",
    )


def _axis_sets(rings: Sequence[Ring]) -> list[tuple[Ring, ...]]:
    return [s for k in range(len(rings), 0, -1) for s in combinations(rings, k)]


def _set_seconds(nbytes: float, rings: Sequence[Ring], chips: int, *, less: int) -> float:
    gathered = math.prod(r.size for r in rings) - less
    return nbytes * gathered / (chips * sum(r.bytes_per_s for r in rings))


def _serial_gather_seconds(nbytes: float, rings: Sequence[Ring], chips: int) -> float:
    """One axis after another in the worst order: the slowest last, when the array is large."""
    seconds, shard = 0.0, nbytes / chips
    for ring in sorted(rings, key=lambda r: -r.bytes_per_s):
        seconds += shard * (ring.size - 1) / ring.bytes_per_s
        shard *= ring.size
    return seconds


def _flight_seconds(rings: Sequence[Ring]) -> float:
    return sum(r.hops * r.stride * r.hop_s for r in rings)


def exchange_time(nbytes: float, rings: Sequence[Ring]) -> AxisTime:
    """All-to-all over every axis at once, each chunk routed the shortest way.

    bandwidth = max_i V * floor(n_i^2 / 4) / (n_i * N * w_i);   rule = max_i V * n_i / (4 * N * w_i)

    Book, chapter 3 (all-to-all in N dimensions; on one ring a quarter of an all-gather). Needs
    equal chunks; the antipodal chunk of an even ring goes half each way.
    """
    chips = math.prod(r.size for r in rings)
    loads = {r: nbytes * (r.size**2 // 4) / (r.size * chips * r.bytes_per_s) for r in rings}
    worst = max(loads, key=lambda r: loads[r])
    return AxisTime(
        bandwidth_s=loads[worst],
        serial_s=sum(loads[r] for r in rings),
        latency_s=_flight_seconds(rings),
        rule_s=max(nbytes * r.size / (4 * chips * r.bytes_per_s) for r in rings),
        binds=f"{worst.dim} bandwidth",
    )


def shift_time(nbytes: float, rings: Sequence[Ring]) -> AxisTime:
    """Every chip of the group sends V bytes to the next one, the last one back to the first.

    bandwidth = max_i stride_i * V / link_i,   latency = sum_i D_i * hop_s

    D_i is stride_i links around a ring. On a line the way back is (n_i - 1) * stride_i links long,
    but nothing else uses that direction. A ring of two sends half each way. The bytes stream in
    packets, so of `stride` siblings on a link each flies one hop while another is sent; over
    several axes that gain is left out.
    """
    sends = [_send_seconds(nbytes, r) for r in rings]
    flights = [_shift_hops(r) * r.hop_s for r in rings]
    hidden_s = (rings[0].stride - 1) * min(sends[0], rings[0].hop_s) if len(rings) == 1 else 0.0
    loads = [r.stride * s for r, s in zip(rings, sends, strict=True)]
    worst = max(range(len(rings)), key=loads.__getitem__)
    whole = [_shift_hops(r) * s for r, s in zip(rings, sends, strict=True)]  # stored at each hop
    return AxisTime(
        bandwidth_s=loads[worst],
        serial_s=sum(whole),
        latency_s=sum(flights),
        rule_s=loads[worst],
        binds=f"{rings[worst].dim} bandwidth",
        hidden_s=hidden_s,
    )


def _send_seconds(nbytes: float, ring: Ring) -> float:
    ways = 2 if ring.wraps and ring.size == 2 else 1
    return nbytes / (ways * ring.link_bytes_per_s) if ring.size > 1 else 0.0


def _shift_hops(ring: Ring) -> int:
    if ring.size == 1:
        return 0
    return ring.stride * (1 if ring.wraps else ring.size - 1)
