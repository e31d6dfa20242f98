"""The supervisor of one host: does what the leader says, and outlives the workers.

In: a `HostJob`. Out: an exit code. Host 0 also leads. It owns no device, so it never has to die
with them. When the leader is gone its workers end, and it waits for a leader to come back; run the
same command again on host 0 and all goes on from the last checkpoint.
"""

import asyncio
import fcntl
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import IO

from rooflight.errors import UsageError
from rooflight.plan.file.codec import encode
from rooflight.train.events import EventLog, read_events
from rooflight.train.facts import facts_of
from rooflight.train.leader import Leader
from rooflight.train.lines import Connection, Message, meet, run_secret
from rooflight.train.processes import HangTimeout, Processes
from rooflight.train.run import Run, claim
from rooflight.train.worker import PREEMPTED

_LOCK = "lock"
_AGAIN_S = 1.0  # between tries to reach the leader


@dataclass(frozen=True, slots=True)
class HostJob:
    """A run on hosts: which one this is, and how it is watched."""

    run: Run
    host: int
    num_hosts: int
    processes: int  # of each host
    leader: tuple[str, int]  # where host 0 listens
    cpu_devices: int | None  # of each process, standing for chips; None: its own
    retries: int
    hang_timeout: HangTimeout
    start: Callable[[int], str]  # the command of a host


def supervise(
    job: HostJob, say: Callable[[str], None], show: Callable[[dict[str, object]], None]
) -> int:
    """Runs the job to its end; 0 finished, 75 preempted, 1 given up."""
    with _held(job):
        if job.host == 0:
            claim(job.run)
        ending = asyncio.run(Supervisor(job, say, show).run())
    say(ending)
    return {"finished": 0, "preempted": PREEMPTED}.get(ending, 1)


class _held:
    """The run's folder belongs to one supervisor of this host; a dead one's lock is free."""

    def __init__(self, job: HostJob) -> None:
        self._path = job.run.folder / f"{_LOCK}-{job.host}"
        self._file: IO[bytes] | None = None

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self._path.parent} is in use: another supervisor runs there",
                hint="wait for it, or give another folder with --out",
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()


