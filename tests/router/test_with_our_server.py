"""Engine, service, router and load generator together: a replica is killed under load."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..cli.command import run
from ..service.tiny_model import make_folder
from .fleet_of_processes import Process, process, until

_SIZES = ("--rows", "4", "--step-tokens", "64", "--block-tokens", "16", "--max-tokens", "256")
_QUICK = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
}


def _is_ready(replica: Process) -> bool:
    assert replica.popen.poll() is None, "it has ended before it was ready"
    try:
        with urllib.request.urlopen(f"{replica.url}/ready", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _served(folder: Path) -> Generator[Process]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "rooflight", "serve", str(folder), "--port", str(port), *_SIZES]
    with subprocess.Popen(
        [*words, "--log", os.devnull],
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **_QUICK},
    ) as popen:
        try:
            yield Process(f"http://127.0.0.1:{port}", popen)
        finally:
            popen.kill()


@pytest.mark.full
def test_a_killed_replica_of_our_own_costs_only_what_it_had_in_its_hands(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny")
    with ExitStack() as stack:
        replicas = [stack.enter_context(_served(folder)) for _ in range(2)]
        for each in replicas:
            until(lambda each=each: _is_ready(each), seconds=600)
        words = [word for each in replicas for word in ("--replica", each.url)]
        router = stack.enter_context(process("-m", "rooflight", "route", *words, "--port", "0"))
        bench = ["bench", str(folder / "config.json"), "--on", "v5e", "--url", router.url, "--json"]
        load = ["--isl", "96", "--prefix-tokens", "64", "--prefixes", "8", "--osl", "32"]
        whole = json.loads(run([*bench, *load, "--rate", "4", "--requests", "24"]).out)
        assert whole["finished"] == 24 and whole["errors"] == {}
        killer = threading.Timer(3.0, lambda: replicas[0].signal(signal.SIGKILL))
        killer.start()
        broken = json.loads(run([*bench, *load, "--rate", "8", "--requests", "60"]).out)
        killer.join()
    assert broken["sent"] == 60 == broken["finished"] + sum(broken["errors"].values())
    assert set(broken["errors"]) <= {"error event", "http 502", "http 429"}
    assert broken["finished"] >= 30
    assert broken["output_tokens"] == 32 * broken["finished"]
