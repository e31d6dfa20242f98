"""What a coroutine has the engine's thread do between two steps, and waits for."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from rooflight.serve.engine.request import Delta
from rooflight.serve.engine.runner import Runner

T = TypeVar("T")


def no_deltas(_: object) -> Sequence[Delta]:
    return ()


async def call(
    runner: Runner, work: Callable[[], T], deltas: Callable[[T], Sequence[Delta]] = no_deltas
) -> T:
    """What `work` gives; `deltas` says what of it is for the jobs of the engine."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: Exception | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(found)  # pyright: ignore[reportArgumentType]

    def act() -> Sequence[Delta]:
        found, failed = None, None
        try:
            found = work()
            return deltas(found)
        except Exception as error:
            failed = error
            raise  # the device may be in any state: the runner empties it
        finally:
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(settle, found, failed)

    runner.post(act)
    return await future
