"""Threads that keys share: a flood of one waits for itself."""

import asyncio
import threading
from functools import partial

import pytest

from rooflight.serve.chat.workers import WorkerThreads


def test_whoever_comes_late_is_not_behind_the_flood_of_another_key() -> None:
    order: list[str] = []

    async def run() -> None:
        workers, gate = WorkerThreads("test", threads=1, a_key=1), threading.Event()
        first = asyncio.create_task(workers.run("flood", gate.wait))
        work = partial(order.append, "flood")
        flood = [asyncio.create_task(workers.run("flood", work)) for _ in range(20)]
        await asyncio.sleep(0)
        late = asyncio.create_task(workers.run("late", partial(order.append, "late")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, late, *flood)
        workers.stop()

    asyncio.run(run())
    assert order.index("late") <= 1 and order.count("flood") == 20


def test_a_client_that_goes_keeps_its_turn_until_its_work_is_done() -> None:
    order: list[str] = []

    async def run() -> None:
        workers, gate = WorkerThreads("test", threads=2, a_key=1), threading.Event()

        def work() -> None:
            gate.wait()
            order.append("first")
            raise ValueError("nobody is left to be told")

        gone = asyncio.create_task(workers.run("key", work))
        await asyncio.sleep(0.01)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        second = asyncio.create_task(workers.run("key", partial(order.append, "second")))
        await asyncio.sleep(0.05)
        gate.set()
        await second
        workers.stop()

    asyncio.run(run())
    assert order == ["first", "second"]


def test_what_went_wrong_is_told_and_the_turn_is_over() -> None:
    async def run() -> None:
        workers = WorkerThreads("test", threads=1, a_key=1)
        with pytest.raises(ZeroDivisionError):
            await workers.run("key", lambda: 1 // 0)
        assert await workers.run("key", lambda: 7) == 7
        workers.stop()

    asyncio.run(run())
