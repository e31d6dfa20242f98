"""Liveness means progress, readiness means warm.

A step that takes longer than three predicted steps (and than a floor, for predictions are of
milliseconds and machines pause) is stuck. A full queue is not: its steps go on.
"""

import time
from dataclasses import dataclass

from rooflight.engine import Runner

_STEPS = 3


@dataclass(frozen=True, slots=True)
class Health:
    """Watches a runner; asks it nothing that could wait for the device."""

    runner: Runner
    step_seconds: float | None  # of a full step, predicted
    floor_seconds: float

    @property
    def patience(self) -> float:
        return max(self.floor_seconds, _STEPS * (self.step_seconds or 0.0))

    @property
    def seconds_since_step(self) -> float:
        return time.monotonic() - self.runner.last_step_time

    @property
    def stalled_seconds(self) -> float:
        """Since the last step, or since there was work again; 0 with none."""
        return self.runner.stalled_seconds

    @property
    def is_live(self) -> bool:
        return not self.runner.is_dead and self.stalled_seconds <= self.patience

    @property
    def is_ready(self) -> bool:
        return self.runner.is_warm and self.is_live
