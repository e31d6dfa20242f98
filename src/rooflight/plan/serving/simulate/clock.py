"""Seconds of many decode steps at once, from a step model that only knows single steps.

While rows only decode, a step attends to `rows` more positions than the one before. For a number of
rows, seconds against positions is kept as straight pieces, found by halving a span until the
middle and the quarters of a piece lie on it to one part in a million; the sum over a run of steps
is then a closed form. Where a step model is straight, as a roofline is between its bends, the sum
is exact; a run over a bend is within the tolerance.

The floor under a simulation: a request all alone on a replica, by its mean lengths. No schedule
beats it while more work never makes a step shorter and a step in two parts is never shorter than in
one; the mean over many lengths lies above the value at the mean, because seconds bend upwards with
length (Jensen). Prompts that are cached beat it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from rooflight.plan.serving.step.cost import StepCost

_TOLERANCE = 1e-6
_SPAN = 4  # bits: from 16, 256, 4096 ... positions up to the next


class _Piece(NamedTuple):
    """seconds = fixed + slope * positions, up to `high` positions."""

    high: int
    fixed: float
    slope: float


@dataclass(frozen=True, slots=True)
class OffloadTimes:
    """Seconds of a KV block: from host memory, from an SSD to there, and onto the SSD."""

    restore_s: float = 0.0
    read_s: float = 0.0
    write_s: float = 0.0
    latency_s: float = 0.0  # of reading any


class StepClock:
    """The time of steps, single or in a row."""

    __slots__ = ("_cost", "_spans", "offload")

    def __init__(self, cost: StepCost, offload: OffloadTimes | None = None) -> None:
        self._cost = cost
        self.offload = offload or OffloadTimes()
        self._spans: dict[tuple[int, int], list[_Piece]] = {}

    def step(self, rows: int, kv: int, chunk_tokens: int, attended: int) -> float:
        """One step, as the step model has it."""
        return self._cost.seconds(
            decode_rows=rows, kv_tokens=kv, prefill_tokens=chunk_tokens, prefill_kv_tokens=attended
        )

    def late(self, chunk_tokens: int, attended: int) -> float:
        """From the end of a step to the first token of its chunk."""
        return self._cost.late_s(prefill_tokens=chunk_tokens, prefill_kv_tokens=attended)

    def decode(self, rows: int, kv: int, steps: int, until_s: float) -> tuple[int, float]:
        """Decode steps, the first at `kv` positions, at most `steps` and only until `until_s`.

        The last step may end after `until_s`; it begins before. Out: steps and their seconds.
        """
        pieces = self._spans.get((rows, (kv.bit_length() - 1) // _SPAN)) or self._span(rows, kv)
        piece = pieces[0] if len(pieces) == 1 else pieces[bisect_left(pieces, (kv,))]
        high, fixed, slope = piece
        if kv + (steps - 1) * rows <= high:  # most runs lie within one piece
            # as `_total`, whose call takes as long as its sum
            spent = steps * fixed + slope * (steps * kv + rows * (steps * (steps - 1) // 2))
            if spent <= until_s:
                return steps, spent
            return _until(piece, rows, kv, until_s)
        return self._decode_pieces(rows, kv, steps, until_s)

    def _decode_pieces(self, rows: int, kv: int, steps: int, until_s: float) -> tuple[int, float]:
        done, spent = 0, 0.0
        while done < steps and spent < until_s:
            piece = self._piece(rows, kv)
            count = min(steps - done, (piece.high - kv) // rows + 1)
            seconds = _total(piece, rows, kv, count)
            if spent + seconds > until_s:
                count, seconds = _until(piece, rows, kv, until_s - spent)
            done, spent, kv = done + count, spent + seconds, kv + count * rows
        return done, spent

    def _piece(self, rows: int, kv: int) -> _Piece:
        pieces = self._spans.get((rows, (kv.bit_length() - 1) // _SPAN)) or self._span(rows, kv)
        return pieces[0] if len(pieces) == 1 else pieces[bisect_left(pieces, (kv,))]

    def _span(self, rows: int, kv: int) -> list[_Piece]:
        at = (kv.bit_length() - 1) // _SPAN
        low = 1 << (_SPAN * at)
        pieces = self._spans[rows, at] = self._straight(rows, low, (low << _SPAN) - 1)
        return pieces

    def _straight(self, rows: int, low: int, high: int) -> list[_Piece]:
        """Pieces from `low` to `high`; shorter than a step makes them no finer."""
        first, last = self._decode_step(rows, low), self._decode_step(rows, high)
        slope = (last - first) / (high - low) if high > low else 0.0
        piece = _Piece(high, first - slope * low, slope)
        if high - low <= max(rows, 3) or self._is_on(piece, rows, low):
            return [piece]
        middle = (low + high) // 2
        return [*self._straight(rows, low, middle), *self._straight(rows, middle + 1, high)]

    def _is_on(self, piece: _Piece, rows: int, low: int) -> bool:
        for quarter in (1, 2, 3):
            at = low + (piece.high - low) * quarter // 4
            true = self._decode_step(rows, at)
            if not math.isclose(piece.fixed + piece.slope * at, true, rel_tol=_TOLERANCE):
                return False
        return True

    def _decode_step(self, rows: int, kv: int) -> float:
        return self.step(rows=rows, kv=kv, chunk_tokens=0, attended=0)


def _total(piece: _Piece, rows: int, kv: int, count: int) -> float:
    """Seconds of `count` steps: an arithmetic series."""
    positions = count * kv + rows * (count * (count - 1) // 2)
    return count * piece.fixed + piece.slope * positions


def _until(piece: _Piece, rows: int, kv: int, least_s: float) -> tuple[int, float]:
    """The least number of steps that last at least so long: a root, then mended by ones."""
    _, fixed, slope = piece
    curve = slope * rows / 2
    speed = fixed + slope * kv - curve
    square = speed * speed + 4 * curve * least_s
    count = int(2 * least_s / (speed + math.sqrt(square))) if square > 0 else 0
    fewer_s = count * fixed + slope * (count * kv + rows * (count * (count - 1) // 2))
    while fewer_s >= least_s and count:
        count -= 1
        fewer_s = _total(piece, rows, kv, count)
    while True:  # once, but for rounding
        count += 1
        seconds = count * fixed + slope * (count * kv + rows * (count * (count - 1) // 2))
        if seconds >= least_s:
            return count, seconds


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that even an idle replica needs."""

    ttft_s: float
    tpot_s: float
    e2e_s: float


def floor_seconds(
    clock: StepClock,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    transfer_s: float = 0.0,
) -> Floor:
    """The closed form: what is not cached of the prompt in one step, then a token per step, alone.

    TTFT = t(P)        E2E = TTFT + transfer + sum of t(1 row, P + i) for i = 1 .. output - 1
    """
    chunk = input_tokens - cached_tokens
    attended = (input_tokens * (input_tokens + 1) - cached_tokens * (cached_tokens + 1)) // 2
    ttft_s = clock.step(rows=0, kv=0, chunk_tokens=chunk, attended=attended)
    ttft_s += clock.late(chunk_tokens=chunk, attended=attended)
    gaps = output_tokens - 1
    if not gaps:
        return Floor(ttft_s, 0.0, ttft_s)
    _, decode_s = clock.decode(rows=1, kv=input_tokens + 1, steps=gaps, until_s=math.inf)
    tail_s = transfer_s + decode_s
    return Floor(ttft_s, tail_s / gaps, ttft_s + tail_s)