class Supervisor:
    """Of one host; `run` gives the words with which the run ended."""

    def __init__(
        self, job: HostJob, say: Callable[[str], None], show: Callable[[dict[str, object]], None]
    ) -> None:
        self._job, self._say, self._show = job, say, show
        self._facts = facts_of(
            job.run, None if job.cpu_devices is None else job.cpu_devices * job.processes
        )
        self._processes: Processes | None = None
        self._watch: asyncio.Task[None] | None = None
        self._line: Connection | None = None
        self._stopping = False

    async def run(self) -> str:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        try:
            if self._job.host == 0:
                return await self._lead()
            return await self._follow()
        finally:
            await self._end_workers()

    def _told_to_stop(self) -> None:
        """Once: workers save and end. Twice: at once."""
        if self._stopping or self._processes is None:
            raise SystemExit(PREEMPTED)
        self._stopping = True
        self._say("told to stop: the state is saved after this step; once more ends it at once")
        self._send({"stopping": True})
        self._processes.signal(signal.SIGTERM)

    async def _lead(self) -> str:
        address, port = self._job.leader
        last = max((int(str(e["attempt"])) for e in read_events(self._job.run.folder)), default=0)
        log = EventLog(self._job.run.folder, attempt=last + 1)
        secret = run_secret(self._job.run.folder, is_leader=True)
        assert secret is not None
        leader = Leader(
            self._facts,
            secret,
            self._job.num_hosts,
            self._job.retries,
            log.tell,
            self._say,
            self._job.start,
            lambda: f"{address}:{free_port(address)}",
            attempt=last,
        )
        server = await listen(leader.accept, address, port, self._say)
        bound = server.sockets[0].getsockname()[1]
        follow = asyncio.create_task(self._follow(bound))
        lead = asyncio.create_task(leader.lead())
        await asyncio.wait([follow, lead], return_when=asyncio.FIRST_COMPLETED)
        ending = await lead if lead.done() else follow.result()
        leader.dismiss(ending)
        await asyncio.wait([follow], timeout=_AGAIN_S)
        server.close()
        await leader.gone()
        return ending

    async def _follow(self, port: int | None = None) -> str:
        """Does what the leader says, until it says how the run ended."""
        address = self._job.leader[0], port or self._job.leader[1]
        said = ""
        while True:
            self._line, why = await self._call(address)
            if self._line is not None:
                self._line.send({"host": self._job.host, "facts": encode(self._facts)})
                why = "host 0 is gone; its workers' peers were ended"
                while (message := await self._line.receive()) is not None:
                    if "later" in message:
                        why = f"waits: {message['later']}"
                        break
                    said = ""
                    if (ending := await self._obey(message)) is not None:
                        self._line.close()
                        return ending
                self._line.close()
                await self._end_workers()
            if why != said:
                self._say(why)
            said = why
            await asyncio.sleep(_AGAIN_S)

    async def _call(self, address: tuple[str, int]) -> tuple[Connection | None, str]:
        """A line to host 0, or why there is none yet."""
        where = f"{address[0]}:{address[1]}"
        waits = f"waits for host 0 at {where}"
        secret = run_secret(self._job.run.folder, is_leader=False)
        if secret is None:  # host 0 makes it
            return None, waits
        try:
            reader, writer = await asyncio.open_connection(*address)
        except OSError:
            return None, waits
        line = await meet(reader, writer, secret, "host")
        if line is None:
            writer.close()
        return line, f"who listens at {where} does not know the secret of this run"

    async def _obey(self, message: Message) -> str | None:
        if "refused" in message:
            return f"refused by host 0: {message['refused']}"
        if "bye" in message:
            return str(message["bye"])
        if "go" in message:
            await self._go(int(str(message["go"])), str(message["coordinator"]))
        elif "stop" in message:
            await self._end_workers()
            self._send({"ended": "stopped"})
        return None

    async def _go(self, attempt: int, coordinator: str) -> None:
        job = self._job
        first, count = job.host * job.processes, job.num_hosts * job.processes
        fake = [] if job.cpu_devices is None else ["--cpu-devices", str(job.cpu_devices)]

        def command(index: int) -> list[str]:
            told = {"index": index, "count": count, "attempt": attempt, "coordinator": coordinator}
            flags = [word for name, value in told.items() for word in (f"--{name}", str(value))]
            return [job.run.out, *flags, *fake]

        self._processes = Processes(job.run.folder, job.hang_timeout, self._heard)
        mine = range(first, first + job.processes)
        try:
            await self._processes.start([(i, command(i)) for i in mine])
        except OSError as error:  # a full disk, no memory: for this attempt, perhaps
            why = f"host {job.host} could not start its workers: {error}"
            self._send({"ended": "failed", "why": why})
        else:
            self._watch = asyncio.create_task(self._watched(self._processes))

    async def _watched(self, processes: Processes) -> None:
        ended, why = await processes.end()
        self._send({"ended": ended, "why": why})

    def _heard(self, index: int, fact: dict[str, object]) -> None:
        if index == 0:
            self._show(fact)
            if fact.get("event") in ("step", "restored"):
                self._send({"step": fact["step"]})

    def _send(self, message: Message) -> None:
        if self._line is not None:
            self._line.send(message)

    async def _end_workers(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._processes is not None:
            await self._processes.kill()
            self._processes = None


async def listen(
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    address: str,
    port: int,
    say: Callable[[str], None],
) -> asyncio.Server:
    """At this host's own name, which a cluster may publish after it has started the host."""
    said = False
    while True:
        try:
            return await asyncio.start_server(accept, address, port)
        except socket.gaierror as error:
            if not said:
                say(f"waits for the name {address}: {error.strerror}")
            said = True
            await asyncio.sleep(_AGAIN_S)


def free_port(address: str) -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])
