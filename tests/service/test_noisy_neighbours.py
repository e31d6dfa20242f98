"""One key that holds, floods or asks for the most, and another that asks for little beside it.

How late the other is answered is held against the same minute without the noise, or with as much
honest work: never against a clock.
"""

import json
import select
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import pytest

from .client import MODEL, Client
from .server_process import Server, start_server
from .test_lifecycle import WORKER, eventually

KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("loud", "quiet")}
FACTOR = 4  # two cores, which others use as well
ROUNDS = 2
ASKED = 6  # a round


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four rows, two keys, and sockets with small buffers."""
    file = folder.parent / "noisy-keys"
    file.write_text("".join(f"{name} {key}\n" for name, key in KEYS.items()))
    file.chmod(0o600)
    command = (sys.executable, str(WORKER), str(tmp_path_factory.mktemp("switches")))
    with start_server(folder, "--keys", str(file), command=command, name="noisy") as server:
        yield server


def client_of(server: Server, name: str) -> Client:
    return replace(server.client, key=KEYS[name])


def metric(server: Server, name: str) -> float:
    return client_of(server, "quiet").metric(name)


def is_empty(server: Server) -> bool:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "rooflight:open_requests")
    return not any(metric(server, name) for name in names)


Noise = Callable[[Server, ExitStack], None]


@contextmanager
def beside(noise: Noise, server: Server) -> Generator[None]:
    """A noise, and nothing left of it."""
    with ExitStack() as stack:
        noise(server, stack)
        yield
    eventually(lambda: is_empty(server))


def silence(server: Server, stack: ExitStack) -> None:
    """No noise at all."""


def times_beside(noise: Noise, server: Server) -> list[float]:
    """Seconds of each request of the quiet key."""
    quiet, found = client_of(server, "quiet"), list[float]()
    with beside(noise, server):
        for number in range(ASKED):
            start = time.monotonic()
            reply = quiet.complete(prompt=f"quiet {number}", max_tokens=4, ignore_eos=True)
            assert reply.status == 200
            found.append(time.monotonic() - start)
    return found


def check_no_later(server: Server, noise: Noise, than: Noise) -> None:
    """In turns, so that what else the machine does falls on both."""
    found: dict[Noise, list[float]] = {than: [], noise: []}
    for _ in range(ROUNDS):
        for each, times in found.items():
            times += times_beside(each, server)
    assert median(found[noise]) <= FACTOR * median(found[than])


def open_post(server: Server, body: bytes, length: int, stack: ExitStack) -> None:
    """A request of the loud key whose answer is not read."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEYS['loud']}\r\nContent-Length: {length}\r\n\r\n"
    )
    stack.enter_context(closing(client_of(server, "loud").raw(head.encode() + body)))


def open_fields(server: Server, stack: ExitStack, **fields: object) -> None:
    body = json.dumps({"model": MODEL, "ignore_eos": True, **fields}).encode()
    open_post(server, body, len(body), stack)


def half_bodies(server: Server, stack: ExitStack) -> None:
    """More than there are places."""
    for _ in range(400):
        open_post(server, b'{"model": "tiny", ', 100, stack)
    eventually(lambda: metric(server, "rooflight:open_requests") >= 160)


def test_half_sent_bodies_of_one_key_hold_up_no_other(shared: Server) -> None:
    check_no_later(shared, half_bodies, silence)


def unread_streams(server: Server, stack: ExitStack) -> None:
    """Slots that stay open: the texts are made, and nobody reads them."""
    for _ in range(4):
        open_fields(server, stack, prompt="a", n=2, logprobs=20, max_tokens=250, stream=True)
    eventually(lambda: metric(server, "rooflight:open_requests") == 4)
    eventually(lambda: metric(server, "vllm:num_requests_running") == 0)


def test_open_slots_of_one_key_hold_up_no_other(shared: Server) -> None:
    check_no_later(shared, unread_streams, silence)


def long_texts(server: Server, stack: ExitStack) -> None:
    """As much as the rows hold, four times over."""
    for number in range(16):
        open_fields(server, stack, prompt=f"text {number}", max_tokens=80)
    eventually(lambda: metric(server, "vllm:num_requests_running") == 4)


