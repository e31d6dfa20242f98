"""A server that asks for keys: who gets in, how far, and what nobody learns of others."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .client import Client
from .server_process import Server, start_server
from .test_lifecycle import eventually

KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob", "carol", "dave")}
LIMITS = {"bob": "requests=2", "carol": "tokens=400", "dave": "concurrent=1"}
SECRET_WORDS = "my secret prompt"


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    file = folder.parent / "keys"
    file.write_text("".join(f"{name} {key} {LIMITS.get(name, '')}\n" for name, key in KEYS.items()))
    file.chmod(0o600)
    words = ("--keys", str(file), "--rows", "1", "--host", "127.0.0.1")
    with start_server(folder, *words, name="guarded") as server:
        yield server


def client_of(server: Server, name: str) -> Client:
    return replace(server.client, key=KEYS[name])


def test_every_route_but_two_needs_a_key(guarded: Server) -> None:
    document = client_of(guarded, "alice").get("/openapi.json").json
    assert document["security"] == [{"key": []}]
    for path, methods in document["paths"].items():
        for method in methods:
            body = b"{}" if method == "post" else None
            reply = guarded.client.send(method.upper(), path, body)
            if path in ("/health", "/ready"):
                assert reply.status == 200
            else:
                assert reply.status == 401 and reply.code == "invalid_api_key"
    assert guarded.client.get("/no/such/route").status == 401


def test_with_keys_a_server_has_any_name(guarded: Server) -> None:
    client = client_of(guarded, "alice")
    assert client.send("GET", "/v1/models", None, Host="models.example").status == 200


def test_a_wrong_key_is_as_none(guarded: Server) -> None:
    for key in ("", "sk-alice", KEYS["alice"] + "x", KEYS["alice"].upper()):
        assert replace(guarded.client, key=key).get("/v1/models").status == 401
    assert client_of(guarded, "alice").get("/v1/models").status == 200


def test_a_key_above_its_rate_is_told_when_to_come_again(guarded: Server) -> None:
    bob = client_of(guarded, "bob")
    statuses = [bob.complete(max_tokens=1).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    reply = bob.complete(max_tokens=1)
    assert reply.code == "requests_limit" and 1 <= int(reply.headers["Retry-After"]) <= 30
    assert client_of(guarded, "alice").complete(max_tokens=1).status == 200


def test_tokens_that_were_not_used_are_given_back(guarded: Server) -> None:
    carol = client_of(guarded, "carol")
    for _ in range(3):  # each may use 300 of 400, and uses few: the stop string is its first text
        text = carol.complete(prompt=[5], max_tokens=3, ignore_eos=True).json["choices"][0]["text"]
        reply = carol.complete(prompt=[5], max_tokens=299, ignore_eos=True, stop=text)
        assert reply.status == 200 and reply.json["usage"]["completion_tokens"] <= 5
    assert carol.complete(prompt=[5] * 5, max_tokens=396, ignore_eos=True).status == 400
    assert carol.complete(prompt=[5] * 5, max_tokens=300, ignore_eos=True).status == 200
    assert carol.complete(prompt=[5] * 5, max_tokens=300).code == "tokens_limit"


def test_a_key_has_only_so_many_requests_at_once(guarded: Server) -> None:
    dave = client_of(guarded, "dave")
    with dave.open_stream(max_tokens=400, ignore_eos=True) as sock:
        assert b"200 OK" in sock.recv(4096)
        assert dave.complete(max_tokens=1).code == "concurrent_limit"
    eventually(lambda: dave.complete(max_tokens=1).status == 200)


def test_nobody_learns_from_the_cache_what_others_asked(guarded: Server) -> None:
    prompt = [(11 * i) % 250 + 5 for i in range(300)]

    def cached(name: str) -> int:
        usage = client_of(guarded, name).complete(prompt=prompt, max_tokens=1).json["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("alice") == 0 and cached("alice") == 256
    assert cached("dave") == 0 and cached("dave") == 256


def test_a_flood_of_one_key_does_not_hold_up_another(guarded: Server) -> None:
    alice, dave = client_of(guarded, "alice"), client_of(guarded, "dave")
    finished: list[float] = []

    def flood() -> None:
        assert alice.complete(prompt="flood", max_tokens=100, ignore_eos=True).status == 200
        finished.append(time.monotonic())

    threads = [threading.Thread(target=flood) for _ in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: guarded_waiting(alice) >= 6)
    assert dave.complete(max_tokens=2).status == 200
    done = time.monotonic()
    for thread in threads:
        thread.join()
    assert sum(t > done for t in finished) >= 4  # of those who came before


def test_a_flood_that_would_fill_the_queue_leaves_room_for_others(guarded: Server) -> None:
    alice, dave = client_of(guarded, "alice"), client_of(guarded, "dave")
    fields = {"prompt": [7] * 300, "max_tokens": 200, "ignore_eos": True}
    socks = [alice.open_stream(**fields) for _ in range(12)]  # 3,600 tokens; 2,560 may wait
    reply = alice.complete(**fields)
    while reply.status == 200:
        socks.append(alice.open_stream(**fields))
        reply = alice.complete(**fields | {"max_tokens": 1})
    assert reply.status == 429 and reply.code == "overloaded"
    assert dave.complete(prompt=[7] * 200, max_tokens=1).status == 200
    for sock in socks:
        sock.close()


def guarded_waiting(client: Client) -> float:
    return client.metric("vllm:num_requests_waiting")


def test_open_bodies_of_one_key_leave_room_for_others(guarded: Server) -> None:
    """Half-sent ones, more than there are places."""
    alice, bob = client_of(guarded, "alice"), client_of(guarded, "carol")
    head = (
        "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEYS['alice']}\r\nContent-Length: 100\r\n\r\n{{"
    )
    socks = [alice.raw(head.encode()) for _ in range(400)]
    try:
        eventually(lambda: alice.post("/tokenize", {"prompt": "a"}).status == 429)
        assert bob.post("/tokenize", {"prompt": "a"}).status == 200
    finally:
        for sock in socks:
            sock.close()
    eventually(lambda: alice.post("/tokenize", {"prompt": "a"}).status == 200)


def test_logs_hold_neither_texts_nor_keys(guarded: Server) -> None:
    alice, told = client_of(guarded, "alice"), len(guarded.lines())
    assert alice.complete(prompt=SECRET_WORDS).status == 200
    assert alice.chat(SECRET_WORDS).status == 200
    assert alice.get(f"/{SECRET_WORDS.replace(' ', '-')}").status == 404
    eventually(lambda: len(guarded.lines()) >= told + 3)
    text = guarded.log.read_text()
    assert not any(word in text for word in (*KEYS.values(), SECRET_WORDS, "secret-prompt"))
    line = next(x for x in guarded.lines() if x["route"] == "/v1/completions" and x["code"] == "")
    assert {"id", "key", "status", "seconds", "prompt_tokens", "completion_tokens"} <= set(line)
    assert not any(x["event"] == "bug" for x in guarded.lines())
