# pyright: reportUnknownMemberType=false
"""An event loop without a machine: time is a number, sockets and processes are records.

In: coroutines of the product. Out: what they do, in an order that a `Story` decides. Nothing in the
product knows: it asks asyncio for connections, servers, processes and signals, as ever.
"""

import asyncio
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar
from types import SimpleNamespace
from typing import Any, cast

from .story import Story

HOST: ContextVar[str] = ContextVar("HOST", default="nobody")  # on which a task runs
_HIGH = 1 << 16  # bytes under way that fill a socket
_RETRANSMIT_S = (30.0, 900.0)  # until a sender gives up a peer that acknowledges nothing
_CONNECT_S = 130.0  # the same for one that never answers
Address = tuple[str, int]
Factory = Callable[[], asyncio.BaseProtocol]


class StuckForEver(Exception):
    """Nobody will ever do anything again."""


class SimLoop(asyncio.BaseEventLoop):
    """Time passes when nothing is left to do; after every round `after_each` is asked."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self.story, self._now = story, 1000.0
        self._selector = self
        self._clock_resolution = 1e-6
        self.after_each: Callable[[], None] = lambda: None
        self.network = Network(self)
        self.tasks: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        self.signals: dict[tuple[str, int], Callable[[], object]] = {}
        self.start_process: Callable[[list[str], Context], Process] | None = None
        self._dialled: dict[int, Address] = {}
        self.set_task_factory(self._task)
        self.failure: BaseException | None = None
        self.set_exception_handler(self._broken)
        story.now = self.time

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """All were suspended: every timer that was due meanwhile is late."""
        self._now += seconds

    def run_all(self, *main: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs these to their end, and nothing after."""
        try:
            with suppress(RuntimeError):  # it was stopped, by what is raised next
                return self.run_until_complete(self._all(main))
            assert self.failure is not None
            raise self.failure
        finally:
            for task in [t for tasks in self.tasks.values() for t in tasks if not t.done()]:
                task.cancel()
            for link in self.network.links:
                link.is_done = True
            self.after_each = lambda: None
            for _ in range(20):
                self.call_soon(self.stop)
                self.run_forever()
            self.close()

    async def _all(self, main: tuple[Coroutine[Any, Any, Any], ...]) -> list[Any]:
        return await asyncio.gather(*main)

    def _task(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **more)
        context: Context | None = more.get("context")
        host = HOST.get() if context is None else context.get(HOST, "nobody")
        self.tasks[host].add(task)
        task.add_done_callback(self.tasks[host].discard)
        return task

    def judge(self, task: asyncio.Task[Any]) -> None:
        """A task that must not end in an error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(self, {"exception": error})

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.failure is None and isinstance(error, Exception):
            self.failure = error
            self.stop()

    # What the base class asks of a real machine

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckForEver
        self._now += max(timeout, 1e-6)  # to run what is ready takes time, too
        return []

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # pyright: ignore
        self.after_each()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.signals[HOST.get(), sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop((HOST.get(), sig), None) is not None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self.story.draw.uniform(0, 0.05), work)
        return future

    # Sockets

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await self.network.dial(tuple(address))
        self._dialled[sock.fileno()] = tuple(address)

    async def create_connection(  # type: ignore[override]  # pyright: ignore
        self,
        protocol_factory: Factory,
        host: str | None = None,
        port: int | None = None,
        *,
        sock: socket.socket | None = None,
        **more: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if sock is None:
            address = (cast(str, host), cast(int, port))
            await self.network.dial(address)
        else:
            address = self._dialled.pop(sock.fileno())
            sock.close()
        return self.network.connect(protocol_factory, address)

    async def create_server(  # type: ignore[override]  # pyright: ignore
        self, protocol_factory: Factory, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        sock = more.get("sock")
        address = (host, port) if sock is None else sock.getsockname()
        return self.network.listen(protocol_factory, address)

    async def subprocess_exec(  # type: ignore[override]  # pyright: ignore
        self, protocol_factory: Factory, *args: Any, **more: Any
    ) -> Any:
        assert self.start_process is not None
        context = Context()
        context.run(HOST.set, HOST.get())
        process = self.start_process([str(a) for a in args], context)
        protocol = cast(asyncio.SubprocessProtocol, protocol_factory())
        process.protocol = protocol
        protocol.connection_made(process)
        return process, protocol


class Process(asyncio.SubprocessTransport):
    """A worker: what it says goes to who started it; it is killed at once."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        super().__init__()
        self._loop, self.code, self.host, self.name = loop, None, HOST.get(), name
        self.protocol: asyncio.SubprocessProtocol | None = None
        self._ended = loop.create_future()
        self.on_signal: Callable[[int], None] = lambda number: None
        self.is_muted = False  # its supervisor is gone

    code: int | None

    def say(self, line: bytes) -> None:
        if self.code is None and not self.is_muted and self.protocol is not None:
            self.protocol.pipe_data_received(1, line)

    def end(self, code: int) -> None:
        if self.code is not None:
            return
        self.code = code
        self._loop.call_soon(self._closed)

    def _closed(self) -> None:
        if self.protocol is not None and not self.is_muted:
            self.protocol.pipe_connection_lost(1, None)
            self.protocol.process_exited()
        if not self._ended.done():
            self._ended.set_result(self.code)

    def get_pid(self) -> int:
        return 1

    def get_returncode(self) -> int | None:
        return self.code

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        if fd == 1:
            return asyncio.Transport()
        return None

    def send_signal(self, signal: int) -> None:
        if self.code is None:
            self.on_signal(int(signal))

    def kill(self) -> None:
        self.end(-9)

    def close(self) -> None:
        """Its pipes are records."""

    async def _wait(self) -> int | None:
        return await asyncio.shield(self._ended)


