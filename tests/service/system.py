"""All there is, as processes: a server that prefills, two that generate, a router before them."""

import json
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # JSON

from ..router.fleet_of_processes import process
from .client import MODEL, Client, Reply
from .server_process import Server, launch, wait_until_ready

WORKER = Path(__file__).with_name("serve_worker.py")
SIZES = ("--rows", "2", "--block-tokens", "128", "--max-tokens", "256", "--deadline", "20s")
PREFILL, REPLICAS = "prefill", ("one", "two")
_IDLE_SECONDS = 300


@dataclass
class System:
    """The processes by name, each of which can be killed and started again where it was."""

    folder: Path
    switches: Path
    ports: dict[str, int]  # of those that were started
    servers: dict[str, Server]
    client: Client  # of the router

    def start(self, name: str) -> None:
        port = ("--port", str(self.ports.get(name, 0)))
        side: tuple[str, ...] = ("--prefill-only",)
        if name != PREFILL:
            url = f"http://127.0.0.1:{self.ports[PREFILL]}"
            side = ("--prefill-from", url, "--prefill-timeout", "1s")
        log = ("--log", "/dev/full") if name == REPLICAS[1] else ()  # a disk without room
        command = (sys.executable, str(WORKER), str(self.switches))
        words = (*SIZES, *port, *side, *log)
        self.servers[name] = launch(self.folder, *words, command=command, name=name)
        self.ports[name] = self.servers[name].said["port"]

    def restart(self, name: str) -> None:
        self.start(name)
        wait_until_ready(self.servers[name])

    def kill(self, name: str) -> None:
        self.servers[name].process.kill()
        self.servers[name].process.communicate()

    def pause(self, name: str, seconds: float) -> None:
        process = self.servers[name].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def wait_until_empty(self) -> None:
        """Nobody runs or waits, and no block is held, anywhere."""
        end = time.monotonic() + _IDLE_SECONDS
        for name, server in self.servers.items():
            left = ["vllm:num_requests_running", "vllm:num_requests_waiting"]
            left += ["vllm:kv_cache_usage_perc", "rooflight:open_requests"]
            left += ["rooflight:leases"] if name == PREFILL else []
            while found := [m for m in left if server.client.metric(m)]:
                assert time.monotonic() < end, (name, found)
                time.sleep(0.1)
            assert server.client.metric("rooflight:compilations_after_ready_total") == 0
            assert server.client.get("/health").status == 200


@contextmanager
def running(folder: Path, switches: Path) -> Generator[System]:
    """Everything, once it is ready."""
    with ExitStack() as stack:
        system = System(folder, switches, {}, {}, Client("", 0))
        stack.callback(lambda: [system.kill(name) for name in list(system.servers)])
        system.restart(PREFILL)  # the others read what it compiles
        for name in REPLICAS:
            system.start(name)
        for name in REPLICAS:
            wait_until_ready(system.servers[name])
        urls = [f"http://127.0.0.1:{system.ports[name]}" for name in REPLICAS]
        words = [word for url in urls for word in ("--replica", url)]
        router = stack.enter_context(process("-m", "rooflight", "route", *words, "--port", "0"))
        system.client = Client("127.0.0.1", int(router.url.rpartition(":")[2]))
        yield system


def ask(client: Client, prompt: str, *, stream: bool) -> tuple[list[str], str]:
    """The tokens of an answer, and its error: of a status, or of the event that ended it."""
    fields = {"prompt": prompt, "max_tokens": 20, "logprobs": 1, "temperature": 0}
    reply = client.post("/v1/completions", {"model": MODEL, **fields, "stream": stream})
    if reply.status != 200:
        return [], f"{reply.status} {reply.code}"
    documents = _events(reply) if stream else [reply.json]
    last = documents[-1]
    error = f"event {last['error']['code']}" if "error" in last else ""
    choices = [d["choices"][0] for d in documents if "choices" in d]
    return [t for c in choices for t in c["logprobs"]["tokens"]], error


def _events(reply: Reply) -> list[Any]:
    blocks = [b for b in reply.body.decode().split("\n\n") if b]
    assert blocks[-1] == "data: [DONE]" or '"error"' in blocks[-1], "a stream ended silently"
    return [json.loads(b.removeprefix("data: ")) for b in blocks if b != "data: [DONE]"]
