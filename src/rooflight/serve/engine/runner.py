"""`Runner`: the thread that owns the device. Jobs and cancellations in, deltas out.

Other threads hand jobs over through an inbox, and never wait for the device. Between two steps the
thread empties the inbox; with no work it sleeps until there is some.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rooflight.batching.request import Admission
from rooflight.errors import RooflightError
from rooflight.serve.engine.request import Delta, EngineRequest, Finish
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.stats import EngineStats

Deliver = Callable[[Sequence[Delta]], None]
Add = Callable[[EngineRequest], Admission]  # of the engine: how a job goes in
Action = Callable[[], Sequence[Delta]]


class Runner:
    """Runs an engine until it is stopped; it calls `deliver`, which must not wait."""

    def __init__(self, engine: Engine, deliver: Deliver) -> None:
        self._engine = engine
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._changed = threading.Condition()
        # All below belongs to the lock.
        self._jobs: deque[tuple[EngineRequest, Add]] = deque()
        self._actions: deque[Action] = deque()
        self._job_tokens = 0
        self._cancelled: deque[int] = deque()
        self._is_stopping = False
        self._is_draining = False
        self._stats = engine.stats
        self._waiting_tokens = 0
        # Written by the thread only.
        self.is_warm = False
        self.is_dead = False
        self.last_step_time = time.monotonic()
        self.step_count = 0
        self.last_error = ""
        self._busy_since: float | None = None  # without a step since; None while it sleeps

    # From any thread

    def start(self) -> None:
        """Warms the engine up in the thread; `is_warm` says when jobs get answers."""
        self._thread.start()

    def submit(self, job: EngineRequest, add: Add | None = None) -> Admission:
        """Queues a job, or says why not; raises if it could never run."""
        found = self._engine.check(job)
        if found is not Admission.ADMITTED:
            return found
        with self._changed:
            if self._is_closed or self._is_full(job):
                return Admission.QUEUE_FULL
            self._jobs.append((job, add or self._engine.add))
            self._job_tokens += len(job.prompt)
            self._changed.notify_all()
        return Admission.ADMITTED

    def post(self, action: Action) -> None:
        """Has the thread do something between two steps; one that raises ends as a step does."""
        with self._changed:
            self._actions.append(action)
            self._changed.notify_all()

    def cancel(self, id: int) -> None:
        """Ends a job before the next step; one that is not here is no error."""
        with self._changed:
            self._cancelled.append(id)
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Takes no more jobs, and waits for those that are here; false if they took too long."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(self._is_idle, timeout)

    def stop(self, seconds: float | None = None) -> bool:
        """Ends the thread after the step it is in; jobs that are left get `CANCELLED`.

        False if that step takes longer: a device that hangs does not end.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def stats(self) -> EngineStats:
        """As of the last step."""
        with self._changed:
            return self._stats

    @property
    def waiting_tokens(self) -> int:
        """Of prompts that nobody has begun."""
        with self._changed:
            return self._waiting_tokens + self._job_tokens

    @property
    def stalled_seconds(self) -> float:
        """Since the last step of a thread that has work; 0 if it sleeps, or still compiles."""
        since = self._busy_since
        return 0.0 if since is None or not self.is_warm else time.monotonic() - since

    @property
    def _is_closed(self) -> bool:
        return self._is_draining or self._is_stopping or self.is_dead

    def _is_full(self, job: EngineRequest) -> bool:
        config = self._engine.config
        if self._stats.num_waiting + len(self._jobs) >= config.max_waiting:
            return True
        limit = config.max_waiting_tokens
        waiting = self._waiting_tokens + self._job_tokens
        return limit is not None and waiting + len(job.prompt) > limit

    def _is_idle(self) -> bool:
        return self.is_dead or not (self._jobs or self._engine.ids or self._engine.has_work)

    # In the thread

    def _run(self) -> None:
        try:
            self._engine.warm()
            self._publish(())  # what was compiled until now was compiled in time
            self.is_warm = True
            while self._wait():
                self._step()
        except Exception as error:  # nothing can be computed any more; the process lives on
            self._die(error)
        else:
            self._end_all(Finish.CANCELLED, "the engine was stopped")

    def _wait(self) -> bool:
        """Takes what came in; false when it is time to stop."""
        with self._changed:
            if not self._has_news():
                self._busy_since = None
                self._changed.wait_for(self._has_news)
            self._busy_since = self._busy_since or time.monotonic()
            jobs, cancelled = list(self._jobs), list(self._cancelled)
            actions = list(self._actions)
            for inbox in (self._jobs, self._cancelled, self._actions):
                inbox.clear()
            self._job_tokens = 0
            if self._is_stopping:
                self._jobs.extend(jobs)
                return False
        deltas: list[Delta] = []
        for job, add in jobs:
            found = self._add(job, add)
            if found:
                deltas.append(Delta(job.id, finish=Finish.FAILED, error=found))
        for action in actions:
            deltas += self._guarded(action)
        deltas += [d for id in cancelled if (d := self._engine.cancel(id)) is not None]
        self._publish(deltas)
        return True

    def _add(self, job: EngineRequest, add: Add) -> str:
        """Why a job cannot be here, such as an id that is; nothing if it can."""
        try:
            found = add(job)
        except RooflightError as error:
            return str(error)
        return "" if found is Admission.ADMITTED else found

    def _has_news(self) -> bool:
        inboxes = self._jobs or self._cancelled or self._actions
        return bool(self._is_stopping or inboxes or self._engine.has_work)

    def _step(self) -> None:
        if not self._engine.has_work:  # all that is here waits for something else
            return
        deltas = self._guarded(self._engine.step)
        self.last_step_time = self._busy_since = time.monotonic()
        self.step_count += 1
        self._publish(deltas)

    def _guarded(self, action: Action) -> Sequence[Delta]:
        """After an error those in the step fail, those that wait do not."""
        try:
            return action()
        except Exception as error:
            self.last_error = f"{type(error).__name__}: {error}"
            return self._engine.recover(self.last_error)

    def _publish(self, deltas: Sequence[Delta]) -> None:
        with self._changed:
            self._stats = self._engine.stats
            self._waiting_tokens = self._engine.scheduler.waiting_tokens
            self._changed.notify_all()
        if deltas:
            self._deliver(deltas)

    def _die(self, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        with self._changed:
            self.is_dead = True
        self._end_all(Finish.FAILED, self.last_error)

    def _end_all(self, finish: Finish, error: str) -> None:
        """Every job that is left gets its last delta."""
        with self._changed:
            ids = [job.id for job, _ in self._jobs]
            self._jobs.clear()
        ids += self._engine.ids
        self._publish([Delta(id, finish=finish, error=error) for id in ids])
