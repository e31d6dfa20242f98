"""The thread that owns the device: jobs from other threads, cancellations, failures, its end.

Run as a process of its own: `python engine_runner_worker.py`. Prints one JSON object by situation.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import engine_base_worker as cases  # before jax: it sets up the devices

# isort: split
from rooflight.batching.request import Admission
from rooflight.serve.engine.device import PendingResult
from rooflight.serve.engine.request import Delta, EngineRequest
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.runner import Runner

LONG, PATIENCE = 50, 600.0


class Inbox:
    """What a runner delivers, with the step in which it came."""

    def __init__(self) -> None:
        self.out, self.steps = cases.Collected(), dict[int, list[int]]()
        self.changed = threading.Condition()
        self.runner: Runner | None = None

    def deliver(self, deltas: Sequence[Delta]) -> None:
        assert self.runner is not None
        with self.changed:
            self.out.take(deltas)
            for delta in deltas:
                if delta.tokens:
                    self.steps.setdefault(delta.id, []).append(self.runner.step_count)
            self.changed.notify_all()

    def wait_for(self, id: int) -> None:
        """Until a job is done."""
        with self.changed:
            is_done = self.changed.wait_for(lambda: id in self.out.finish, PATIENCE)
            assert is_done, f"job {id} hangs"


def started(engine: Engine, jobs: Sequence[EngineRequest] = ()) -> tuple[Runner, Inbox]:
    """With jobs handed over before its first step, whoever else has the processor."""
    inbox = Inbox()
    inbox.runner = runner = Runner(engine, inbox.deliver)
    for each in jobs:
        assert runner.submit(each) is Admission.ADMITTED
    runner.start()
    return runner, inbox


def job(id: int, length: int = LONG) -> EngineRequest:
    return EngineRequest(id, cases.some_tokens(id, 5), length)


def plain(engine: Engine) -> dict[str, Any]:
    """Jobs from four threads at once have the texts they have alone, and then the runner ends."""
    wanted = [cases.run(engine, [job(i, 20)]).tokens[i] for i in range(12)]
    runner, inbox = started(engine)

    def submit(part: int) -> None:
        for i in range(part, 12, 4):
            runner.submit(job(i, 20))

    threads = [threading.Thread(target=submit, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drained = runner.drain(PATIENCE)
    late = runner.submit(job(99))
    runner.stop()
    return {
        "drained": drained,
        "same": [inbox.out.tokens[i] for i in range(12)] == wanted,
        "late": late,
        "warm": runner.is_warm,
        "steps": runner.step_count,
        "running": runner.stats().num_running,
    }


def cancelled(engine: Engine) -> dict[str, Any]:
    """How many steps gave tokens after a cancellation, which the thread of the steps makes."""
    inbox, told = Inbox(), list[int]()

    def deliver(deltas: Sequence[Delta]) -> None:
        inbox.deliver(deltas)
        if not told and len(inbox.out.tokens.get(1, ())) >= 4:
            told.append(runner.step_count)
            runner.cancel(1)
            runner.cancel(77)  # nobody

    inbox.runner = runner = Runner(engine, deliver)
    for id in range(3):
        runner.submit(job(id))
    runner.start()
    for id in range(3):
        inbox.wait_for(id)
    runner.stop()
    after = [s for s in inbox.steps[1] if s > told[0]]
    return {"finish": inbox.out.finish, "steps_after": len(after)}


def failing(engine: Engine) -> dict[str, Any]:
    """One step raises: those in it fail, those that wait get their texts."""
    wanted = {i: cases.run(engine, [job(i, 20)]).tokens[i] for i in range(8)}
    generate, calls = engine.device.generate, 0

    def fragile(rows: Sequence[int], starts: Sequence[int]) -> PendingResult:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("the device is gone")
        return generate(rows, starts)

    engine.device.generate = fragile
    runner, inbox = started(engine, [job(id, 20) for id in range(8)])
    for id in range(8):
        inbox.wait_for(id)
    engine.device.generate = generate
    runner.stop()
    done = [i for i, finish in inbox.out.finish.items() if finish == "length"]
    return {
        "failed": len(inbox.out.finish) - len(done),
        "done": len(done),
        "same": all(inbox.out.tokens[i] == wanted[i] for i in done),
        "dead": runner.is_dead,
        "error": runner.last_error,
        "blocks": engine.scheduler.room.pool.num_free,
    }


def dying(engine: Engine) -> dict[str, Any]:
    """The device cannot be emptied either: every job it took ends, and no more are taken."""

    def broken(rows: Sequence[int] = (), starts: Sequence[int] = ()) -> Any:
        raise RuntimeError("no device")

    generate, reset = engine.device.generate, engine.device.reset
    engine.device.generate = engine.device.reset = broken
    runner, inbox = started(engine, [job(id, 20) for id in range(6)])
    for id in range(6):
        inbox.wait_for(id)
    late = runner.submit(job(7))
    runner.stop()
    engine.device.generate, engine.device.reset = generate, reset
    return {"finish": sorted(inbox.out.finish.values()), "dead": runner.is_dead, "late": late}


def full() -> dict[str, Any]:
    """More jobs than rows and queue hold, handed over while the engine still compiles."""
    runner, inbox = started(cases.cold_engine(replace(cases.ROOMY, max_rows=1, max_waiting=3)))
    answers = [runner.submit(job(id, 5)) for id in range(6)]
    long = runner.submit(EngineRequest(8, cases.some_tokens(8, 60), 10))
    for id in range(3):
        inbox.wait_for(id)
    runner.stop()
    stopped = runner.submit(job(9, 5))
    return {"answers": answers, "long": long, "finish": inbox.out.finish, "stopped": stopped}


def few_bits() -> dict[str, Any]:
    """Weights and cache in eight bits, in a pool in which rows are in the way."""
    engine = cases.cold_engine(cases.TIGHT, dtype="int8")
    alone = [cases.run(engine, [replace(job(i, 20), salt=b"%d" % i)]) for i in range(5)]
    together = cases.run(engine, [job(i, 20) for i in range(5)])
    same = [alone[i].tokens[i] == together.tokens[i] for i in range(5)]
    return {"same": all(same), "preemptions": engine.stats.preemptions}


def main() -> dict[str, Any]:
    engine = cases.tiny_engine(cases.ROOMY)
    found: dict[str, Any] = {
        situation.__name__: situation(engine) for situation in (plain, cancelled, failing)
    }
    return found | {"dying": dying(engine), "full": full(), "few_bits": few_bits()}


if __name__ == "__main__":
    print(json.dumps(main()))
