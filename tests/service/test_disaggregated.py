"""Prefill and generate as two processes: the same texts, whatever happens to either of them."""

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from rooflight.serve.disaggregated.fingerprint import fingerprint
from rooflight.serve.engine.config import EngineConfig

from .server_process import Server, launch, start_server, wait_until_ready
from .test_lifecycle import WORKER, eventually, is_idle
from .tiny_model import make_folder

PROMPTS = [f"prompt number {i}, long enough to be computed by another server" for i in range(8)]
SMALL = ("--rows", "4", "--block-tokens", "128", "--max-tokens", "256")
PATIENCE_S = 5.0  # a busy machine hands a prompt over in less


def text(server: Server, prompt: str, **fields: object) -> list[str]:
    reply = server.client.complete(prompt=prompt, max_tokens=20, logprobs=2, **fields)
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["logprobs"]["tokens"]


@dataclass
class Pair:
    """A server that prefills, with switches, and one that generates."""

    there: Server
    here: Server
    switches: Path
    start: Callable[[], Server]  # another one that prefills, at the same port

    def count(self, name: str) -> float:
        return self.here.client.metric(f"rooflight:prompts_{name}")

    def check_empty(self) -> None:
        for each in (self.there, self.here):
            eventually(lambda each=each: is_idle(each))
            assert each.client.metric("rooflight:compilations_after_ready_total") == 0
        eventually(lambda: self.there.client.metric("rooflight:leases") == 0)

    def until_used(self) -> None:
        """After a failure it is some time before the other server is asked again."""
        before = self.count("inserted")

        def is_used() -> bool:
            text(self.here, PROMPTS[0])
            return self.count("inserted") > before

        eventually(is_used)

    def hold(self) -> None:
        """From now on nothing but the first layers of a prompt is handed over."""
        self.until_used()
        (self.switches / "held").unlink(missing_ok=True)
        (self.switches / "hold").touch()

    def wait_until_held(self) -> None:
        eventually((self.switches / "held").exists)

    def let_go(self) -> None:
        (self.switches / "hold").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def wanted(server: Server) -> dict[str, list[str]]:
    """The texts of a server that does both."""
    return {prompt: text(server, prompt) for prompt in PROMPTS}


def make_pair(folder: Path, switches: Path, *words: str) -> Iterator[Pair]:
    command = (sys.executable, str(WORKER), str(switches))
    servers: list[Server] = []

    def start() -> Server:
        """At a free port, and then always at that one."""
        port = servers[0].said["port"] if servers else 0
        side = ("--prefill-only", "--port", str(port), *SMALL, *words)
        servers.append(launch(folder, *side, command=command, name=switches.name))
        wait_until_ready(servers[-1])
        return servers[-1]

    try:
        there = start()
        url = f"http://127.0.0.1:{there.said['port']}"
        other = ("--prefill-from", url, "--prefill-timeout", f"{PATIENCE_S}s")
        with start_server(folder, *SMALL, *other, *words, name=f"{switches.name}_here") as here:
            yield Pair(there, here, switches, start)
    finally:
        for each in servers:
            each.process.kill()
            each.process.communicate()


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from make_pair(folder, tmp_path_factory.mktemp("bytes"))


def check_texts(pair: Pair, wanted: dict[str, list[str]]) -> None:
    before = pair.count("inserted")
    found: dict[str, list[str]] = {}

    def ask(prompt: str) -> None:
        found[prompt] = text(pair.here, prompt)

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted
    assert pair.count("inserted") - before == len(PROMPTS)
    pair.check_empty()


def test_texts_are_the_same_and_no_block_stays(pair: Pair, wanted: dict[str, list[str]]) -> None:
    check_texts(pair, wanted)
    assert pair.count("lost") == 0
    assert pair.there.client.metric("vllm:prompt_tokens_total") > 0
    assert pair.there.client.complete().status == 404  # it has no texts of its own


