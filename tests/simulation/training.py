"""Leader, supervisors, their lines, workers' processes, event log and seals under faults.

In: a `Story`. Out: nothing, or a violation. The workers' devices are the model here: they step
together or hang, as collectives do, and save files that the product seals, checks and sets aside.
"""

import asyncio
import signal
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from rooflight.errors import RooflightError
from rooflight.train import events, leader, processes, seal, supervisor
from rooflight.train.events import EventLog, read_events
from rooflight.train.facts import Facts
from rooflight.train.processes import HangTimeout
from rooflight.train.run import Run
from rooflight.train.supervisor import HostJob, Supervisor

from .disk import Disk, SimPath, folder_on
from .loop import HOST, Process, SimLoop
from .story import Story

_PORT = 7000
_CALM_AFTER_S = 120.0
_ENDS_WITHIN_S = 4 * 3600.0


class Worker:
    """A process of an attempt: joins its peers, steps with them, saves and seals its part."""

    def __init__(self, process: Process, words: list[str]) -> None:
        flags = {words[i]: words[i + 1] for i in range(4, len(words), 2)}
        self.process, self.index = process, int(flags["--index"])
        self.count, self.attempt = int(flags["--count"]), int(flags["--attempt"])
        self.coordinator, self.host = flags["--coordinator"], process.host
        self.hangs = self.told_to_stop = False
        process.on_signal = self._hear

    def _hear(self, number: int) -> None:
        self.told_to_stop = True

    @property
    def is_there(self) -> bool:
        return self.process.code is None and not self.hangs

    def say(self, event: str, **facts: object) -> None:
        line = events.json.dumps({"event": event, **facts}) + "\n"
        self.process.say(line.encode())


class Attempt:
    """The workers of one address, which step together."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster, self.number = cluster, number
        self.workers: list[Worker] = []
        self.log: EventLog | None = None

    async def run(self) -> None:
        try:
            await self._run()
        except RooflightError as error:  # of a checkpoint: each ends with a code
            self.cluster.story.tell(f"attempt {self.number}: {error}")
            self.workers[0].process.end(1)
        except OSError as error:
            self.cluster.story.tell(f"attempt {self.number}: {error}")
            self.cluster.story.draw.choice(self.workers).process.end(1)

    async def _run(self) -> None:
        story, cluster = self.cluster.story, self.cluster
        await self._together(story.draw.uniform(0.2, 1.5))
        self.log = EventLog(cluster.folder, attempt=self.workers[0].attempt)
        checkpoints = cluster.folder / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        seal.set_aside_unsealed(checkpoints, self.tell)
        step = self._restore(checkpoints)
        self.tell("restored" if step else "began", step=step)
        pending: int | None = None
        while step < cluster.steps:
            await self._together(story.draw.uniform(0.05, 0.3))
            cluster.steps_now(self)
            step += 1
            self.tell("step", step=step - 1, loss=1 / step, seconds=0.1)
            if pending is not None:
                await self._seal(checkpoints / str(pending))
                pending = None
            is_last = step == cluster.steps or any(w.told_to_stop for w in self.workers)
            if step % cluster.save_every == 0 or is_last:
                self._write(checkpoints, step)
                self.tell("save", step=step, seconds=0.0)
                pending = step
            if is_last:
                await self._seal(checkpoints / str(step))
                code = 0 if step == cluster.steps else 75
                for worker in self.workers:
                    await asyncio.sleep(story.draw.uniform(0, 0.2))
                    worker.process.end(code)
                return

    def tell(self, event: str, **facts: object) -> None:
        if self.log is not None and self.workers[0].is_there:
            self.cluster.tell(self.log, event, **facts)
        for worker in self.workers:
            worker.say(event, **facts)

    async def _together(self, seconds: float) -> None:
        """Waits for all of them; for ever, if one is not there."""
        await asyncio.sleep(seconds)
        count = self.workers[0].count
        while not (len(self.workers) == count and all(w.is_there for w in self.workers)):
            if all(w.process.code is not None for w in self.workers):
                raise asyncio.CancelledError
            await asyncio.sleep(1.0)
        hosts = {w.host for w in self.workers}
        network = self.cluster.loop.network
        while any(network.is_cut(a, b) for a in hosts for b in hosts):
            await asyncio.sleep(1.0)
            if not all(w.is_there for w in self.workers):
                return await self._together(1.0)

    def _restore(self, folder: SimPath) -> int:
        for step in sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())[::-1]:
            here, count = folder / str(step), len(self.workers)
            bad = [found for i in range(count) if (found := seal.damage(here, i, count))]
            if not bad:
                self.cluster.counted_whole(here)
                return step
            self.tell("damaged", step=step, reason=bad[0])
            seal.set_aside(here)
        return 0

    def _write(self, folder: SimPath, step: int) -> None:
        """As Orbax does: elsewhere first, so that a folder of its name has all files."""
        new = folder / f"{step}.orbax-checkpoint-tmp"
        new.mkdir(exist_ok=True)
        for i in range(2):
            with (new / f"{i}.bin").open("wb") as file:
                file.write(content(step, i))
        if not (folder / str(step)).exists():
            new.rename(folder / str(step))

    async def _seal(self, folder: SimPath) -> None:
        """Each worker its part, by the product's thread, which runs here at once."""
        count = len(self.workers)
        for worker in self.workers:
            await asyncio.sleep(self.cluster.story.draw.uniform(0, 0.1))
            if worker.is_there:
                part = seal.Sealing(folder, worker.index, count)
                part.run()
                if part.is_done() and worker.index == 0:
                    self.tell("saved", step=int(folder.name))
                    there = folder / f"seal.0-of-{count}.json"
                    assert there.exists(), f"{folder.name} was told as saved and has no seal"
        await self._together(0.01)


