"""Liveness means progress: a device that hangs is red soon, one that is full never is."""

import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from rooflight.serve.engine.request import Delta
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.runner import Runner
from rooflight.serve.http.service import Health


class _Runner:
    """What health looks at."""

    def __init__(self) -> None:
        self.is_warm, self.is_dead = True, False
        self.stalled_seconds = 0.0


def test_health_is_progress() -> None:
    runner = _Runner()
    health = Health(cast(Runner, runner), 0.02, floor_seconds=0.01)
    assert health.timeout == pytest.approx(0.06)
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
    """Steps of 20 ms of a clock of its own, each of which waits for its turn."""

    def __init__(self) -> None:
        self.stats, self.ids = None, list[int]()
        self.scheduler = self
        self.waiting_tokens = 0
        self.has_work, self.turn, self.now = False, threading.Semaphore(0), 0.0

    def warm(self) -> None:
        pass

    def step(self) -> list[Delta]:
        self.turn.acquire()
        self.now += 0.02
        return []


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if is_so():
            return
        time.sleep(0.005)
    raise AssertionError("never came true")


def test_a_hung_step_is_red_within_three_and_saturation_never_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = _Engine()
    monkeypatch.setattr(time, "monotonic", lambda: engine.now)
    runner = Runner(cast(Engine, engine), lambda deltas: None)
    health = Health(runner, 0.3, floor_seconds=0.0)
    runner.start()
    for _ in range(20):  # nothing to do, however long
        assert health.is_live
        engine.now += 1.0
    engine.has_work = True
    runner.post(lambda: ())
    for count in range(1, 101):  # always full, for longer than the patience
        assert health.is_live
        engine.turn.release()
        _until(lambda count=count: runner.step_count == count)
    engine.now += 3 * 0.3 - 0.01
    assert health.is_live
    engine.now += 0.02
    assert not health.is_live
    engine.turn.release()
    _until(lambda: health.is_live)
    engine.has_work = False
    engine.turn.release()
    runner.stop()
