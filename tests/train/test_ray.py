"""The program of `launch --write ray`, run by Ray: a killed actor, and a run told to stop."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.train.events import losses, read_events
from rooflight.train.supervisor import free_port

from ..dated_figure import today, write_figure
from .launched import COMPILES_QUICKLY, Launched, processes
from .small_run import SAVE_EVERY, small_plan, words, write_plan

STEPS = 40
_AFTER = 2 * SAVE_EVERY + 3  # steps, of which the last were not saved
_WITHIN_S = 600.0


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of Ray, installed for this test."""
    folder = tmp_path_factory.mktemp("ray")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", "ray"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("`pip install ray` failed")
    return folder / "bin"


@pytest.fixture(scope="module")
def whole(tokens: Path, folder: Path) -> Generator[Path]:
    """A run of as many steps from which nothing was taken."""
    run = Launched(words(folder, tokens, 2, STEPS), folder / "whole")
    run.start()
    assert run.end() == 0, run.talk()
    yield run.out
    run.close()


class RayCluster:
    """Two nodes of Ray on this machine, and the driver of a run."""

    def __init__(self, tools: Path, folder: Path) -> None:
        self.tools, self.folder, self.out = tools, folder, folder / "run"
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.env = {**os.environ, **COMPILES_QUICKLY, "RAY_ADDRESS": self.address}
        self.env |= {"RAY_USAGE_STATS_ENABLED": "0"}
        self._temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets have short names
        self._log = (folder / "log").open("ab")
        self._started = list[subprocess.Popen[bytes]]()

    def start(self) -> None:
        port = self.address.partition(":")[2]
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        head += [f"--temp-dir={self._temporary}"]
        for flags in (head, [f"--address={self.address}"]):
            words = ["start", *flags, "--node-ip-address=127.0.0.1", "--num-cpus=1", "--block"]
            memory = ["--object-store-memory=100000000", "--disable-usage-stats"]
            self._run(str(self.tools / "ray"), *words, *memory)
            self.wait_for("a node", self._is_up)

    def _is_up(self) -> bool:
        words = [str(self.tools / "ray"), "status", f"--address={self.address}"]
        return subprocess.run(words, env=self.env, capture_output=True).returncode == 0

    def drive(self) -> subprocess.Popen[bytes]:
        return self._run(str(self.tools / "python"), "job.py")

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        found = subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=self._log, stderr=self._log
        )
        self._started.append(found)
        return found

    @property
    def steps(self) -> list[int]:
        return [int(str(e["step"])) for e in read_events(self.out) if e["event"] == "step"]

    def supervisors(self) -> list[tuple[int, int]]:
        """Of this run, with the actor that each is a child of."""
        return [(pid, _parent(pid)) for pid in processes(f"launch\0{self.folder}/plan.json\0")]

    def wait_for(self, what: str, done: Callable[[], bool]) -> None:
        until = time.monotonic() + _WITHIN_S
        while not done():
            assert time.monotonic() < until, f"waited for {what}: {self.said()}"
            time.sleep(0.2)

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        self._log.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def cluster(
    ray: Path, tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> Generator[RayCluster]:
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=4", "v5e:2x2"))
    flags = {"data": tokens, "out": tmp_path / "run", "steps": STEPS, "save-every": SAVE_EVERY}
    flags |= {"hosts": 2, "leader": f"127.0.0.1:{free_port('127.0.0.1')}"}
    told = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    assert main(["launch", str(plan), *told, "--cpu", "--write", "ray"]) == 0
    (tmp_path / "job.py").write_text(capsys.readouterr().out)
    found = RayCluster(ray, tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.mark.full
def test_an_actor_that_is_killed_takes_its_host_with_it_and_nothing_is_lost(
    cluster: RayCluster, whole: Path
) -> None:
    driver = cluster.drive()
    cluster.wait_for("steps", lambda: max(cluster.steps, default=-1) >= _AFTER)
    pid, actor = cluster.supervisors()[0]
    os.kill(actor, signal.SIGKILL)
    cluster.wait_for("the host's end", lambda: pid not in dict(cluster.supervisors()))
    assert driver.wait(_WITHIN_S) == 0, cluster.said()
    assert "a host was lost" in cluster.said()
    _check(cluster, whole, "an actor killed")


@pytest.mark.full
def test_a_driver_told_to_stop_saves_and_the_same_command_goes_on(
    cluster: RayCluster, whole: Path
) -> None:
    driver = cluster.drive()
    cluster.wait_for("steps", lambda: max(cluster.steps, default=-1) >= _AFTER)
    driver.terminate()
    assert driver.wait(_WITHIN_S) == 75, cluster.said()
    before = len(cluster.steps)
    assert _AFTER < before < STEPS
    assert cluster.drive().wait(_WITHIN_S) == 0, cluster.said()
    assert len(cluster.steps) == STEPS  # it saved where it was
    _check(cluster, whole, "told to stop")


_SUFFERED: dict[str, int] = {}  # by what was done, the steps that were done twice


def _check(cluster: RayCluster, whole: Path, what: str) -> None:
    assert losses(cluster.out) == losses(whole) and len(losses(cluster.out)) == STEPS
    _SUFFERED[what] = len(cluster.steps) - STEPS
    told = ", ".join(f"{what} ({count} steps done twice)" for what, count in _SUFFERED.items())
    write_figure(
        "clusters.md",
        "ray",
        f"{today()}: {STEPS} steps on two nodes of Ray: {told}; every curve was, to the last bit,"
        " that of a run that nothing happened to.",
    )