def test_log_probabilities_and_ends_are_the_same(pair: Pair, server: Server) -> None:
    for fields in ({"logprobs": 3}, {"max_tokens": 1}, {"n": 2, "seed": 5, "temperature": 1.0}):
        asked = {"prompt": PROMPTS[0], "max_tokens": 12, **fields}
        ours, whole = (each.client.complete(**asked).json for each in (pair.here, server))
        assert [c["text"] for c in ours["choices"]] == [c["text"] for c in whole["choices"]]
        if "logprobs" in fields:
            ours, whole = (c["choices"][0]["logprobs"]["token_logprobs"] for c in (ours, whole))
            assert ours == pytest.approx(whole, abs=1e-4)
    pair.check_empty()


def test_a_client_that_goes_ends_the_lease_as_well(pair: Pair) -> None:
    pair.hold()
    try:
        with pair.here.client.open_stream(prompt=PROMPTS[1], max_tokens=50):
            pair.wait_until_held()
    finally:
        pair.let_go()
    pair.check_empty()


def test_what_is_late_is_computed_here_and_its_lease_ends(
    pair: Pair, wanted: dict[str, list[str]]
) -> None:
    lost = pair.count("lost")
    pair.hold()
    start = time.monotonic()
    try:
        assert text(pair.here, PROMPTS[2]) == wanted[PROMPTS[2]]
    finally:
        pair.let_go()
    assert pair.count("lost") == lost + 1
    assert time.monotonic() - start >= PATIENCE_S
    pair.check_empty()


def test_a_server_that_hangs_holds_up_one_request_and_not_the_next(
    pair: Pair, wanted: dict[str, list[str]]
) -> None:
    """Unless the machine is so slow that the server is asked again: twice as late each time."""
    pair.until_used()
    lost = pair.count("lost")
    pair.there.process.send_signal(signal.SIGSTOP)
    try:
        assert text(pair.here, PROMPTS[3]) == wanted[PROMPTS[3]]
        assert pair.count("lost") == lost + 1
        for at in range(1, 6):
            assert text(pair.here, PROMPTS[4]) == wanted[PROMPTS[4]]
            if pair.count("lost") == lost + at:
                break
        else:
            raise AssertionError("every request was held up")
    finally:
        pair.there.process.send_signal(signal.SIGCONT)
    pair.check_empty()


def test_hostile_talk_leaves_the_server_healthy(pair: Pair) -> None:
    order = {
        "fingerprint": "x",
        "prompt": [1, 2],
        "sampling": [0, 1, 0, 0],
        "logprobs": 0,
        "salt": "",
        "lease_s": 1,
    }
    texts = ["", "[]", "{", "null", '{"prompt": [1]}', "[" * 100_000, json.dumps(order)]
    texts += [json.dumps({**order, "prompt": prompt}) for prompt in ([], [-1], [10**9], ["a"])]
    texts += [json.dumps({**order, "salt": "zz"}), json.dumps({**order, "lease_s": 1e9})]

    async def talk() -> list[str]:
        answers: list[str] = []
        url = f"http://127.0.0.1:{pair.there.said['port']}/prefill"
        async with aiohttp.ClientSession() as session:
            for said in texts:
                async with session.ws_connect(url) as ws:
                    await ws.send_str(said)
                    answers.append((await ws.receive_json())["error"]["code"])
            async with session.ws_connect(url) as ws:
                await ws.send_bytes(b"\0" * 1000)
                answers.append((await ws.receive_json())["error"]["code"])
            async with session.get(url) as reply:
                assert reply.status == 400
        return answers

    codes = asyncio.run(talk())
    assert set(codes) == {"invalid_value", "invalid_json", "other_model"}
    assert pair.there.client.get("/health").status == 200
    pair.check_empty()
    assert not any(line["event"] == "bug" for line in pair.there.lines())


