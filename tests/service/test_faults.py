"""Random faults of clients among requests that are watched: each of these gets its own text."""

import random
import socket
import threading
import time
from collections.abc import Callable

from .client import Client
from .server_process import Server

PROMPTS = [f"prompt number {i}" for i in range(8)]
DEADLINE = 240.0  # so late that it was forgotten


def leave_mid_stream(client: Client, rng: random.Random) -> None:
    with client.open_stream(max_tokens=300, ignore_eos=True) as sock:
        sock.recv(rng.randint(1, 5000))


def leave_at_once(client: Client, rng: random.Random) -> None:
    client.open_stream(max_tokens=rng.randint(1, 300), ignore_eos=True).close()


def reset(client: Client, rng: random.Random) -> None:
    """The connection breaks instead of being closed."""
    sock = client.open_stream(max_tokens=200, ignore_eos=True, n=rng.randint(1, 3))
    sock.recv(rng.randint(1, 500))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


def send_half(client: Client, rng: random.Random) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = head + b'Content-Length: 500\r\n\r\n{"model": "tiny", "prompt": "' + b"a" * 400
    with client.raw(whole[: rng.randint(1, len(whole))]):
        time.sleep(rng.random() * 0.1)


def send_noise(client: Client, rng: random.Random) -> None:
    with client.raw(rng.randbytes(rng.randint(1, 2000))):
        time.sleep(rng.random() * 0.02)


def read_nothing(client: Client, rng: random.Random) -> None:
    with client.open_stream(max_tokens=200, n=2, logprobs=5, ignore_eos=True):
        time.sleep(rng.random() * 0.3)


def pipeline(client: Client, rng: random.Random) -> None:
    """Many requests on one connection, and nobody waits for their answers."""
    with client.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * rng.randint(2, 50)):
        time.sleep(0.01)


def run_out_of_time(client: Client, rng: random.Random) -> None:
    body = {"model": "tiny", "prompt": "late", "max_tokens": 300, "ignore_eos": True}
    reply = client.post("/v1/completions", body, X_Request_Timeout=str(rng.random() * 0.1))
    assert reply.status in (200, 408)


FAULTS: list[Callable[[Client, random.Random], None]] = [
    *(leave_mid_stream, leave_at_once, reset, send_half, send_noise, read_nothing, pipeline),
    run_out_of_time,
]


def check_under_faults(server: Server, count: int) -> None:
    client, rng = server.client, random.Random(1)
    wanted = {p: client.complete(prompt=p, max_tokens=20, logprobs=1).json for p in PROMPTS}
    problems: list[str] = []
    stop = threading.Event()

    def watch(prompt: str, stream: bool) -> None:
        while not stop.is_set():
            start = time.monotonic()
            reply = client.complete(prompt=prompt, max_tokens=20, logprobs=1, stream=stream)
            choices = [e["choices"][0] for e in reply.events] if stream else reply.json["choices"]
            tokens = [t for c in choices for t in c["logprobs"]["tokens"]]
            if tokens != wanted[prompt]["choices"][0]["logprobs"]["tokens"]:
                problems.append(prompt)
            if time.monotonic() - start > DEADLINE:
                problems.append("late")

    watchers = [threading.Thread(target=watch, args=(p, i % 2 == 1)) for i, p in enumerate(PROMPTS)]
    for thread in watchers:
        thread.start()
    faults = [threading.Thread(target=rng.choice(FAULTS), args=(client, rng)) for _ in range(count)]
    for at in range(0, count, 10):
        for thread in faults[at : at + 10]:
            thread.start()
        for thread in faults[at : at + 10]:
            thread.join()
    stop.set()
    for thread in watchers:
        thread.join()
    assert problems == []
    end = time.monotonic() + 300
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "rooflight:open_requests")
    while any(client.metric(name) for name in (*names, "vllm:kv_cache_usage_perc")):
        assert time.monotonic() < end, "something was left behind"
        time.sleep(0.05)
    assert client.get("/health").status == 200
    assert not any(line["event"] == "bug" for line in server.lines())


def test_two_hundred_faults_of_some_harm_no_others(server: Server) -> None:
    check_under_faults(server, 200)
