"""A replica on raw sockets that streams what it was asked for, named and numbered.

`python replica_server.py NAME PORT` prints its port. POST /behave changes how it behaves, GET /log
tells what it got and how each request ended, GET /probes how often it was asked since whether it is
ready. Token i of a prompt P is `NAME:P:i `.
"""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Behaviour:
    tokens: int = 5
    gap_s: float = 0.0
    status: int = 200
    retry_after: int = 7
    is_ready: bool = True
    is_live: bool = True
    waiting: int = 0
    hangs_up: bool = False  # with the request in its hands
    breaks: bool = False  # off after the first token
    compresses: bool = False  # whatever it was asked for
    holds: bool = False  # every answer, after its first token, for as long as this is so


@dataclass
class Entry:
    prompt: str
    authorization: str
    encoding: str
    end: str = "open"


class Replica:
    def __init__(self, name: str) -> None:
        self.name, self.behaviour = name, Behaviour()
        self.log: list[Entry] = []
        self.probes = 0  # of readiness, since the behaviour changed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            lines = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in lines}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            await self.answer(head[0].split(" ")[1], headers, body, reader, writer)
            await writer.drain()
        writer.close()

    async def answer(
        self,
        path: str,
        headers: dict[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        how = self.behaviour
        match path:
            case "/ready":
                self.probes += 1
                answer(writer, 200 if how.is_ready else 503, {})
            case "/health":
                answer(writer, 200 if how.is_live else 503, {})
            case "/metrics":
                text = f'vllm:num_requests_waiting{{model="m"}} {how.waiting}.0\n'
                answer(writer, 200, text)
            case "/behave":
                self.behaviour, self.probes = replace(Behaviour(), **json.loads(body)), 0
                answer(writer, 200, {})
            case "/probes":
                answer(writer, 200, self.probes)
            case "/log":
                answer(writer, 200, [asdict(entry) for entry in self.log])
            case _:
                said = (headers.get(name, "") for name in ("authorization", "accept-encoding"))
                entry = Entry(json.loads(body)["prompt"], *said)
                self.log.append(entry)
                if how.compresses:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n")
                    writer.write(b"Content-Length: 4\r\n\r\n\x1f\x8b\x08\x00")
                elif how.hangs_up:
                    writer.transport.abort()
                elif how.status != 200:
                    entry.end = "refused" if how.status in (429, 503) else "failed"
                    answer(writer, how.status, {"error": self.name}, retry=how.retry_after)
                else:
                    stream = asyncio.create_task(self.stream(entry, how, json.loads(body), writer))
                    gone = asyncio.create_task(reader.read(1))
                    await asyncio.wait((stream, gone), return_when=asyncio.FIRST_COMPLETED)
                    if not stream.done():
                        entry.end = "client gone"
                    stream.cancel()
                    gone.cancel()

    async def stream(
        self, entry: Entry, how: Behaviour, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        texts = [f"{self.name}:{entry.prompt[-12:]}:{at} " for at in range(how.tokens)]
        if not body.get("stream"):
            await self.hold()
            answer(writer, 200, {"choices": [{"text": "".join(texts)}]})
            entry.end = "done"
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for text in texts:
            chunk(writer, b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n")
            await writer.drain()
            if how.breaks:
                writer.transport.abort()
            await self.hold()
            await asyncio.sleep(how.gap_s)
        chunk(writer, b"data: [DONE]\n\n")
        chunk(writer, b"")
        entry.end = "done"

    async def hold(self) -> None:
        while self.behaviour.holds:
            await asyncio.sleep(0.01)


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def answer(writer: asyncio.StreamWriter, status: int, document: object, *, retry: int = 0) -> None:
    body = (document if isinstance(document, str) else json.dumps(document)).encode()
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Length: {len(body)}\r\n"
    head += f"Retry-After: {retry}\r\n" if retry else ""
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)


async def main(name: str, port: int) -> None:
    listening = await asyncio.start_server(Replica(name).serve, "127.0.0.1", port, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