def content(step: int, part: int) -> bytes:
    return f"state {part} after step {step}".encode() * 4


class Cluster:
    """Hosts that share a folder, those who start them again, and what must hold."""

    def __init__(self, story: Story, folder: Path) -> None:
        draw, self.story = story.draw, story
        self.loop = SimLoop(story)
        self.disk = Disk(story)
        self.folder = folder_on(self.disk, folder)
        self.num_hosts, self.per_host = draw.randint(1, 3), draw.choice((1, 1, 2))
        self.steps, self.save_every = draw.randint(6, 16), draw.randint(2, 5)
        self.supervisors: dict[str, Supervisor] = {}
        self.running: dict[str, asyncio.Task[str]] = {}
        self.processes: list[Process] = []
        self.attempts: dict[str, Attempt] = {}
        self.versions: dict[str, str] = {}
        self.newest, self.ended = 0, ""
        self.told: list[dict[str, object]] = []  # events that the log has taken
        self.ports = iter(range(20000, 10**6))
        self.calm = False
        self.wall = 1.7e9
        self.corrupted: set[str] = set()
        self.loop.start_process = self.start

    # What must hold

    def steps_now(self, attempt: Attempt) -> None:
        assert attempt.number >= self.newest, (
            f"attempt {attempt.number} steps after attempt {self.newest} began to"
        )
        self.newest = attempt.number

    def counted_whole(self, folder: SimPath) -> None:
        for i in range(2):
            path = folder / f"{i}.bin"
            whole = path.exists() and path.read_bytes() == content(int(folder.name), i)
            assert whole, f"{folder.name} counts as whole and {path.name} is not what was saved"

    def tell(self, log: EventLog, event: str, **facts: object) -> None:
        lost: list[str] = []

        def said(*text: object, **_: object) -> None:
            lost.append(str(text[0]))

        with patch.object(events, "print", said, create=True):
            log.tell(event, **facts)
        if not lost:
            self.told.append({"event": event, **facts})

    def check_log(self) -> None:
        found = [{k: v for k, v in e.items() if k != "time"} for e in read_events(self.folder)]
        for event in self.told:
            known = any(event.items() <= e.items() for e in found)
            assert known, f"{event} was written, and cannot be read"

    # Hosts

    def facts(self, *_: object) -> Facts:
        return Facts("run", "plan", "data", (self.versions.get(HOST.get(), "jax 1"),), None)

    def free_port(self, address: str) -> int:
        return next(self.ports)

    def boot(self, host: str) -> None:
        if self.ended or host in self.running:
            return
        self.loop.network.boot(host)
        self.story.tell(f"{host} begins")
        context = Context()
        context.run(HOST.set, host)
        self.running[host] = self.loop.create_task(self._supervise(host), context=context)
        self.running[host].add_done_callback(self.loop.judge)

    async def _supervise(self, host: str) -> str:
        number = int(host[1:])
        job = HostJob(
            cast(Run, SimpleNamespace(folder=self.folder, out=str(self.folder))),
            number,
            self.num_hosts,
            self.per_host,
            ("h0", _PORT),
            1,
            6,
            HangTimeout(10.0, 4.0),
            lambda n: f"start {n}",
        )
        told = self.supervisors[host] = Supervisor(
            job, lambda line: self.story.tell(f"{host} says: {line}"), lambda _: None
        )
        ending = await told.run()
        self.story.tell(f"{host} ended: {ending}")
        del self.running[host]
        if ending.startswith("refused"):
            assert "another" in ending, f"{host} was {ending}"
            self.versions.clear()  # somebody installs one version on all of them
            self.restart_all()
        elif host == "h0":
            self.ended = ending
            self._check_end(ending)
        else:  # as clusters do, until the job itself has ended
            self.later(host, 5.0)
        return ending

    def _check_end(self, ending: str) -> None:
        self.check_log()
        if ending != "finished":
            assert ending == "preempted" or ending.startswith("gave up"), ending
            if ending == "preempted" and not self.calm:  # the cluster starts it again
                self.ended = ""
                self.restart_all()
            return
        last = self.folder / "checkpoints" / str(self.steps)
        found = seal.damage(last)
        assert found is None or last.name in self.corrupted, f"the run finished, {last}: {found}"

    def restart_all(self) -> None:
        for host in [f"h{i}" for i in range(self.num_hosts)]:
            self.crash(host, silently=False)
            self.later(host, 5.0)

    def later(self, host: str, seconds: float) -> None:
        self.loop.call_later(seconds, self.boot, host)

    def crash(self, host: str, *, silently: bool) -> None:
        """All of it at once: workers hold the other end of their supervisor's pipe."""
        if host in self.running or host in self.supervisors:
            self.running.pop(host, None)
            for process in [p for p in self.processes if p.host == host]:
                process.is_muted = True
                process.end(-9)
            self.loop.network.crash(host, silently=silently)

    def start(self, words: list[str], context: Context) -> Process:
        if not self.calm and self.story.happens(0.02):
            raise OSError(12, "Cannot allocate memory")
        here = [p for p in self.processes if p.host == HOST.get() and p.code is None]
        address = words[words.index("--coordinator") + 1]
        before = [p for p in here if p.name != address]
        assert not before, f"workers of {before[0].name} live when those of {address} begin"
        process = Process(self.loop, address)
        worker = Worker(process, words)
        self.processes.append(process)
        attempt = self.attempts.get(worker.coordinator)
        if attempt is None:
            attempt = self.attempts[worker.coordinator] = Attempt(self, len(self.attempts) + 1)
            own = Context()
            own.run(HOST.set, "cluster")
            self.loop.create_task(attempt.run(), context=own).add_done_callback(self.loop.judge)
        attempt.workers.append(worker)
        attempt.workers.sort(key=lambda w: w.index)
        return process

    # What goes wrong

    async def chaos(self) -> None:
        until = self.loop.time() + self.story.draw.uniform(5.0, _CALM_AFTER_S)
        faults = [getattr(self, name) for name in dir(self) if name.startswith("fault_")]
        often = self.story.draw.choice((0.5, 3.0, 10.0))
        while self.loop.time() < until and not self.ended:
            await asyncio.sleep(self.story.draw.expovariate(1 / often))
            self.story.draw.choice(faults)()
        self.story.tell("from now on nothing goes wrong")
        self.calm, self.disk.is_full, self.disk.errors = True, False, 0.0
        self.loop.network.tampers = 0.0
        self.loop.network.cut.clear()
        until = self.loop.time() + _ENDS_WITHIN_S
        while not self.ended:
            assert self.loop.time() < until, "the run neither ends nor goes on"
            await asyncio.sleep(1.0)

    def _host(self) -> str:
        return f"h{self.story.draw.randrange(self.num_hosts)}"

    def fault_crash(self) -> None:
        host, silently = self._host(), self.story.happens(0.5)
        self.story.tell(f"{host} is gone" + (" and nobody is told" if silently else ""))
        self.crash(host, silently=silently)
        self.later(host, self.story.draw.uniform(0.5, 60.0))

    def fault_worker(self) -> None:
        there = [w for a in self.attempts.values() for w in a.workers if w.is_there]
        if there:
            worker = self.story.draw.choice(there)
            how = self.story.draw.choice(("dies", "hangs"))
            self.story.tell(f"process {worker.index} of attempt {worker.attempt} {how}")
            worker.hangs = how == "hangs"
            if how == "dies":
                worker.process.end(-11)

    def fault_line(self) -> None:
        self.loop.network.break_one()

    def fault_partition(self) -> None:
        one, other = self._host(), self._host()
        if one != other:
            self.story.tell(f"nothing comes from {one} to {other}")
            cut = self.loop.network.cut
            cut.add((one, other))
            self.loop.call_later(self.story.draw.uniform(1, 90), lambda: cut.discard((one, other)))

    def fault_middleman(self) -> None:
        self.loop.network.tampers = self.story.draw.choice((0.0, 0.05, 0.3))
        self.story.tell(f"a middle man changes {self.loop.network.tampers:.0%} of what is said")

    def fault_clock(self) -> None:
        self.wall += self.story.draw.uniform(-1e4, 1e4)
        if self.story.happens(0.5):
            seconds = self.story.draw.uniform(0.1, 40.0)
            self.story.tell(f"all clocks jump by {seconds:.1f} s")
            self.loop.jump(seconds)

    def fault_disk(self) -> None:
        kind = self.story.draw.choice(("full", "errors", "well"))
        self.disk.is_full, self.disk.errors = kind == "full", 0.2 * (kind == "errors")
        self.story.tell(f"the disk: {kind}")

    def fault_damage(self) -> None:
        found = sorted(Path(self.folder).glob("checkpoints/*/*.bin"))
        files = [path for path in found if seal.is_sealed(path.parent)]
        if files:
            path = self.story.draw.choice(files)
            self.story.tell(f"{path.parent.name}/{path.name} is damaged")
            self.corrupted = self.corrupted | {path.parent.name}
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    def fault_version(self) -> None:
        host = self._host()
        self.versions[host] = "jax 2"
        self.story.tell(f"{host} has another version from its next start on")

    def fault_signal(self) -> None:
        host = self._host()
        handler = self.loop.signals.get((host, signal.SIGTERM))
        if handler is not None:
            self.story.tell(f"{host} is told to stop")
            try:
                handler()
            except SystemExit:
                self.crash(host, silently=False)
                self.later(host, 5.0)

    @contextmanager
    def injected(self) -> Generator[None]:
        """The loop's clock, this cluster's disk and facts in the product's modules."""
        clock = SimpleNamespace(monotonic=self.loop.time)
        wall = SimpleNamespace(time=lambda: self.wall + self.loop.time())
        put: list[tuple[Any, str, Any]] = [
            (leader, "time", clock),
            (processes, "time", clock),
            (events, "time", wall),
            (events, "os", self.disk),
            (seal, "os", self.disk),
            (supervisor, "facts_of", self.facts),
            (supervisor, "free_port", self.free_port),
        ]
        with ExitStack() as stack:
            for module, name, value in put:
                stack.enter_context(patch.object(module, name, value))
            yield


def simulate(story: Story) -> None:
    """A run from its start to its end."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        cluster = Cluster(story, Path(folder))
        with cluster.injected():
            for number in range(cluster.num_hosts):
                cluster.loop.call_later(story.draw.uniform(0, 3), cluster.boot, f"h{number}")
            cluster.loop.run_all(cluster.chaos())


def _memory() -> str | None:
    """Files that no disk has to keep, where the system has a place for them."""
    with suppress(OSError):
        if Path("/dev/shm").is_dir():
            return "/dev/shm"
    return None
