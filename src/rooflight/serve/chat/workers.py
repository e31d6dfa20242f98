"""`WorkerThreads`: threads for what would hold up the event loop, a turn at a time for each key.

Threads are few and take what comes first. So a key hands over one thing at a time: behind whatever
a key floods with, another waits for a piece of work, not for the flood.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class WorkerThreads:
    """Threads, of which a key has so many at once."""

    def __init__(self, name: str, *, threads: int, a_key: int) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        make = partial(asyncio.Semaphore, a_key)
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(make)

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """What `work` returns; a client that goes has its turn until its work is done."""
        turn = self._turns[key]
        await turn.acquire()

        def done(future: asyncio.Future[T]) -> None:
            turn.release()
            if not future.cancelled():
                future.exception()  # if nobody is left to be told

        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(done)
        return await asyncio.shield(future)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
