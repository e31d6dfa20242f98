"""Beginnings and ends: of clients, of readers, of steps, of the engine, of the process."""

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rooflight.cli.main import main

from .client import MODEL
from .server_process import Server, launch, start_server, wait_until_ready

STEPS = 8  # before a device hangs
SMALL = ("--rows", "1", "--block-tokens", "512", "--blocks", "4")  # two shapes: warm at once
PATIENCE_S = 3  # with a step of the fragile server
WORKER = Path(__file__).with_name("serve_worker.py")


def eventually(is_so: Callable[[], bool], seconds: float = 300) -> None:
    """Waits for what must come true; how long it may take is of no account."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def read_events(sock: socket.socket, count: int) -> bytes:
    found = b""
    while found.count(b"data: ") < count:
        part = sock.recv(65536)
        assert part, found
        found += part
    return found


def read_to_end(sock: socket.socket) -> bytes:
    found = b""
    while b"data: [DONE]" not in found:
        part = sock.recv(65536)
        assert part, found
        found += part
    return found


def is_idle(server: Server) -> bool:
    client = server.client
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(client.metric(f"vllm:{name}") == 0 for name in names)


def check_stopped(server: Server, made: float) -> None:
    """The device hangs after a few steps: whoever has gone is gone before the next one."""
    client, hang = server.client, switch(server, "hang")
    eventually(lambda: client.metric("rooflight:open_requests") == 0)
    hang.unlink()
    eventually(lambda: is_idle(server))
    assert client.metric("vllm:generation_tokens_total") - made < STEPS + 4  # two are under way


def test_a_client_that_goes_stops_its_request_within_a_step(fragile: Server) -> None:
    client = fragile.client
    eventually(lambda: is_idle(fragile))
    made = client.metric("vllm:generation_tokens_total")
    switch(fragile, "hang").write_text(str(STEPS))
    with client.open_stream(max_tokens=400, ignore_eos=True) as sock:
        read_events(sock, 3)
    check_stopped(fragile, made)


def test_a_client_that_goes_before_its_answer_stops_it_as_well(fragile: Server) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 500, "ignore_eos": True})
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client = fragile.client
    made = client.metric("vllm:generation_tokens_total")
    switch(fragile, "hang").write_text(str(STEPS))
    with client.raw(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()):
        eventually(lambda: client.metric("vllm:num_requests_running") > 0)
    check_stopped(fragile, made)


def test_a_deadline_ends_a_request_with_words(server: Server) -> None:
    client = server.client
    body = {"model": MODEL, "prompt": "a", "max_tokens": 500, "ignore_eos": True}
    reply = client.post("/v1/completions", body, X_Request_Timeout="0.05")
    assert reply.status == 408 and reply.code == "deadline"
    reply = client.post("/v1/completions", {**body, "stream": True}, X_Request_Timeout="0.2")
    if reply.status == 200:  # it had begun
        assert reply.events[-1]["error"]["code"] == "deadline" and len(reply.events) > 1
    else:
        assert reply.status == 408
    eventually(lambda: is_idle(server))


@pytest.fixture(scope="module")
def fragile(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose device hangs and fails when told to, and whose log has no room."""
    switches = tmp_path_factory.mktemp("switches")
    words = (
        *SMALL,
        "--step-timeout",
        f"{PATIENCE_S}s",
        "--write-timeout",
        "1s",
        "--max-waiting",
        "2",
    )
    command = (sys.executable, str(WORKER), str(switches))
    server = launch(folder, *words, "--log", "/dev/full", command=command)
    try:
        wait_until_ready(server)
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def switch(server: Server, name: str) -> Path:
    arguments = server.process.args
    assert isinstance(arguments, list)
    return Path(str(arguments[2])) / name


def test_a_full_disk_for_logs_stops_nothing(fragile: Server) -> None:
    assert fragile.client.complete().status == 200
    eventually(lambda: fragile.client.metric("rooflight:log_lines_dropped") > 0)


def test_a_step_that_hangs_turns_health_red_and_the_next_turns_it_green(fragile: Server) -> None:
    client, hang = fragile.client, switch(fragile, "hang")
    hang.touch()
    try:
        start = time.monotonic()
        with client.open_stream(max_tokens=4) as sock:
            eventually(lambda: client.get("/health").status == 503)
            assert time.monotonic() - start >= PATIENCE_S
            assert client.get("/ready").status == 503
            reply = client.complete()
            assert reply.status == 503 and "Retry-After" in reply.headers
            hang.unlink()
            read_to_end(sock)
    finally:
        hang.unlink(missing_ok=True)
    eventually(lambda: client.get("/health").status == 200 and client.complete().status == 200)


def test_a_hang_is_seen_even_if_the_client_has_gone(fragile: Server) -> None:
    client, hang = fragile.client, switch(fragile, "hang")
    hang.touch()
    try:
        with client.open_stream(max_tokens=4):
            eventually(lambda: not is_idle(fragile))
        eventually(lambda: client.get("/health").status == 503)
    finally:
        hang.unlink()
    eventually(lambda: client.get("/health").status == 200)


