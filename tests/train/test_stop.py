"""Ctrl-C, as a terminal sends it: to every process of the command at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rooflight.train.events import read_events

from ..listeners import listeners
from .launched import COMPILES_QUICKLY
from .small_run import small_plan, write_plan

STOPPED = 75
FLAGS = {"train": [], "launch": ["--processes", "2", "--leader", "127.0.0.1:0"]}
pytestmark = pytest.mark.parametrize("verb", [*FLAGS])


class Command:
    """`train` or `launch` as the foreground of a terminal."""

    def __init__(self, verb: str, folder: Path, tokens: Path) -> None:
        plan = write_plan(folder / "plan.json", small_plan("fsdp=X", "X=2", "v5e:1x2"))
        self.out = folder / "run"
        self.out.mkdir()
        flags = ["--data", str(tokens), "--out", str(self.out), "--steps", "1000000"]
        flags += ["--save-every", "1000000", "--cpu"]
        self._words = [sys.executable, "-m", "rooflight", verb, str(plan), *flags, *FLAGS[verb]]
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.out / "log").open("ab") as log:
            self.popen = subprocess.Popen(
                self._words,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | COMPILES_QUICKLY,
            )

    def interrupt(self) -> None:
        assert self.popen is not None
        os.killpg(self.popen.pid, signal.SIGINT)

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        assert self.popen is not None
        until = time.monotonic() + 600
        while not is_there():
            assert self.popen.poll() is None and time.monotonic() < until, self.said
            time.sleep(0.02)

    def end(self) -> int:
        assert self.popen is not None
        return self.popen.wait(600)

    def count(self, event: str) -> int:
        return sum(e["event"] == event for e in read_events(self.out))

    def steps(self, event: str) -> list[int]:
        return [int(str(e["step"])) for e in read_events(self.out) if e["event"] == event]

    @property
    def said(self) -> str:
        return (self.out / "log").read_text(errors="replace")


@pytest.fixture
def command(verb: str, tmp_path: Path, tokens: Path) -> Iterator[Command]:
    found = Command(verb, tmp_path, tokens)
    yield found
    if found.popen is not None and found.popen.poll() is None:
        os.killpg(found.popen.pid, signal.SIGKILL)


def test_once_saves_and_ends_and_the_same_command_goes_on(command: Command) -> None:
    """And nobody outside can connect to any process of it: supervisor, workers, jax."""
    command.start()
    command.wait_for(lambda: command.count("step") > 2)
    assert command.popen is not None
    assert {host for host, _ in listeners(command.popen.pid)} <= {"127.0.0.1", "::1"}
    command.interrupt()
    assert command.end() == STOPPED, command.said
    assert command.count("failed") == 0 and "told to stop" in command.said
    (saved,) = command.steps("saved")
    assert saved == command.steps("step")[-1] + 1
    command.start()
    command.wait_for(lambda: command.count("restored") > 0)
    assert command.steps("restored") == [saved]
    command.interrupt()
    assert command.end() == STOPPED, command.said


def test_before_the_first_step_nothing_is_tried_again(command: Command) -> None:
    """Twice, because one that compiles hears the first when it has."""
    command.start()
    command.wait_for(lambda: command.count("compiled") > 0)
    command.interrupt()
    time.sleep(0.1)
    command.interrupt()
    assert command.end() == STOPPED, command.said
    assert command.count("saved") == command.count("failed") == 0
