"""A run on hosts whose lines, workers, clocks and disk fail ends or goes on, and loses nothing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rooflight.train import events, lines, seal
from rooflight.train.events import EventLog
from rooflight.train.leader import Leader
from rooflight.train.lines import Connection, Message
from rooflight.train.processes import Processes

from .story import first_violation, play, seeds
from .training import simulate

# pyright: reportPrivateUsage=false


def test_no_schedule_of_faults_stops_a_run_for_ever_or_loses_a_checkpoint() -> None:
    for seed in seeds(40):
        play(simulate, seed)


_GREET: Any = Leader._greet


async def _never_asks(self: Connection) -> Message | None:
    return self._proved(await lines._read(self._reader))


async def _kills_nobody(self: Processes) -> None:
    """Workers of an attempt that has ended step on beside those of the next."""
    self._workers, self._readers = [], []


def _refuses_who_is_back(self: Leader, hello: Message) -> tuple[int | None, str, str]:
    number, told, reason = _GREET(self, hello)
    again = "" if reason or number not in self._hosts else f"host {number} is there already"
    return number, told or again, reason or again


def _mixes_lines(self: EventLog, line: bytes) -> None:
    handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    events.os.write(handle, line)
    os.close(handle)


def _sees_no_damage(folder: Path, index: int = 0, count: int = 1) -> str | None:
    return None if seal.is_sealed(folder) else "not all of its seals are there"


PLANTED = [
    (Connection, "receive", _never_asks, "the run neither ends nor goes on"),
    (Processes, "kill", _kills_nobody, "live when those of"),
    (EventLog, "_append", _mixes_lines, "was written, and cannot be read"),
    (seal, "damage", _sees_no_damage, "counts as whole and"),
    (Leader, "_greet", _refuses_who_is_back, "was refused by host 0"),
]


@pytest.mark.parametrize(("owner", "name", "planted", "words"), PLANTED)
def test_a_planted_bug_is_found(
    owner: object,
    name: str,
    planted: Callable[..., object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first, the third and the last were in the product until these schedules found them."""
    monkeypatch.setattr(owner, name, planted)
    assert words in (first_violation(simulate, range(80, 1080)) or "")