class Network:
    """Streams between hosts: late, held up one way, broken, and by a hostile middle man changed."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop, self._story = loop, loop.story
        self._servers: dict[Address, tuple[Factory, str, Context]] = {}
        self.cut: set[tuple[str, str]] = set()  # from whom to whom nothing comes through
        self.dead: set[str] = set()
        self.links: list[Link] = []
        self.latency_s = (0.0001, 0.02)
        self.tampers = 0.0  # chance that a piece is lost, said twice, or after the next
        self._port = 40000

    def listen(self, factory: Factory, address: Address) -> Any:
        context = Context()
        host = HOST.get()
        context.run(HOST.set, host)
        if address[1] == 0:
            self._port += 1
            address = (address[0], self._port)
        if address in self._servers:
            raise OSError(98, "Address already in use")
        self._servers[address] = (factory, host, context)
        name = SimpleNamespace(getsockname=lambda: address)

        def close() -> None:
            if self._servers.get(address, (None,))[0] is factory:
                del self._servers[address]

        async def done() -> None:
            pass

        return SimpleNamespace(sockets=[name], close=close, wait_closed=done)

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cut

    async def dial(self, address: Address) -> None:
        """Until somebody answers; raises if nobody listens, or nothing comes through."""
        here = HOST.get()
        await asyncio.sleep(self._story.draw.uniform(*self.latency_s))
        began = self._loop.time()
        found = self._servers.get(address)
        there = found[1] if found else self._loop_host(address)
        while self.is_cut(here, there) or self.is_cut(there, here) or there in self.dead:
            if self._loop.time() - began > _CONNECT_S:
                raise TimeoutError(110, "Connection timed out")
            await asyncio.sleep(1.0)
            found = self._servers.get(address)
        if found is None:
            raise ConnectionRefusedError(111, "Connection refused")

    def _loop_host(self, address: Address) -> str:
        return address[0]

    def connect(
        self, factory: Factory, address: Address
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        here, found = HOST.get(), self._servers.get(address)
        if found is None:
            raise ConnectionRefusedError(111, "Connection refused")
        make, there, context = found
        own = Context()
        own.run(HOST.set, here)
        one, other = Link(self._loop, here, there, own), Link(self._loop, there, here, context)
        one.peer, other.peer = other, one
        self.links += [one, other]
        protocol = factory()
        other.open(make)
        one.set_protocol(protocol)
        protocol.connection_made(one)
        return one, protocol

    def crash(self, host: str, *, silently: bool) -> None:
        """All of a host is gone; its peers are told by their own system's RST, or never."""
        self.dead.add(host)
        for address in [a for a, (_, name, _) in self._servers.items() if name == host]:
            del self._servers[address]
        for link in [link for link in self.links if link.here == host and not link.is_done]:
            link.is_done = True
            if not silently and link.peer is not None:
                link.peer.arrives("reset", b"")
        for task in list(self._loop.tasks[host]):
            task.cancel()
        for key in [key for key in self._loop.signals if key[0] == host]:
            del self._loop.signals[key]

    def boot(self, host: str) -> None:
        self.dead.discard(host)

    def break_one(self) -> None:
        """A connection ends at both of its ends."""
        there = [link for link in self.links if not link.is_done]
        if there:
            link = self._story.draw.choice(there)
            self._story.tell(f"the connection {link.here} -> {link.there} breaks")
            assert link.peer is not None
            link.peer.arrives("reset", b"")
            link.arrives("reset", b"")