def many_prompts(server: Server, stack: ExitStack) -> None:
    """256 of one token, in 16 requests; half of them may wait."""
    for _ in range(16):
        open_fields(server, stack, prompt=[[5]] * 16, max_tokens=80)
    eventually(lambda: metric(server, "vllm:num_requests_waiting") > 64)


def test_256_prompts_of_one_key_hold_up_no_other(shared: Server) -> None:
    check_no_later(shared, many_prompts, long_texts)


def test_a_flood_of_texts_to_tokenise_holds_up_no_other(shared: Server) -> None:
    """Whoever comes late with little is answered before most of the flood."""
    loud, quiet = client_of(shared, "loud"), client_of(shared, "quiet")
    done: list[float] = []

    def flood() -> None:
        assert loud.post("/tokenize", {"prompt": "naïve café " * 700}).status == 200
        done.append(time.monotonic())

    threads = [threading.Thread(target=flood) for _ in range(100)]
    for thread in threads:
        thread.start()
    assert quiet.post("/tokenize", {"prompt": "a"}).status == 200
    answered = time.monotonic()
    for thread in threads:
        thread.join()
    assert sum(moment < answered for moment in done) < 50


def answered_meanwhile(server: Server, body: bytes) -> int:
    """How often health is answered while a body that was sent is looked through."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEYS['loud']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    probe, count = HTTPConnection(server.client.host, server.client.port, timeout=300), 0
    with closing(probe), server.client.raw(head.encode() + body) as sock:
        while not select.select([sock], [], [], 0)[0]:
            probe.request("GET", "/health")
            assert probe.getresponse().read()
            count += 1
        assert sock.recv(100).startswith(b"HTTP/1.1 400")
    return count


def test_a_megabyte_of_small_parts_holds_up_nobody(shared: Server) -> None:
    """The last of them is wrong, so that nothing else is done."""
    parts = [{"type": "text", "text": ""}] * 1000
    messages: list[object] = [{"role": "user", "content": parts} for _ in range(30)]
    fields = {"model": MODEL, "messages": [*messages, 5]}
    body = json.dumps(fields, separators=(",", ":")).encode()
    answered_meanwhile(shared, body)
    counts = [answered_meanwhile(shared, body) for _ in range(4)]
    assert median(counts) >= 10  # three, if it is done on the event loop


def check(is_so: bool) -> None:
    assert is_so


def largest_chats(server: Server, stack: ExitStack) -> None:
    """Every field at its most."""
    schema = {"enum": ["x" * 100 + str(number) for number in range(150)]}  # 16,000 characters
    fields: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x" * 100}],
        "max_tokens": 250,
        "n": 16,
        "logprobs": True,
        "top_logprobs": 20,
        "temperature": 2,
        "stop": ["x" * 128] * 16,
        "user": "x" * 256,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    pool = stack.enter_context(ThreadPoolExecutor(1))
    asked = pool.submit(client_of(server, "loud").post, "/v1/chat/completions", fields)
    stack.callback(lambda: check(asked.result().status == 200))
    eventually(lambda: metric(server, "vllm:num_requests_running") > 0 or asked.done())


def lags_beside(noise: Noise, server: Server) -> list[float]:
    """How late health is answered while the engine has something to do."""
    found: list[float] = []
    with beside(noise, server):
        while metric(server, "vllm:num_requests_running"):
            start = time.monotonic()
            assert server.client.get("/health").status == 200
            found.append(time.monotonic() - start)
            time.sleep(0.01)
    return found


def test_every_field_of_a_chat_at_its_most_holds_up_nobody(shared: Server) -> None:
    """As soon as beside long texts, and memory is what it was."""
    lags_beside(largest_chats, shared)
    before = shared.resident_bytes
    plain, most = lags_beside(long_texts, shared), lags_beside(largest_chats, shared)
    assert len(most) > 5 and median(most) <= FACTOR * median(plain)
    assert shared.resident_bytes - before < 100e6
