"""Lines of the security checklist that no other test covers."""

import re
import time
from pathlib import Path

import pytest

from ..listeners import listeners
from .client import MODEL
from .server_process import Server

SOURCE = Path(__file__).parents[2] / "src" / "rooflight"
_UNSAFE = re.compile(
    r"\b(import (pickle|dill|cloudpickle|marshal|shelve)\b|from (pickle|dill|marshal)\b"
    r"|torch\.load|yaml\.load\((?!.*Safe)|trust_remote_code|allow_pickle=True)|(?<![.\w])(eval|exec)\("
)


# What a process writes for its own child, in a new folder that only it may enter.
_OWN = {
    "compile/aot/request.py": ("compile/aot/cache.py", r"def work_folder.*mkdtemp\("),
    "compile/aot/traced.py": ("api/compiled.py", r"with TemporaryDirectory\(.*write_traced\("),
}


def test_nothing_in_the_tree_unpickles_or_evaluates() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]}"
        for path in SOURCE.rglob("*.py")
        for match in _UNSAFE.finditer(path.read_text())
    ]
    assert sorted(found) == [f"{reader}: import pickle" for reader in _OWN]
    for writer, private in _OWN.values():
        assert re.search(private, (SOURCE / writer).read_text(), re.DOTALL)


def test_there_are_no_controls_among_the_routes(server: Server) -> None:
    paths = server.client.get("/openapi.json").json["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods}
    assert posts == {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}
    for path in (path.format(id=MODEL) for path in set(paths) - posts):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            reply = server.client.send(method, path, b"{}")
            assert reply.status == 405 and reply.headers["Allow"] == "GET,HEAD"


def test_ids_are_made_by_the_server_and_never_twice(server: Server) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    replies = [
        server.client.post("/v1/completions", body, X_Request_Id="mine").json for _ in range(20)
    ]
    ids = {reply["id"] for reply in replies}
    assert len(ids) == 20 and not any("mine" in id for id in ids)


def test_without_keys_a_page_of_another_name_gets_no_answer(server: Server) -> None:
    """DNS rebinding: a browser asks this machine, and still says the name of the page."""
    client = server.client
    for name in ("evil.example", "evil.example:80", "[", "127.0.0.1.evil.example", "0x7f.1", ""):
        for path in ("/v1/models", "/metrics", "/health", "/nowhere"):
            reply = client.send("GET", path, None, Host=name)
            assert reply.status == 421 and reply.code == "wrong_host"
    for name in ("localhost", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert client.send("GET", "/v1/models", None, Host=name).status == 200
    with client.raw(b"GET /health HTTP/1.0\r\n\r\n") as sock:  # a proxy's check has none
        assert sock.recv(100).startswith(b"HTTP/1.0 200")


def test_a_server_listens_where_it_says_and_nowhere_else(server: Server) -> None:
    assert listeners(server.process.pid) == {(server.said["host"], server.said["port"])}


def test_tokenising_does_not_hold_up_the_event_loop(server: Server) -> None:
    """Health, asked for after many long texts, is answered long before the last of them.

    In one round of several: a busy machine delays some answers, a loop that is held up all.
    """
    assert any(_health_overtakes(server) for _ in range(8))


def _health_overtakes(server: Server) -> bool:
    body = b'{"prompt": "' + b"ab " * 2700 + b'"}'  # as long as it may be
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    socks = [server.client.raw(request) for _ in range(100)]
    start = time.monotonic()
    assert server.client.get("/health").status == 200
    health_s = time.monotonic() - start
    for sock in socks:
        with sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    return health_s < (time.monotonic() - start) / 2


@pytest.mark.full
@pytest.mark.parametrize("sent", (b"", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"))
def test_a_client_that_never_finishes_its_request_is_cut_off(server: Server, sent: bytes) -> None:
    with server.client.raw(sent) as sock:
        sock.settimeout(300)
        assert sock.recv(100) == b""


@pytest.mark.full
def test_a_body_that_drips_is_cut_off(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.client.raw(head + b"Content-Length: 10000\r\n\r\n") as sock:
        sock.settimeout(1)
        reply, end = b"", time.monotonic() + 300
        while not reply and time.monotonic() < end:
            sock.sendall(b" ")
            try:
                reply = sock.recv(100)
            except TimeoutError:
                continue
    assert reply.startswith(b"HTTP/1.1 408")


def test_what_a_request_leaves_behind_does_not_add_up(server: Server) -> None:
    """Memory after thousands of requests, wrong ones among them, is what it was after hundreds."""
    client = server.client

    def work(count: int) -> None:
        for i in range(count):
            client.complete(prompt=f"prompt {i}", max_tokens=1)
            client.complete(prompt="x" * 8000, n=-1)
            client.post("/tokenize", {"prompt": "word " * 1000})

    def resident() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])

    work(80)
    before = resident()
    work(80)
    assert resident() - before < 8_000  # kB
