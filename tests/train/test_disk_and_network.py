"""A disk that fills while a checkpoint is saved, and a network that is cut between two hosts.

Both need root: a small file system of memory, and network namespaces with a link between them.
"""

import os
import re
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rooflight.train.events import read_events

from .faults import check_nothing_lost
from .launched import Launched
from .small_run import STEPS, words

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces need root")
_DISK_MB, _LEFT = 64, 200_000  # of a disk, and of it when it is full: events fit, a save does not
_NAMES, _ADDRESSES = ("rooflight-a", "rooflight-b"), ("10.77.31.1", "10.77.31.2")


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def _small_disk(folder: Path) -> Generator[Path]:
    folder.mkdir()
    try:
        _do("mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(folder))
    except subprocess.CalledProcessError:
        pytest.skip("this machine does not let root mount a file system")
    try:
        yield folder
    finally:
        _do("umount", "-l", str(folder))


def _fill(disk: Path) -> Path:
    """Takes all but a little of a disk."""
    free = os.statvfs(disk)
    path = disk / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - _LEFT)
    return path


@needs_root
def test_nothing_is_lost_by_a_full_disk(undisturbed: Path, tokens: Path, tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk") as disk:
        told, log = words(tmp_path, tokens, 2), tmp_path / "full.log"
        run = Launched(told, disk / "run", log=log)
        try:
            run.start()
            run.wait_for_step(STEPS // 2)
            filler = _fill(disk)
            run.wait_for("a failure", lambda: "failed at step" in run.talk() or run.ended)
            assert re.search(r"failed at step .* the disk of .* is full", run.talk()), run.talk()
            filler.unlink()
            assert run.end() == 0, run.talk()
            check_nothing_lost(run, undisturbed, in_order=False)
        finally:
            run.close()


def _count(folder: Path, event: str) -> int:
    return sum(e["event"] == event for e in read_events(folder))


@contextmanager
def _two_networks() -> Generator[None]:
    """Two namespaces and a link; in each the name of this machine means its own address."""
    if subprocess.run(["ip", "netns", "add", _NAMES[0]], capture_output=True).returncode:
        pytest.skip("this machine does not let root make network namespaces")
    try:
        _do("ip", "netns", "add", _NAMES[1])
        link = ["type", "veth", "peer", "name", "wire", "netns", _NAMES[1]]
        _do("ip", "-n", _NAMES[0], "link", "add", "name", "wire", *link)
        for name, address in zip(_NAMES, _ADDRESSES, strict=True):
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "wire")
            _do("ip", "-n", name, "link", "set", "wire", "up")
            _do("ip", "-n", name, "link", "set", "lo", "up")
            hosts = Path("/etc/netns") / name / "hosts"
            hosts.parent.mkdir(parents=True, exist_ok=True)
            hosts.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        yield
    finally:
        for name in _NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            (Path("/etc/netns") / name / "hosts").unlink(missing_ok=True)


@needs_root
@pytest.mark.full
def test_nothing_is_lost_by_a_cut_network(undisturbed: Path, tokens: Path, folder: Path) -> None:
    with _two_networks():
        told = words(folder, tokens, 1)
        told[told.index("--leader") + 1] = f"{_ADDRESSES[0]}:8476"
        hosts = [
            Launched(
                [*told, "--hosts", "2", "--host", str(number)],
                folder / "cut",
                log=folder / f"cut-{number}.log",
                inside=("ip", "netns", "exec", name),
            )
            for number, name in enumerate(_NAMES)
        ]
        try:
            for host in hosts:
                host.start()
            hosts[0].wait_for_step(25)
            _do("ip", "-n", _NAMES[0], "link", "set", "wire", "down")
            cut, failed = hosts[0], lambda: _count(folder / "cut", "failed") > 0
            cut.wait_for("the end of an attempt", lambda: failed() or cut.ended)
            assert failed(), cut.talk()
            _do("ip", "-n", _NAMES[0], "link", "set", "wire", "up")
            assert [host.end() for host in hosts] == [0, 0], [h.talk() for h in hosts]
            check_nothing_lost(hosts[0], undisturbed)
        finally:
            for host in hosts:
                host.close()
