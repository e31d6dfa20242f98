"""`launch` before any device is touched: who is missing, who differs, when it gives up."""

import asyncio
import json
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.plan.file.codec import encode
from rooflight.train.facts import Facts
from rooflight.train.leader import Leader
from rooflight.train.lines import Connection, Message, meet, run_secret
from rooflight.train.tokens import write_tokens

from .small_run import MODEL, small_plan, words, write_plan, write_text

_PATIENCE_S = 300.0  # for what must come
SECRET = b"of the tests"
FACTS = Facts("run", "plan", "data", ("python 3.11.7", "jax 0.10.2"), 4)


class _Host:
    """A supervisor of a host as the leader sees it: what it is told, and what it says."""

    def __init__(self, number: int, facts: Facts = FACTS) -> None:
        self.hello: Message = {"host": number, "facts": encode(facts)}
        self.line: Connection | None = None

    async def join(self, lead: "_Lead", secret: bytes = SECRET) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", lead.port)
        lead.hosts.append(self)
        self.line = await meet(self.reader, self.writer, secret, "host")
        if self.line is not None:
            self.line.send(self.hello)

    async def told(self) -> Message:
        assert self.line is not None
        message = await asyncio.wait_for(self.line.receive(), _PATIENCE_S)
        assert message is not None
        return message

    def say(self, **message: object) -> None:
        assert self.line is not None
        self.line.send(message)


class _Lead:
    """A leader with a server, and what it tells a person."""

    def __init__(self, hosts: int, retries: int = 2) -> None:
        self.said: list[str] = []
        self.hosts: list[_Host] = []
        self.leader = Leader(
            FACTS,
            SECRET,
            hosts,
            retries,
            lambda *_, **__: None,
            self.said.append,
            lambda number: f"start {number}",
            lambda: "127.0.0.1:1",
        )

    async def __aenter__(self) -> "_Lead":
        self.server = await asyncio.start_server(self.leader.accept, "127.0.0.1", 0)
        self.port = int(self.server.sockets[0].getsockname()[1])
        self.task = asyncio.create_task(self.leader.lead())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        self.server.close()
        for host in self.hosts:
            host.writer.close()
        await self.leader.gone()
        await asyncio.sleep(0.05)  # for the streams to close


def test_an_attempt_begins_when_all_are_there_and_ends_for_all_when_one_fails() -> None:
    async def scene() -> str:
        hosts = [_Host(0), _Host(1)]
        async with _Lead(2) as lead:
            for host in hosts:
                await host.join(lead)
            assert [(await h.told())["go"] for h in hosts] == [1, 1]
            hosts[0].say(step=7)
            hosts[1].say(ended="failed", why="process 1 was killed")
            assert [(await h.told())["stop"] for h in hosts] == ["process 1 was killed"] * 2
            for host in hosts:
                host.say(ended="stopped")
            assert [(await h.told())["go"] for h in hosts] == [2, 2]
            for host in hosts:
                host.say(ended="finished")
            for host in hosts:
                assert "stop" in await host.told()
                host.say(ended="stopped")
            assert "at step 7: process 1 was killed" in lead.said[0]
            return await asyncio.wait_for(lead.task, _PATIENCE_S)

    assert asyncio.run(scene()) == "finished"


def test_a_host_that_differs_is_refused_in_words() -> None:
    async def scene() -> tuple[str, str]:
        other = replace(FACTS, plan="other", versions=("python 3.11.7", "jax 0.10.1"), devices=8)
        async with _Lead(2) as lead:
            host = _Host(1, other)
            await host.join(lead)
            told = await host.told()
            return str(told["refused"]), lead.said[0]

    refused, said = asyncio.run(scene())
    assert refused == "it has another plan, devices, jax"  # and not what it should have
    assert said == (
        "host 1 was refused: its plan is other, not plan; its devices is 8, not 4; it has jax"
        " 0.10.1, not jax 0.10.2; start it with: start 1"
    )
    fewer = replace(FACTS, versions=FACTS.versions[:1])
    assert FACTS.differences(fewer) == {"jax": "it has nothing, not jax 0.10.2"}
    assert fewer.differences(FACTS) == {"version": "it has jax 0.10.2, not nothing"}


