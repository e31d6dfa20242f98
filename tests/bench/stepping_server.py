"""A server whose engine steps by the clock: so many rows at once, so many tokens of prompts a step.

`python stepping_server.py PORT ROWS STEP_TOKENS SECONDS_OF_A_STEP [KEY]` is the oracle of
`rooflight tune`. A prompt that is read gets its first token at the end of the step; each row one
more per step. With more than 64 rows it does not start, as an engine that is out of memory. With
32 it is always full. A prompt that came before is refused: a prefix cache would have it.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field

from scripted_server import answer, chunk, event


@dataclass
class Job:
    prompt: int  # tokens that are not read yet
    left: int
    tokens: asyncio.Queue[bool] = field(default_factory=asyncio.Queue[bool])


class Engine:
    def __init__(self, rows: int, step_tokens: int, step_s: float, key: str) -> None:
        self.key = key
        self.rows, self.step_tokens, self.step_s = rows, step_tokens, step_s
        self.jobs: list[Job] = []
        self.came = set[tuple[int, ...]]()

    async def run(self) -> None:
        while True:
            admitted = self.jobs[: self.rows]
            if not admitted:
                await asyncio.sleep(0.001)
                continue
            await asyncio.sleep(self.step_s)
            budget, done = self.step_tokens, list[Job]()
            for job in admitted:
                if job.prompt:
                    read = min(job.prompt, budget)
                    job.prompt, budget = job.prompt - read, budget - read
                if job.prompt == 0:
                    done.append(job)
            for job in done:
                job.left -= 1
                job.tokens.put_nowait(job.left > 0)
            self.jobs = [job for job in self.jobs if job.left]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                lines = (line.partition(":") for line in head[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in lines}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                path = head[0].split(" ")[1]
                if self.key and path == "/ready":  # as vLLM, which has no such path
                    answer(writer, 404, {"error": "no such path"})
                elif self.key and headers.get("authorization") != f"Bearer {self.key}":
                    answer(writer, 401, {"error": "no key"})
                elif path != "/v1/completions":
                    answer(writer, 200, {"data": [{"id": "stepping"}]})
                else:
                    await self.complete(json.loads(body), writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def complete(
        self, body: dict[str, list[int] | int], writer: asyncio.StreamWriter
    ) -> None:
        prompt, count = body["prompt"], body["max_tokens"]
        assert isinstance(prompt, list) and isinstance(count, int)
        if tuple(prompt) in self.came:
            return answer(writer, 409, {"error": "this prompt came before"})
        if self.rows == 32 and count > 2:  # not the two tokens of who asks how to ask
            return answer(writer, 429, {"error": "full"})
        self.came.add(tuple(prompt))
        job = Job(len(prompt), count)
        self.jobs.append(job)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            more = await job.tokens.get()
            event(writer, {"choices": [{"text": "t ", "finish_reason": None}]})
            await writer.drain()
            if not more:
                break
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        event(writer, {"choices": [], "usage": usage})
        chunk(writer, b"data: [DONE]\n\n")
        chunk(writer, b"")


async def main(port: int, rows: int, step_tokens: int, step_s: float, key: str) -> None:
    if rows > 64:
        raise SystemExit("out of memory: no room for so many rows")
    engine = Engine(rows, step_tokens, step_s, key)
    listening = await asyncio.start_server(engine.serve, "127.0.0.1", port, backlog=1024)
    async with listening:
        await engine.run()


if __name__ == "__main__":
    at, most, tokens = map(int, sys.argv[1:4])
    asyncio.run(main(at, most, tokens, float(sys.argv[4]), "".join(sys.argv[5:])))