def test_a_lease_that_is_not_read_ends_and_is_paid_for(pair: Pair, folder: Path) -> None:
    """However long was asked for."""
    config = EngineConfig(4, 128, 8, 128, 256)
    order = {
        "fingerprint": fingerprint(folder, config, "f32"),
        "prompt": [1, 2, 3],
        "sampling": [0, 1, 0, 0],
        "logprobs": 0,
        "salt": "",
        "lease_s": 120,
    }

    async def talk() -> None:
        url = f"http://127.0.0.1:{pair.there.said['port']}/prefill"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as ws:
            await ws.send_str(json.dumps(order))
            assert "token" in await ws.receive_json()
            assert pair.there.client.metric("rooflight:leases") == 1
            assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSE

    asyncio.run(talk())
    pair.check_empty()


def test_models_that_differ_in_one_byte_have_other_fingerprints(tmp_path: Path) -> None:
    """Wherever it is: the ends of a file say nothing of its middle."""
    folder = make_folder(tmp_path / "model")
    config = EngineConfig(1, 16, 4, 32, 64)
    weights, found = folder / "model.safetensors", set[str]()
    data = bytearray(weights.read_bytes())
    for at in (0, len(data) // 3, len(data) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        weights.write_bytes(changed)
        found.add(fingerprint(folder, config, "f32"))
    weights.write_bytes(data)
    found |= {fingerprint(folder, config, dtype) for dtype in ("f32", "bf16")}
    assert len(found) == 6


def test_a_server_killed_while_it_hands_over_costs_nobody_a_text(
    pair: Pair, wanted: dict[str, list[str]]
) -> None:
    """And one that comes back at its address is asked again."""
    pair.hold()
    killer = threading.Thread(target=lambda: (pair.wait_until_held(), pair.there.process.kill()))
    killer.start()
    assert text(pair.here, PROMPTS[5]) == wanted[PROMPTS[5]]
    killer.join()
    assert text(pair.here, PROMPTS[6]) == wanted[PROMPTS[6]]
    eventually(lambda: is_idle(pair.here))
    pair.let_go()
    pair.there = pair.start()
    pair.until_used()
    assert text(pair.here, PROMPTS[7]) == wanted[PROMPTS[7]]
    pair.check_empty()


def test_a_server_that_generates_and_is_killed_leaves_no_lease(pair: Pair) -> None:
    pair.hold()
    try:
        with pair.here.client.open_stream(prompt=PROMPTS[1], max_tokens=50):
            pair.wait_until_held()
            pair.here.process.kill()
    finally:
        pair.let_go()
    eventually(lambda: is_idle(pair.there))
    eventually(lambda: pair.there.client.metric("rooflight:leases") == 0)


@pytest.mark.full
def test_values_pulled_by_jax_make_the_same_texts(
    folder: Path, tmp_path: Path, wanted: dict[str, list[str]]
) -> None:
    for pair in make_pair(folder, tmp_path, "--transfer", "jax"):
        check_texts(pair, wanted)
        test_a_client_that_goes_ends_the_lease_as_well(pair)
        test_what_is_late_is_computed_here_and_its_lease_ends(pair, wanted)
        test_a_server_killed_while_it_hands_over_costs_nobody_a_text(pair, wanted)


@pytest.mark.full
def test_another_model_is_not_asked_and_one_with_a_key_is_shown_it(
    folder: Path, tmp_path: Path
) -> None:
    key = "k" * 32
    other = make_folder(tmp_path / "tiny", seed=9)
    sizes = (*SMALL, "--open-metrics")  # these need no key
    for model, name, count in ((other, "other", "lost"), (folder, "same", "inserted")):
        with start_server(model, "--prefill-only", *sizes, name=name, key=key) as there:
            words = ("--prefill-from", f"http://127.0.0.1:{there.said['port']}")
            assert there.client.get("/prefill").status == 401
            with start_server(folder, *sizes, *words, name="doubts", key=key) as here:
                assert here.client.complete(prompt=PROMPTS[0]).status == 401
                client = replace(here.client, key=key)
                assert client.complete(prompt=PROMPTS[0]).status == 200
                counts = {c: client.metric(f"rooflight:prompts_{c}") for c in ("lost", "inserted")}
                assert counts == {"lost": 0, "inserted": 0, count: 1}
