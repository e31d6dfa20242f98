"""One streamed request and the times at which its tokens came.

In: a session, a URL and a body. Out: a `Reply`: first and last token, the gaps between, or the
kind of error that ended it. Seconds are those of `time.perf_counter`.
"""

import asyncio
import io
import json
import time
from collections.abc import Iterator
from typing import Any, cast  # Any: JSON of a foreign server

import aiohttp

from rooflight.measure.load.answer import LONGEST_WORDS, Reply

_LONGEST_EVENT = 1 << 20  # bytes; a server that never ends a line fills no memory


async def ask(session: aiohttp.ClientSession, url: str, body: bytes, *, timeout_s: float) -> Reply:
    """Posts a body that asks for a stream and reads it to the end; errors are in the answer."""
    answer = Reply(time.perf_counter())
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(url, data=io.BytesIO(body), headers=headers) as response,
        ):
            if response.status != 200:
                text = await response.content.read(LONGEST_WORDS)
                answer.fail(f"http {response.status}", text.decode("utf-8", "replace"))
            else:
                await _read(response.content, answer)
    except TimeoutError:
        answer.fail("timeout", f"no end within {timeout_s:g} s")
    except aiohttp.ClientConnectorError as error:
        answer.fail("connect", error)
    except (aiohttp.ClientError, OSError) as error:
        answer.fail("broken stream", error)
    except _WrongEvent as error:
        answer.fail(error.kind, error)
    answer.output_tokens = answer.output_tokens or answer.chunks
    return answer


class _WrongEvent(Exception):
    """The stream says that it failed, or says nothing that can be read."""

    def __init__(self, kind: str, words: object) -> None:
        super().__init__(words)
        self.kind = kind


async def _read(content: aiohttp.StreamReader, answer: Reply) -> None:
    left = b""
    async for piece in content.iter_any():
        now = time.perf_counter()
        *lines, left = (left + piece).split(b"\n")
        if len(left) > _LONGEST_EVENT:
            raise _WrongEvent("bad event", f"a line of more than {_LONGEST_EVENT:,} bytes")
        for data in _data(lines):
            _take(data, answer, now)
    if not answer.is_done:
        raise _WrongEvent("broken stream", "it ended without [DONE]")
    if not answer.chunks and answer.output_tokens:
        answer.chunk(answer.finish_s)  # tokens without a text, such as special ones
    if not answer.chunks:
        raise _WrongEvent("no output", "the stream held no token")


def _data(lines: list[bytes]) -> Iterator[bytes]:
    return (line[5:].strip() for line in lines if line.startswith(b"data:"))


def _take(data: bytes, answer: Reply, now: float) -> None:
    if data == b"[DONE]":
        answer.is_done = True
        return
    event = _parse(data)
    if "error" in event:
        raise _WrongEvent("error event", json.dumps(event["error"]))
    usage = event.get("usage")
    if isinstance(usage, dict):
        counts = cast(dict[str, Any], usage)
        answer.input_tokens = _count(counts.get("prompt_tokens"))
        answer.output_tokens = _count(counts.get("completion_tokens"))
    choice = _choice(event)
    if choice is None:
        return
    if choice.get("text") or choice.get("finish_reason") is None:  # a token may have no text yet
        answer.chunk(now)
    if choice.get("finish_reason") is not None:
        answer.finish_s = now


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise _WrongEvent("bad event", data[:LONGEST_WORDS])
    return cast(dict[str, Any], event)


def _choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """The first, of an event that has any."""
    choices = event.get("choices")
    first = cast(list[Any], choices)[0] if isinstance(choices, list) and choices else None
    return cast(dict[str, Any], first) if isinstance(first, dict) else None
