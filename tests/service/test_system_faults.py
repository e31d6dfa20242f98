"""Faults of every kind at random, in a system of several processes, among watched requests.

Each request ends in its own text or in a clear error, and some are answered after each fault;
in the end nothing is held anywhere.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from . import test_faults
from .system import PREFILL, REPLICAS, System, ask, running
from .test_lifecycle import eventually

PROMPTS = [f"prompt number {i}, long enough to be computed by another server" for i in range(6)]
DEADLINE = 240.0  # so late that it was forgotten: servers give up after 20 s
ERRORS = {
    *("429 overloaded", "502 replica_broke", "503 no_replica", "500 engine_failed"),
    *("503 draining", "504 replica_timeout", "408 deadline", "503 warming_up", "503 engine_dead"),
    *("event replica_broke", "event deadline", "event engine_failed"),
}


def kill_replica(system: System, rng: random.Random) -> None:
    name = rng.choice(REPLICAS)
    time.sleep(rng.random() * 0.2)
    system.kill(name)
    system.restart(name)


def kill_prefill(system: System, rng: random.Random) -> None:
    """With a prompt half handed over, if any is."""
    hold, held = system.switches / "hold", system.switches / "held"
    held.unlink(missing_ok=True)
    hold.touch()
    end = time.monotonic() + 3
    while not held.exists() and time.monotonic() < end:
        time.sleep(0.01)
    system.kill(PREFILL)
    hold.unlink()
    time.sleep(rng.random())
    system.restart(PREFILL)


def pause_prefill(system: System, rng: random.Random) -> None:
    system.pause(PREFILL, 0.5 + rng.random())


def pause_replica(system: System, rng: random.Random) -> None:
    system.pause(rng.choice(REPLICAS), 0.5 + rng.random())


def jump_clock(system: System, rng: random.Random) -> None:
    (system.switches / "clock").write_text(str(rng.choice([-1, 1]) * 10 ** rng.randrange(2, 8)))


def fail_step(system: System, rng: random.Random) -> None:
    (system.switches / "fail").touch()
    time.sleep(0.2)


def of_a_client(system: System, rng: random.Random) -> None:
    faults = [f for f in test_faults.FAULTS if f is not test_faults.run_out_of_time]
    rng.choice(faults)(system.client, rng)


Fault = Callable[[System, random.Random], None]
SLOW: list[Fault] = [kill_replica, kill_prefill]  # a process takes seconds to start
QUICK: list[Fault] = [pause_prefill, pause_replica, jump_clock, fail_step]


class Watch:
    """Requests one after another, each of which is checked."""

    def __init__(self, system: System, wanted: dict[str, list[str]]) -> None:
        self.system, self.wanted = system, wanted
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(prompt, i % 2 == 1))
            for i, prompt in enumerate(wanted)
        ]

    def wait_for_an_answer(self) -> None:
        """One that comes from now on."""
        before = self.seen["answer"]
        eventually(lambda: self.seen["answer"] > before)

    def _run(self, prompt: str, stream: bool) -> None:
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                tokens, error = ask(self.system.client, prompt, stream=stream)
            except Exception as broken:
                self.problems.append(f"{type(broken).__name__}: {broken}")
                continue
            self.seen[error or "answer"] += 1
            wanted = self.wanted[prompt]
            if tokens != (wanted[: len(tokens)] if error else wanted):
                self.problems.append(f"another text for {prompt!r}: {tokens}")
            if error and error not in ERRORS:
                self.problems.append(error)
            if time.monotonic() - start > DEADLINE:
                self.problems.append("late")
            time.sleep(0.2 if error else 0.02)


def check_under_faults(folder: Path, switches: Path, faults: list[Fault]) -> None:
    rng = random.Random(1)
    with running(folder, switches) as system:
        wanted = {p: ask(system.client, p, stream=False)[0] for p in PROMPTS}
        watch = Watch(system, wanted)
        for thread in watch.threads:
            thread.start()
        for fault in faults:
            fault(system, rng)
            watch.wait_for_an_answer()
        watch.stop.set()
        for thread in watch.threads:
            thread.join()
        assert watch.problems == [], watch.seen
        system.wait_until_empty()
        for prompt, tokens in wanted.items():
            assert ask(system.client, prompt, stream=False) == (tokens, "")
        bugs = [line for line in system.servers["one"].lines() if line["event"] == "bug"]
        assert not bugs


def test_a_dozen_faults_of_every_kind(folder: Path, tmp_path: Path) -> None:
    faults = [*QUICK, *(of_a_client for _ in range(6)), *SLOW]
    check_under_faults(folder, tmp_path, faults)


@pytest.mark.full
def test_two_hundred_faults_of_every_kind(folder: Path, tmp_path: Path) -> None:
    faults = [*6 * SLOW, *10 * QUICK, *(of_a_client for _ in range(148))]
    random.Random(2).shuffle(faults)
    check_under_faults(folder, tmp_path, faults)
