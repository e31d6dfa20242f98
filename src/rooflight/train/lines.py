"""Messages between supervisors: one JSON object a line, over TCP."""

import asyncio
import json
from typing import cast

Message = dict[str, object]


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """A peer that is gone is found out by whoever reads from it."""
    if not writer.is_closing():
        writer.write((json.dumps(message) + "\n").encode())


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the peer is gone or does not speak this."""
    try:
        line = await reader.readline()
        found = json.loads(line)
    except (ValueError, ConnectionError):  # also a line longer than asyncio takes
        return None
    return cast(Message, found) if isinstance(found, dict) else None