class Link(asyncio.Transport):
    """One end of a stream; what is written arrives at the other, in order."""

    peer: "Link | None" = None

    def __init__(self, loop: SimLoop, here: str, there: str, context: Context) -> None:
        super().__init__({"peername": (there, 1), "sockname": (here, 1)})
        self._loop, self.here, self.there, self.context = loop, here, there, context
        self._protocol: asyncio.Protocol | None = None
        self.is_done = False  # nothing is told to the protocol any more
        self._is_closing = self._is_reading_paused = self._is_full = False
        self._came: deque[tuple[str, bytes]] = deque()
        self._under_way: deque[tuple[float, str, bytes]] = deque()  # to this end
        self._bytes = 0  # under way to this end
        self._held_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._later: bytes | None = None  # a piece that comes after the next

    def open(self, make: Factory) -> None:
        def accept() -> None:
            if not self.is_done:
                protocol = cast(asyncio.Protocol, make())
                self.set_protocol(protocol)
                protocol.connection_made(self)
                self._deliver()

        self._loop.call_soon(accept, context=self.context)

    # What a protocol asks of a transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing or self.is_done

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._loop.call_soon(self._deliver, context=self.context)

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer is None else self.peer._bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """One size for all."""

    def can_write_eof(self) -> bool:
        return False

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(d) for d in list_of_data))

    def write(self, data: Any) -> None:
        if self.is_closing() or not data:
            return
        assert self.peer is not None
        for piece in self._tampered(bytes(data)):
            self.peer.arrives("data", piece)
        if not self._is_full and self.peer._bytes > _HIGH and self._protocol is not None:
            self._is_full = True
            self._protocol.pause_writing()

    def _tampered(self, data: bytes) -> list[bytes]:
        story, chance = self._loop.story, self._loop.network.tampers
        found = [data]
        if chance and story.happens(chance):
            how = story.draw.choice(("lost", "said twice", "said later"))
            story.tell(f"{self.here} -> {self.there}: {len(data)} bytes are {how}")
            if how == "said later" and self._later is None:
                self._later = data
                return []
            found = [data, data] if how == "said twice" else []
        if self._later is not None:
            found.append(self._later)
            self._later = None
        return found

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            assert self.peer is not None
            self.peer.arrives("end", b"")
            self._loop.call_soon(self._lost, None, context=self.context)

    def abort(self) -> None:
        if not self.is_done:
            self._is_closing = True
            assert self.peer is not None
            self.peer.arrives("reset", b"")
            self._loop.call_soon(self._lost, None, context=self.context)

    # On the way

    def arrives(self, kind: str, data: bytes) -> None:
        """Something for this end, later and in order."""
        story, latency = self._loop.story, self._loop.network.latency_s
        at = self._loop.time() + story.draw.uniform(*latency)
        if self._under_way:
            at = max(at, self._under_way[-1][0])
        self._under_way.append((at, kind, data))
        self._bytes += len(data)
        self._wait(at)

    def _wait(self, at: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._bring, context=self.context)

    def _bring(self) -> None:
        """What is due by now; while the way is cut, it is tried again as TCP does."""
        self._timer = None
        now = self._loop.time()
        if self.peer is not None and self.here in self._loop.network.dead:
            if self._gives_up(now):
                return
            self._wait(now + 1.0)
            return
        if self._loop.network.is_cut(self.there, self.here):
            if not self._gives_up(now):
                self._wait(now + 1.0)
            return
        self._held_since = None
        if self.is_done and self._under_way and self.peer is not None:  # nobody has it any more
            self._under_way.clear()
            self.peer.context.run(self.peer._lost, ConnectionResetError(104, "reset by peer"))
            return
        while self._under_way and self._under_way[0][0] <= now + 1e-9:
            _, kind, data = self._under_way.popleft()
            self._bytes -= len(data)
            self._came.append((kind, data))
        if self._under_way:
            self._wait(self._under_way[0][0])
        peer = self.peer
        if peer is not None and peer._is_full and self._bytes < _HIGH // 2:
            peer._is_full = False
            if not peer.is_done and peer._protocol is not None:
                peer.context.run(peer._protocol.resume_writing)
        self._deliver()

    def _gives_up(self, now: float) -> bool:
        """The sender's system does, after a while; a piece that nobody acknowledged is lost."""
        self._held_since = self._held_since or now
        if now - self._held_since < self._loop.story.draw.uniform(*_RETRANSMIT_S):
            return False
        self._under_way.clear()
        self._bytes = 0
        if self.peer is not None and not self.peer.is_done:
            error = TimeoutError(110, "Connection timed out")
            self._loop.call_soon(self.peer._lost, error, context=self.peer.context)
        return True

    def _deliver(self) -> None:
        while self._came and self._protocol is not None and not self.is_done:
            if self._is_reading_paused and self._came[0][0] == "data":
                return
            kind, data = self._came.popleft()
            if kind == "data":
                if self._is_closing:
                    continue
                self._protocol.data_received(data)
            elif kind == "reset":
                self._lost(ConnectionResetError(104, "Connection reset by peer"))
            elif not self._protocol.eof_received():
                self.close()

    def _lost(self, error: Exception | None) -> None:
        if not self.is_done:
            self.is_done = True
            if self._protocol is not None:
                self._protocol.connection_lost(error)
