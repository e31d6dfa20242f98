"""Liveness means progress: a device that hangs is red soon, one that is full never is."""

import threading
import time
from typing import cast

import pytest

from rooflight.engine import Delta, Engine, Runner
from rooflight.service.health import Health


class _Runner:
    """What health looks at."""

    def __init__(self) -> None:
        self.is_warm, self.is_dead = True, False
        self.stalled_seconds = 0.0


def test_health_is_progress() -> None:
    runner = _Runner()
    health = Health(cast(Runner, runner), 0.02, floor_seconds=0.01)
    assert health.patience == pytest.approx(0.06)
    assert health.is_live and health.is_ready
    runner.stalled_seconds = 0.07
    assert not health.is_live and not health.is_ready  # a step that does not end
    runner.stalled_seconds = 0.05
    assert health.is_live
    runner.is_dead = True
    assert not health.is_live


def test_a_server_that_warms_up_is_alive_and_not_ready() -> None:
    runner = _Runner()
    runner.is_warm = False
    health = Health(cast(Runner, runner), None, floor_seconds=0.0)
    assert health.is_live and not health.is_ready


class _Engine:
    """Steps of 20 ms, of which one may hang."""

    def __init__(self) -> None:
        self.stats, self.ids = None, list[int]()
        self.scheduler = self
        self.waiting_tokens = 0
        self.has_work, self.hang = False, threading.Event()
        self.hang.set()

    def warm(self) -> None:
        pass

    def step(self) -> list[Delta]:
        time.sleep(0.02)
        self.hang.wait()
        return []


def test_a_hung_step_is_red_within_three_and_saturation_never_is() -> None:
    """The predicted step is long, so that a busy machine does not make one look hung."""
    engine = _Engine()
    runner = Runner(cast(Engine, engine), lambda deltas: None)
    health = Health(runner, 0.3, floor_seconds=0.0)
    runner.start()
    for _ in range(20):  # nothing to do, however long
        assert health.is_live
        time.sleep(0.01)
    engine.has_work = True
    runner.post(lambda: ())
    end = time.monotonic() + 2.0
    while time.monotonic() < end:  # always full, for longer than the patience
        assert health.is_live
        time.sleep(0.01)
    assert runner.step_count > 20
    engine.hang.clear()
    start = time.monotonic()
    while health.is_live:
        assert time.monotonic() - start < 3 * 0.3 + 0.5
        time.sleep(0.01)
    assert time.monotonic() - start > 3 * 0.3 - 0.1
    engine.hang.set()
    until = time.monotonic() + 5
    while not health.is_live:
        assert time.monotonic() < until
    engine.has_work = False
    runner.stop()