def test_a_step_that_fails_fails_its_requests_and_no_others(fragile: Server) -> None:
    switch(fragile, "fail").touch()
    reply = fragile.client.complete()
    assert reply.status == 500 and reply.code == "engine_failed" and b"secret" not in reply.body
    assert fragile.client.complete().status == 200


def test_too_many_requests_are_shed_and_the_others_answered(fragile: Server) -> None:
    client, socks = fragile.client, list[socket.socket]()
    for _ in range(9):  # three times what runs and waits
        socks.append(client.open_stream(max_tokens=400, ignore_eos=True))
        time.sleep(0.005)
    heads = [sock.recv(100).split(b"\r\n")[0] for sock in socks]
    statuses = [int(head.split()[1]) for head in heads]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 3
    assert client.complete(max_tokens=1).status in (200, 429)
    for sock in socks:
        sock.close()
    eventually(lambda: is_idle(fragile))
    assert client.metric("rooflight:admission_rejected_total") >= statuses.count(429)


def test_a_reader_that_does_not_read_is_dropped(fragile: Server) -> None:
    """So much text that no buffer between the two holds it."""
    client = fragile.client
    fields = {"n": 2, "logprobs": 20, "max_tokens": 500, "ignore_eos": True}
    body = json.dumps({"model": MODEL, "prompt": "a", "stream": True, **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with sock:
        sock.connect((client.host, client.port))
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: client.metric("vllm:num_requests_running") > 0)
        eventually(lambda: client.metric("rooflight:open_requests") == 0)
    eventually(lambda: is_idle(fragile))
    assert 'finished_reason="abort"' in client.get("/metrics").body.decode()


def test_a_reader_of_a_whole_answer_that_does_not_read_is_dropped(fragile: Server) -> None:
    client = fragile.client
    fields = {"n": 2, "logprobs": 20, "max_tokens": 500, "ignore_eos": True}
    body = json.dumps({"model": MODEL, "prompt": "a", **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with sock:
        sock.connect((client.host, client.port))
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: client.metric("vllm:num_requests_running") > 0)
        eventually(lambda: client.metric("rooflight:open_requests") == 0)


def test_sigterm_ends_a_server_whose_device_hangs(folder: Path, tmp_path: Path) -> None:
    command = (sys.executable, str(WORKER), str(tmp_path))
    server = launch(folder, *SMALL, "--drain", "1s", command=command)
    try:
        wait_until_ready(server)
        switch(server, "hang").touch()
        with server.client.open_stream(max_tokens=4):
            eventually(lambda: server.client.metric("rooflight:stalled_seconds") > 0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(300) == 1
    finally:
        server.process.kill()
        server.process.communicate()


def test_sigterm_ends_a_server_that_is_not_warm_yet(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cold").touch()
    server = launch(folder, *SMALL, command=(sys.executable, str(WORKER), str(tmp_path)))
    try:
        assert server.client.complete().code == "warming_up"
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.communicate()


def test_sigterm_finishes_what_runs_and_refuses_what_comes(folder: Path, tmp_path: Path) -> None:
    command = (sys.executable, str(WORKER), str(tmp_path))
    words = (*SMALL, "--on", "h100", "--step-timeout", "600s", "--drain", "600s")
    with start_server(folder, *words, command=command, name="drained") as server:
        client, hang = server.client, switch(server, "hang")
        hang.write_text(str(STEPS))
        head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with (
            client.open_stream(max_tokens=500, ignore_eos=True) as sock,
            client.raw(f"{head}Content-Length: 100\r\n\r\n{{".encode()) as half,
        ):
            read = read_events(sock, 3)
            assert client.metric("rooflight:predicted_ttft_seconds_count") == 1
            eventually(lambda: client.metric("rooflight:open_requests") == 2)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: client.get("/ready").status == 503)
            assert b" 503 " in half.recv(4096).split(b"\r\n")[0]  # it was not begun
            reply = client.complete()
            assert reply.status == 503 and reply.code == "draining"
            assert client.get("/health").status == 200
            hang.unlink()
            read += read_to_end(sock)
        assert read.count(b'"finish_reason":"length"') == 1
        assert server.process.wait(300) == 0
        events = [line["event"] for line in server.lines()]
        assert events[-2:] != [] and "drain" in events and events[-1] == "stop"


@pytest.mark.full
def test_what_does_not_finish_in_time_is_cut_off(folder: Path) -> None:
    with (
        start_server(folder, *SMALL, "--drain", "50ms", name="cut") as server,
        server.client.open_stream(max_tokens=500, ignore_eos=True) as sock,
    ):
        read_events(sock, 1)
        assert server.end() == 1


@pytest.mark.parametrize("words", (("--host", "0.0.0.0"), ("--keys", "/no/such/file")))
def test_a_server_without_a_key_binds_to_this_machine_only(
    folder: Path,
    words: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("ROOFLIGHT_API_KEY", raising=False)
    assert main(["serve", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert "key" in error and "hint:" in error


def test_a_port_in_use_is_said_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port]) == 2
    assert "cannot listen" in capsys.readouterr().err
