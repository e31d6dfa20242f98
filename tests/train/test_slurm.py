"""The script of `launch --write slurm`, run by Slurm: nodes that die, and a run told to stop."""

import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.train.events import losses, read_events
from rooflight.train.supervisor import free_port

from ..dated_figure import today, write_figure
from .launched import COMPILES_QUICKLY, processes
from .slurm_cluster import GPUS, NODES, SlurmCluster, need_slurm
from .small_run import SAVE_EVERY, STEPS, small_plan, write_plan

_AFTER = 2 * SAVE_EVERY + 3  # steps, of which the last were not saved
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
_SUFFERED: dict[str, int] = {}  # by what was done, the steps that were done twice


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[SlurmCluster]:
    need_slurm()
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    found.env |= COMPILES_QUICKLY
    try:
        found.start()
        yield found
    finally:
        found.close()


class SlurmRun:
    """A run that `sbatch` was given, as the script that `launch` wrote."""

    def __init__(self, cluster: SlurmCluster, folder: Path, script: str) -> None:
        self.cluster, self.folder, self.out = cluster, folder, folder / "run"
        (folder / "job.sh").write_text(script)
        told = cluster.call("sbatch", "--parsable", "job.sh", folder=folder)
        self.number = told.strip()

    @property
    def state(self) -> str:
        return self.cluster.job(self.number)["JobState"]

    @property
    def steps(self) -> list[int]:
        return [int(str(e["step"])) for e in read_events(self.out) if e["event"] == "step"]

    def nodes(self) -> tuple[str, list[str]]:
        """The one that the script runs on, and all."""
        job = self.cluster.job(self.number)
        names = self.cluster.call("scontrol", "show", "hostnames", job["NodeList"]).split()
        return job["BatchHost"], names

    def wait_for_step(self, step: int) -> None:
        self.wait(f"step {step}", lambda: max(self.steps, default=-1) >= step)

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        def is_done() -> bool:
            state = self.state
            assert done() or state not in _ENDED[1:], f"{state}: {self.said()}"
            return done()

        self.cluster.wait_for(what, is_done, seconds=600)

    def wait_for_end(self) -> None:
        self.wait("the end", lambda: self.state == "COMPLETED")

    def said(self) -> str:
        return "".join(p.read_text(errors="replace") for p in self.folder.glob("*.log"))


@pytest.fixture
def run(
    cluster: SlurmCluster, tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> Generator[SlurmRun]:
    """On two of the three nodes."""
    cluster.wait_for("idle nodes", lambda: all(cluster.state(node) == "IDLE" for node in NODES))
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=4", "v5e:2x2"))
    flags = {"data": tokens, "out": tmp_path / "run", "steps": STEPS, "save-every": SAVE_EVERY}
    flags |= {"hosts": 2, "leader": f"127.0.0.1:{free_port('127.0.0.1')}"}
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    assert main(["launch", str(plan), *words, "--cpu", "--write", "slurm"]) == 0
    found = SlurmRun(cluster, tmp_path, capsys.readouterr().out)
    yield found
    cluster.call("scancel", found.number)


def _check(run: SlurmRun, undisturbed: Path, what: str) -> None:
    """It was begun again once, and its curve is that of a run that nothing happened to."""
    run.wait_for_end()
    assert run.cluster.job(run.number)["Restarts"] == "1"
    assert losses(run.out) == losses(undisturbed) and len(losses(run.out)) == STEPS
    _SUFFERED[what] = len(run.steps) - STEPS
    told = ", ".join(f"{what} ({count} steps done twice)" for what, count in _SUFFERED.items())
    write_figure(
        "clusters.md",
        "slurm",
        f"{today()}: {STEPS} steps on two of three nodes: {told}; every curve was, to the last bit,"
        " that of a run that nothing happened to.",
    )


@pytest.mark.full
@pytest.mark.parametrize("leads", [False, True])
def test_a_node_that_dies_is_replaced_and_nothing_is_lost(
    run: SlurmRun, undisturbed: Path, leads: bool
) -> None:
    run.wait_for_step(_AFTER)
    first, nodes = run.nodes()
    dead = first if leads else next(node for node in nodes if node != first)
    try:
        run.cluster.kill_node(dead)
        run.wait("a node that is down", lambda: run.cluster.state(dead).startswith("DOWN"))
        run.wait("another attempt", lambda: run.state == "RUNNING")
        assert dead not in run.nodes()[1]
        _check(run, undisturbed, f"the node of host {0 if leads else 1} killed")
    finally:
        run.cluster.start_node(dead)


@pytest.mark.full
def test_a_run_told_to_stop_saves_and_goes_back_to_the_queue(
    run: SlurmRun, undisturbed: Path
) -> None:
    run.wait_for_step(_AFTER)
    run.cluster.call("scancel", "--signal=TERM", run.number)  # as before a time limit
    _check(run, undisturbed, "told to stop")
    assert len(run.steps) == STEPS  # it saved where it was
    assert "told to stop" in run.said()


@pytest.mark.full
def test_a_supervisor_that_is_killed_ends_the_job_within_minutes(run: SlurmRun) -> None:
    """Nobody would start it again, and the others wait for it."""
    run.wait_for_step(0)
    (pid,) = processes(f"launch\0{run.folder}/plan.json\0", "\0--host\0" + "1\0")
    os.kill(pid, signal.SIGKILL)
    run.cluster.wait_for("the job's end", lambda: run.state in _ENDED, seconds=180)
    assert (run.state, run.cluster.job(run.number)["Restarts"]) == ("FAILED", "0")


@pytest.mark.full
def test_slurm_grants_the_gpus_of_the_plan(
    cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path / "plan.json", small_plan("fsdp=X", "X=16", f"h100:{GPUS}x2"))
    assert (
        main(["launch", str(plan), "--data", "a", "--out", "b", "--steps", "1", "--write", "slurm"])
        == 0
    )
    (tmp_path / "job.sh").write_text(capsys.readouterr().out)
    number = cluster.call("sbatch", "--parsable", "--hold", "job.sh", folder=tmp_path).strip()
    job = cluster.job(number)
    cluster.call("scancel", number)
    assert job["TresPerNode"] == f"gres:gpu:{GPUS}" and job["NumNodes"].partition("-")[0] == "2"
    assert (job["Requeue"], job["OverSubscribe"]) == ("1", "NO")
