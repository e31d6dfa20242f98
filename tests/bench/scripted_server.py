"""A server that does exactly what its script says, on raw sockets: the oracle of a load generator.

`python scripted_server.py SCRIPTS.json` prints its port. Request number i follows script i, and so
round and round; GET /log tells what came when, and when each token left, in seconds of
`time.perf_counter`, which is one clock for all processes of a machine.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Script:
    """What to do with a request."""

    first_s: float = 0.0  # before the first token
    gap_s: float = 0.0  # before each further one
    status: int = 200
    end: str = "done"  # or cut, error, garbage, hang, silent (no [DONE])
    after: int = 1 << 30  # tokens, before such an end
    usage: bool = True
    tokens_a_chunk: int = 1
    is_mute: bool = False  # tokens that have no text
    ends_mute: bool = False  # the last token has none, and comes with the reason of the end


@dataclass
class Entry:
    came_s: float
    body: dict[str, Any]
    headers: dict[str, str]
    left_s: list[float] = field(default_factory=list[float])


class Server:
    def __init__(self, scripts: list[Script], *, refuses: list[str]) -> None:
        self.scripts, self.refuses = scripts, refuses
        self.log: list[Entry] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                lines = (line.partition(":") for line in head[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in lines}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                path = head[0].split(" ")[1]
                if path == "/v1/completions":
                    await self.complete(json.loads(body), headers, writer)
                elif path == "/v1/models":
                    answer(writer, 200, {"data": [{"id": "scripted"}]})
                else:
                    answer(writer, 200, [asdict(entry) for entry in self.log])
                await writer.drain()
        writer.close()

    async def complete(
        self, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        entry = Entry(time.perf_counter(), body, headers)
        if "ids" in self.refuses and isinstance(body["prompt"], list):
            return answer(writer, 400, {"error": "no ids"})
        if "ignore_eos" in self.refuses and "ignore_eos" in body:
            return answer(writer, 422, {"error": "unknown field"})
        self.log.append(entry)
        if len(self.log) == 1:  # the client asks how to ask: always answered
            return await stream(Script(), entry, writer)
        script = self.scripts[(len(self.log) - 2) % len(self.scripts)]
        if script.status != 200:
            return answer(writer, script.status, {"error": "scripted"})
        await stream(script, entry, writer)


async def stream(script: Script, entry: Entry, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    count = entry.body["max_tokens"]
    due_s = entry.came_s + script.first_s
    for token in range(0, min(count, script.after), script.tokens_a_chunk):
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        if not (script.is_mute or (script.ends_mute and token == count - 1)):
            event(writer, {"choices": [{"text": f"t{token} ", "finish_reason": None}]})
        entry.left_s.append(time.perf_counter())
        await writer.drain()
        due_s += script.gap_s
    match script.end:
        case "cut":
            writer.transport.abort()
            raise ConnectionError
        case "error":
            event(writer, {"error": {"message": "engine failed"}})
        case "garbage":
            chunk(writer, b"data: {not json\n\n")
        case "hang":
            await asyncio.sleep(3600)
        case _:
            pass
    event(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
    if script.usage:
        prompt: list[int] | str = entry.body["prompt"]
        tokens = 0 if isinstance(prompt, str) else len(prompt)
        event(writer, {"choices": [], "usage": _usage(tokens, min(count, script.after))})
    if script.end != "silent":
        chunk(writer, b"data: [DONE]\n\n")
    chunk(writer, b"")


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def event(writer: asyncio.StreamWriter, document: object) -> None:
    chunk(writer, b"data: " + json.dumps(document).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def answer(writer: asyncio.StreamWriter, status: int, document: object) -> None:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)


async def main(words: dict[str, Any]) -> None:
    scripts = [Script(**script) for script in words["scripts"]]
    server = Server(scripts, refuses=words["refuses"])
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
