"""`Exchange`: from the thread of the engine to the requests that wait on the event loop.

One call crosses over for each step, however many requests it feeds. What a request did not take
yet is at most the tokens it asked for, so a slow reader holds a bounded list of integers.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from rooflight.serve.engine.request import Delta


class Inbox:
    """The deltas of one request's jobs, in order of arrival."""

    __slots__ = ("_deltas", "_news")

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._news = asyncio.Event()

    def put(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._news.set()

    async def take(self) -> list[Delta]:
        """All that has come, at least one."""
        await self._news.wait()
        self._news.clear()
        deltas, self._deltas = self._deltas, []
        return deltas


class Exchange:
    """Which request each job belongs to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inboxes: dict[int, Inbox] = {}

    def attach(self) -> None:
        """To the running event loop."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Called by the engine's thread; a loop that is gone has nobody left to tell."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._sort, deltas)

    def open(self, job: int, inbox: Inbox) -> None:
        self._inboxes[job] = inbox

    def close(self, job: int) -> None:
        self._inboxes.pop(job, None)

    def _sort(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            inbox = self._inboxes.get(delta.id)
            if inbox is not None:
                inbox.put(delta)