@pytest.mark.parametrize(
    "hello",
    [
        {"host": 7, "facts": encode(FACTS)},
        {"host": 1, "facts": {"run": "of another version"}},
        {"host": 1},
        {"host": "1", "facts": None},
        {},
    ],
)
def test_whatever_a_stranger_says_is_refused_and_the_run_goes_on(hello: Message) -> None:
    async def scene() -> None:
        async with _Lead(1) as lead:
            stranger, host = _Host(1), _Host(0)
            stranger.hello = hello
            await stranger.join(lead)
            assert "refused" in await stranger.told()
            await host.join(lead)
            assert (await host.told())["go"] == 1
            assert "was refused" in lead.said[0] and "--host -1" not in lead.said[0]

    asyncio.run(scene())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x1b]0;owned\x07\n",
        b'{"host": 1, "facts": {}}\n' * 3,
        b'{"nonce": "a"}\n{"proof": "b"}\n',
        b'{"nonce": "a"}\n{"proof": "\\ud800"}\n',
        b"[" * 60_000 + b"\n",
        b"a" * 200_000 + b"\n",
    ],
)
def test_who_does_not_know_the_secret_is_told_nothing(said: bytes) -> None:
    async def scene() -> tuple[bytes, list[str]]:
        async with _Lead(1) as lead:
            reader, writer = await asyncio.open_connection("127.0.0.1", lead.port)
            writer.write(said)
            if not said:
                writer.write_eof()
            told = await reader.readline()
            with suppress(ConnectionResetError):  # what it said is not read to the end
                told += await asyncio.wait_for(reader.read(), _PATIENCE_S)
            writer.close()
            host = _Host(0)
            await host.join(lead)
            assert (await host.told())["go"] == 1
            return told, lead.said

    told, words = asyncio.run(scene())
    assert [*json.loads(told)] == ["nonce"]  # one line: what it was asked
    assert words == ["a stranger at 127.0.0.1, who does not know the secret, was turned away"]


def test_a_host_with_another_secret_does_not_obey_and_is_not_heard() -> None:
    async def scene() -> None:
        async with _Lead(1) as lead:
            stranger = _Host(0)
            await stranger.join(lead, b"another")
            assert stranger.line is None and len(lead.said) == 1

    asyncio.run(scene())


def test_a_message_that_was_changed_or_said_again_ends_the_talk() -> None:
    async def scene(change: Callable[[bytes], bytes]) -> Message | None:
        found: list[Connection | None] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.append(await meet(reader, writer, SECRET, "leader"))

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*address)
            line = await meet(reader, writer, SECRET, "host")
            assert line is not None
            sent = list[bytes]()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(writer, "write", sent.append)
                line.send({"step": 1})
            writer.write(change(sent[0]))
            (heard,) = found
            assert heard is not None
            first = await heard.receive()
            second = await heard.receive() if first == {"step": 1} else first
            writer.close()
            heard.close()
            return second

    changes: tuple[Callable[[bytes], bytes], ...] = (
        lambda line: line.replace(b"1", b"2", 1),
        lambda line: line + line,
        lambda line: line.replace(b'"code": "', b'"code": "0'),
        lambda _: b'{"step": 1}\n',
    )
    for change in changes:
        assert asyncio.run(scene(change)) is None


def test_a_secret_is_for_one_user_and_the_same_for_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_secret(tmp_path, is_leader=False) is None
    made = run_secret(tmp_path, is_leader=True)
    assert made is not None and len(made) == 64
    assert run_secret(tmp_path, is_leader=False) == run_secret(tmp_path, is_leader=True) == made
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        run_secret(tmp_path, is_leader=False)
    monkeypatch.setenv("ROOFLIGHT_SECRET", "chosen")
    assert run_secret(tmp_path, is_leader=False) == b"chosen"


def test_a_host_that_is_lost_ends_the_attempt_and_is_waited_for() -> None:
    async def scene() -> None:
        hosts = [_Host(0), _Host(1)]
        async with _Lead(2) as lead:
            for host in hosts:
                await host.join(lead)

            for host in hosts:
                await host.told()
            hosts[1].writer.close()
            assert (await hosts[0].told())["stop"] == "host 1 is gone"
            hosts[0].say(ended="stopped")
            repeated = _Host(1)
            await repeated.join(lead)
            assert (await hosts[0].told())["go"] == (await repeated.told())["go"] == 2

    asyncio.run(scene())


