"""A small HTTP client that hides nothing: status, headers, body; and raw sockets."""

import http.client
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any  # JSON

MODEL = "tiny"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Of a stream, without the last word."""
        blocks = self.body.decode().split("\n\n")
        assert blocks[-1] == "" and blocks[-2] == "data: [DONE]", blocks[-2:]
        return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]

    @property
    def code(self) -> str:
        """Of an error, which has the shape that OpenAI's clients read."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error["code"]


@dataclass(frozen=True)
class Client:
    host: str
    port: int
    key: str | None = None
    timeout: float = 300

    def get(self, path: str) -> Reply:
        return self.send("GET", path, None)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.send("POST", path, json.dumps(body).encode(), **headers)

    def send(self, method: str, path: str, body: bytes | None, **headers: str) -> Reply:
        """Header names are written with underscores."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key:
            names["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            names = {"Content-Type": "application/json"} | names
        try:
            connection.request(method, path, body, names)
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()

    def complete(self, **fields: object) -> Reply:
        body = {"model": MODEL, "prompt": "the cat", "max_tokens": 8, "temperature": 0, **fields}
        return self.post("/v1/completions", body)

    def chat(self, content: str = "hello", **fields: object) -> Reply:
        messages = [{"role": "user", "content": content}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def raw(self, data: bytes) -> socket.socket:
        """A connection on which these bytes were sent."""
        sock = socket.create_connection((self.host, self.port), timeout=self.timeout)
        sock.sendall(data)
        return sock

    def open_stream(self, **fields: object) -> socket.socket:
        """A streamed completion of which nothing was read yet."""
        body = {"model": MODEL, "prompt": "the cat", "temperature": 0, "stream": True, **fields}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\n"
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        return self.raw((head + key + kind).encode() + data)

    def metric(self, name: str) -> float:
        """The sum over the labels of a metric."""
        text = self.get("/metrics").body.decode()
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))
