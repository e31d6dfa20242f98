"""Slurm on this machine: a controller and nodes, each node a namespace that dies as a machine does.

Nothing of the machine's own Slurm is used but its programs: configuration, key, state and the names
of nodes are in a folder of the test.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rooflight.train.supervisor import free_port

NODES = ("node-1", "node-2", "node-3")
GPUS = 8  # that nodes are said to have
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
_PACKAGES = ("slurm-wlm", "munge")
_WITHIN_S = 300.0

# A job that goes back to the queue waits as long as a credential holds; by default two minutes.
_CONFIGURATION = """ClusterName=rooflight
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
SlurmdTimeout=10
ReturnToService=2
GresTypes=gpu
{nodes}PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
# A node: its own processes, which all end with it, and a file that knows all nodes by name.
_NODE = """
mount --bind {hosts} /etc/hosts
slurmd -D -N {name} &
wait
"""


def need_slurm() -> None:
    """Installs Slurm where that is possible, else skips."""
    if os.geteuid() != 0:
        pytest.skip("namespaces, in which nodes live, need root")
    if any(shutil.which(name) is None for name in _PROGRAMS):
        if shutil.which("apt-get") is None:
            pytest.skip("Slurm is not installed, and there is no apt-get to install it with")
        command = ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip(f"`{' '.join(command)}` failed")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode != 0:
        pytest.skip("this machine does not let root make namespaces")


class SlurmCluster:
    """A controller and its nodes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        self._write()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        flags = {"key-file": key, "socket": self.folder / "munge.socket"}
        flags |= {
            name: self.folder / f"munge.{name[:-5]}"
            for name in ("pid-file", "log-file", "seed-file")
        }
        self._run(
            "munged",
            ["munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in flags.items())],
        )
        self.wait_for("munge", (self.folder / "munge.socket").exists)
        self._run("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self.start_node(node)
        self.wait_for("nodes", lambda: all(self.state(node) == "IDLE" for node in NODES))

    def _write(self) -> None:
        lines, hosts = "", Path("/etc/hosts").read_text()
        for number, node in enumerate(NODES, 11):
            address = f"127.0.0.{number}"
            hosts += f"{address} {node}\n"
            lines += (
                f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr={address}"
                f" Port={free_port(address)} Sockets=1 CoresPerSocket=2 RealMemory=2000"
                f" Gres=gpu:{GPUS}\n"
            )
        (self.folder / "hosts").write_text(hosts)
        for number in range(GPUS):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=socket.gethostname(),
                port=free_port("127.0.0.1"),
                folder=self.folder,
                nodes=lines,
                names=",".join(NODES),
            )
        )

    def start_node(self, name: str) -> None:
        script = _NODE.format(hosts=self.folder / "hosts", name=name)
        apart = ["unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child=KILL"]
        self._run(name, [*apart, "bash", "-c", script])

    def kill_node(self, name: str) -> None:
        """At once, with every process that it had: the machine is gone."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def _run(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    def call(self, *command: str, folder: Path | None = None) -> str:
        """A command of Slurm, and what it says."""
        done = subprocess.run(command, env=self.env, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(self, node: str) -> str:
        done = subprocess.run(
            ["sinfo", "--noheader", "--nodes", node, "--format=%T"],
            env=self.env,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip().upper()

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job."""
        told = self.call("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    def wait_for(self, what: str, done: Callable[[], bool], seconds: float = _WITHIN_S) -> None:
        until = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < until, f"waited {seconds} s for {what}: {self.talk()}"
            time.sleep(0.2)

    def talk(self) -> str:
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        return json.dumps({p.name: p.read_text(errors="replace")[-1500:] for p in logs}, indent=1)

    def close(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()