def test_attempts_that_get_no_further_end_in_giving_up() -> None:
    async def scene() -> tuple[str, float]:
        host = _Host(0)
        async with _Lead(1, retries=1) as lead:
            await host.join(lead)
            began = time.monotonic()
            for step in (3, 3, 2):  # the second and the third are no progress
                assert "go" in await host.told()
                host.say(step=step)
                host.say(ended="failed", why="no space left on device")
                await host.told()
                host.say(ended="stopped")
            return await asyncio.wait_for(lead.task, _PATIENCE_S), time.monotonic() - began

    ending, seconds = asyncio.run(scene())
    assert ending == "gave up at step 3, 2 attempts got no further: no space left on device"
    assert seconds > 2.9  # one second after progress, two after none


class _Skips(selectors.DefaultSelector):
    """Waits for nothing: a clock of its own goes on by as long as it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        self.now += 1e-6 + (0.0 if found else timeout or 0.0)
        return found


def test_a_missing_host_is_named_within_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clock that goes on whenever everybody waits."""
    selector = _Skips()
    monkeypatch.setattr(time, "monotonic", lambda: selector.now)

    async def scene() -> float:
        async with _Lead(2) as lead:
            while not lead.said:
                await asyncio.sleep(0.1)
            named = [f"host {host} is not there; start it with: start {host}" for host in (0, 1)]
            assert lead.said == named
            return selector.now

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert 5 < runner.run(scene()) < 30


def test_a_missing_host_is_named_with_its_command(tmp_path: Path, tokens: Path) -> None:
    command = [*words(tmp_path, tokens, 1), "--out", str(tmp_path / "run"), "--hosts", "2"]
    at = command.index("--leader") + 1
    command[at] = f"127.0.0.1:{_free_port()}"
    with subprocess.Popen(
        [sys.executable, "-m", "rooflight", "launch", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        cold = process.stderr.readline()
        line = process.stderr.readline()
        process.kill()
    assert cold.startswith("nothing of this run is compiled yet: each process compiles")
    assert re.match(r"host 1 is not there; start it with: rooflight launch .* --host 1 ", line)


def _free_port() -> int:
    from rooflight.train.supervisor import free_port

    return free_port("127.0.0.1")


def test_a_folder_of_another_run_is_refused(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooflight.train.run import Run, claim

    plan = small_plan("fsdp=X", "X=4", "v5e:2x2")
    run = Run(plan, str(tokens), str(tmp_path / "run"), 10)
    claim(run)
    claim(replace(run, steps=20))
    claim(replace(run, plan=small_plan("dp=X", "X=4", "v5e:2x2")))
    path = write_plan(tmp_path / "plan.json", replace(plan, batch=32))
    flags = ["--data", str(tokens), "--out", run.out, "--steps", "10", "--cpu"]
    assert main(["launch", str(path), *flags]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_what_a_run_cannot_use_is_refused_before_anything_starts(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(small_plan("fsdp=X", "X=4", "v5e:2x2"), model=replace(MODEL, vocab=128))
    plan = write_plan(tmp_path / "plan.json", small)
    flags = ["--out", str(tmp_path / "run"), "--steps", "10", "--cpu"]
    assert main(["train", str(plan), "--data", str(tokens), *flags]) == 2
    assert "tokens of" in (err := capsys.readouterr().err) and "--vocab 128" in err
    assert main(["launch", str(plan), "--data", str(tmp_path / "no"), *flags]) == 2
    assert "rooflight tokens" in capsys.readouterr().err
    script = tmp_path / "run.py"
    script.write_text("run = 1 / 0\n")
    assert main(["train", str(script)]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
    script.write_text("run = 1\n")
    assert main(["train", str(script)]) == 2
    assert "has no Run" in capsys.readouterr().err


def test_data_that_was_made_anew_makes_another_run(tmp_path: Path, tokens: Path) -> None:
    from rooflight.train.run import Run, identity

    copy = tmp_path / "tokens"
    shutil.copytree(tokens, copy)
    run = Run(small_plan("fsdp=X", "X=4", "v5e:2x2"), str(copy), str(tmp_path / "run"), 10)
    before = identity(run)
    assert identity(replace(run, data=str(tokens))) == before  # wherever it is
    write_tokens([write_text(tmp_path / "other.txt", words=900)], copy, vocab=300)
    assert identity(run) != before


def test_bare_verbs_print_a_run_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--json"]) == 0
    template = json.loads(capsys.readouterr().out)["template"]
    compile(template, "run.py", "exec")
    assert "run = Run(" in template
