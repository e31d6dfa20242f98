"""Waiting in a collective is from one's own start to the last start of the group."""

from pathlib import Path

import numpy as np
import pytest

from rooflight.measure.trace.overlap import waits_for_last
from rooflight.measure.trace.record import Peaks, Timeline, Trace, TraceDevice, TraceOp, TraceStep

_MS = 10**9  # picoseconds
_ROOF = Peaks(None, None, "")
_OPS = (
    TraceOp("dot.1", "matmul", "mlp", "a.py:1", None, None),
    TraceOp("all-reduce.1", "all-reduce", "mlp", "a.py:2", None, None),
)


def _device(starts: list[int], stops: list[int], *, runs: int | None = None) -> TraceDevice:
    """A product, then the collective, as often as there are starts; times in milliseconds."""
    count = len(starts) if runs is None else runs
    which = np.array([0, 1] * count, np.int64)
    begin = np.array([x * _MS for s in starts for x in (s - 1, s)][: 2 * count], np.int64)
    end = np.array([x * _MS for a, z in zip(starts, stops, strict=True) for x in (a, z)], np.int64)
    steps = (TraceStep("0", 0, 50 * _MS), TraceStep("1", 50 * _MS, 100 * _MS))
    return TraceDevice(
        "d", "CPU", Timeline(_OPS, which, begin, end[: 2 * count]), Timeline.empty(), steps, _ROOF
    )


def _trace(*devices: TraceDevice) -> Trace:
    return Trace(Path("x"), devices, ())


def test_the_one_that_comes_first_waits_for_the_last() -> None:
    trace = _trace(_device([10, 60], [30, 70]), _device([25, 60], [30, 70]))
    # 15 ms once, over two steps on two devices.
    assert waits_for_last(trace, {"all-reduce.1": [(0, 1)]}) == pytest.approx(0.015 / 4)


def test_groups_wait_for_their_own_last() -> None:
    trace = _trace(*(_device([start, 60], [40, 70]) for start in (10, 20, 11, 31)))
    found = waits_for_last(trace, {"all-reduce.1": [(0, 2), (1, 3)]})
    assert found == pytest.approx((0.001 + 0.011) / 8)


def test_a_wait_ends_with_the_collective() -> None:
    trace = _trace(_device([10, 60], [12, 70]), _device([25, 60], [30, 70]))
    assert waits_for_last(trace, {"all-reduce.1": [(0, 1)]}) == pytest.approx(0.002 / 4)


def test_what_cannot_be_matched_is_left_out() -> None:
    trace = _trace(_device([10, 60], [30, 70]), _device([25, 60], [30, 70], runs=1))
    assert waits_for_last(trace, {"all-reduce.1": [(0, 1)]}) == 0
    whole = _trace(_device([10, 60], [30, 70]), _device([25, 60], [30, 70]))
    assert waits_for_last(whole, {"all-reduce.1": [(0, 1, 2, 3)]}) == 0  # others are elsewhere
    assert waits_for_last(whole, {"all-reduce.1": [(2, 3)]}, first=2) == pytest.approx(0.015 / 4)
    assert waits_for_last(whole, {"all-gather.9": [(0, 1)]}) == 0
