"""Prefill on one server, decode on another: engines, runners and their talk, when it goes wrong.

In: a `Story`. Out: nothing, or a violation: a token that the model would not make, a job without an
end, a lease or block that stays. The device is a model: a token follows from all KV of its row.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from contextvars import Context
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from aiohttp import web

from rooflight.batching.request import Admission
from rooflight.serve.disaggregated import prefill_client
from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.prefill_client import PrefillClient
from rooflight.serve.disaggregated.route import PrefillServer
from rooflight.serve.disaggregated.transfer import BytesCarrier, Parcel
from rooflight.serve.engine import run, runner
from rooflight.serve.engine.config import EngineConfig
from rooflight.serve.engine.device import Tile
from rooflight.serve.engine.request import EngineRequest, Finish
from rooflight.serve.engine.runner import Runner
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.exchange import Exchange, Inbox
from rooflight.serve.server.front import open_front
from rooflight.serve.server.logs import Log

from .loop import HOST, SimLoop
from .scheduling import check
from .story import Story

_THERE, _HERE = "10.0.0.1", "10.0.0.2"
_VOCAB, _GROUPS, _ENDS_WITHIN_S = 251, 3, 300.0
Array = np.ndarray[Any, Any]


def _kv(token: int, at: int) -> list[int]:
    return [(token * 7919 + at * 104729 + group * 1299709 + 1) % 99991 for group in range(_GROUPS)]


def _next(kv: Array) -> int:
    """From all of [groups, positions]."""
    numbers: list[int] = kv.flatten().tolist()
    return sum(at * number for at, number in enumerate(numbers, 3)) % _VOCAB


def expected(job: EngineRequest) -> list[int]:
    tokens = list(job.prompt)
    for _ in range(job.max_new_tokens):
        kv = np.array([_kv(token, at) for at, token in enumerate(tokens)], np.int64).T
        tokens.append(_next(np.ascontiguousarray(kv)))
    return tokens[len(job.prompt) :]


class Device:
    """The verbs of an engine's device on arrays of numbers."""

    def __init__(self, program: Any, params: Any, config: EngineConfig) -> None:
        self.config, self.num_compilations, self.breaks = config, 0, False
        self.pages = SimpleNamespace(groups=list(range(_GROUPS)), like=self._like)
        self.reset()

    def reset(self) -> None:
        config = self.config
        self._kv: Array = np.zeros((_GROUPS, config.num_blocks, config.block_tokens), np.int64)
        self._tables = np.zeros((config.max_rows, config.max_blocks), np.int64)
        self._last = [0] * config.max_rows

    def warm(self) -> None:
        """Nothing is compiled."""

    def open_row(self, row: int, *how: Any) -> None:
        """All rows draw alike."""

    def write_table(self, row: int, start: int, blocks: Sequence[int]) -> None:
        self._tables[row, start : start + len(blocks)] = blocks

    def prefill(self, tiles: Sequence[Tile]) -> Any:
        made = [self._run(tile.row, tile.start, tile.tokens, tile.is_last) for tile in tiles]
        return self._found(made)

    def generate(self, rows: Sequence[int], starts: Sequence[int]) -> Any:
        return self._found(
            [self._run(r, at, [self._last[r]], True) for r, at in zip(rows, starts, strict=True)]
        )

    def read(self, blocks: Sequence[int], group: int) -> dict[str, Array]:
        return {"kv": self._kv[group, list(blocks)].copy()}

    def insert(self, blocks: Sequence[int], group: int, values: dict[str, Array]) -> None:
        self._kv[group, list(blocks)] = values["kv"]

    def start_row(self, row: int, token: int) -> None:
        self._last[row] = token

    def _like(self, num_blocks: int, group: int) -> dict[str, Array]:
        return {"kv": np.zeros((num_blocks, self.config.block_tokens), np.int64)}

    def _run(self, row: int, start: int, tokens: Sequence[int], is_last: bool) -> int:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("the device broke")
        size = self.config.block_tokens
        for at, token in enumerate(tokens, start):
            self._kv[:, self._tables[row, at // size], at % size] = _kv(token, at)
        stop = start + len(tokens)
        blocks = self._tables[row, : -(-stop // size)]
        made = _next(self._kv[:, blocks].reshape(_GROUPS, -1)[:, :stop])
        if is_last:
            self._last[row] = made
        return made

    def _found(self, made: list[int]) -> Any:
        array = np.zeros((len(made), 2), np.int32)
        array[:, 0] = made
        return SimpleNamespace(read=lambda: array)


class Carrier(BytesCarrier):
    """Values by copy, on no device."""

    def receive(self, parcel: Parcel, like: Any) -> Any:
        found = {"kv": np.frombuffer(parcel.parts[0], np.int64).reshape(like["kv"].shape)}
        return SimpleNamespace(is_ready=lambda: True, values=lambda: found)


class Server:
    """One engine, its runner and who hears of its deltas."""

    def __init__(self, world: "World", name: str) -> None:
        draw, self.world, self.name = world.story.draw, world, name
        config = EngineConfig(
            max_rows=draw.randint(1, 4),
            block_tokens=world.block_tokens,
            num_blocks=-(-world.most // world.block_tokens) + draw.randint(0, 12),
            max_step_tokens=16,
            max_model_tokens=world.most,
            tile_tokens=4,
            moves_blocks=True,
        )
        program: Any = SimpleNamespace(model=SimpleNamespace(vocab=_VOCAB))
        self.engine, self.exchange = DisaggregatedEngine(program, cast(Any, {}), config), Exchange()
        self.exchange.attach()
        self.runner = Runner(self.engine, self.exchange.deliver)
        self.pause_s = 0.01

    async def steps(self) -> None:
        """What the runner's thread does, at this loop's pace."""
        turn: Any = self.runner
        turn.is_warm = True
        while True:
            if turn._has_news():
                turn._wait()
                turn._step()
                check(self.engine.scheduler)
            await asyncio.sleep(self.pause_s)


class World:
    """Jobs of one server, whose prompts another computes, and what goes wrong between the two."""

    def __init__(self, story: Story) -> None:
        self.story, self.loop = story, SimLoop(story)
        self.block_tokens, self.most = story.draw.choice((2, 4, 8)), 48
        self.there: Server | None = None
        self.here: Server | None = None
        self.client: PrefillClient | None = None
        self.failed = 0  # faults of the device here

    def on(self, host: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = Context()
        context.run(HOST.set, host)
        task = self.loop.create_task(work, context=context)
        task.add_done_callback(self.loop.judge)
        return task

    def bounds(self) -> Bounds:
        return Bounds(_VOCAB, self.most)

    async def serve_there(self) -> None:
        """The server that prefills, from its start on."""
        server = self.there = Server(self, _THERE)
        side = PrefillServer(server.engine, server.runner, server.exchange, Carrier(), "mark")
        ids = iter(range(10**6))

        async def talk(request: web.Request) -> web.StreamResponse:
            return await side.talk(request, self.bounds(), next(ids), lambda _: nullcontext())

        app = web.Application()
        app.router.add_get("/prefill", talk)
        sock: Any = SimpleNamespace(family=2, type=1, proto=6, getsockname=lambda: (_THERE, 80))
        await open_front(app, sock)
        await server.steps()

    async def serve_here(self, is_ready: asyncio.Event) -> None:
        server = self.here = Server(self, _HERE)
        log: Any = SimpleNamespace(event=self.logged)
        self.client = PrefillClient(
            server.engine,
            server.runner,
            Carrier(),
            cast(Log, log),
            url=f"http://{_THERE}:80",
            key=None,
            mark="mark",
            timeout_s=self.story.draw.choice((1.0, 5.0)),
            bounds=self.bounds(),
        )
        self.client.start()
        is_ready.set()
        try:
            await server.steps()
        finally:
            await self.client.stop()

    def logged(self, name: str, **fields: object) -> None:
        self.story.tell(f"here: {name} {fields}")

    async def ask(self, job: EngineRequest, *, leaves: bool) -> None:
        """One job; its tokens must be those that the model makes."""
        assert self.here is not None and self.client is not None
        inbox, made = Inbox(), list[int]()
        self.here.exchange.open(job.id, inbox)
        while self.client.submit(job) is not Admission.ADMITTED:
            await asyncio.sleep(1.0)
        if leaves:
            await asyncio.sleep(self.story.draw.uniform(0, 1))
            self.client.cancel(job.id)
        wanted = expected(job)
        finish: Finish | None = None
        while finish is None:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                deltas = await inbox.take()
            for delta in deltas:
                assert finish is None, f"job {job.id} goes on after its end"
                made += delta.tokens
                finish = delta.finish
        self.story.tell(f"job {job.id}: {len(made)} tokens, {finish}")
        assert made == wanted[: len(made)], f"job {job.id} made {made}, not {wanted}"
        if finish is Finish.LENGTH:
            assert made == wanted, f"job {job.id} ended after {len(made)} of {len(wanted)}"
        else:
            fair = leaves if finish is Finish.CANCELLED else self.failed
            assert fair, f"job {job.id} was {finish} for nothing"

    async def run(self) -> None:
        draw, is_ready = self.story.draw, asyncio.Event()
        self.on(_THERE, self.serve_there())
        self.on(_HERE, self.serve_here(is_ready))
        await is_ready.wait()
        family = [tuple(draw.randrange(_VOCAB) for _ in range(16)) for _ in range(2)]
        jobs: list[asyncio.Task[Any]] = []
        for id in range(draw.randint(3, 9)):
            await asyncio.sleep(draw.expovariate(4.0))
            if self.story.happens(0.5):
                self.fault()
            more = tuple(draw.randrange(_VOCAB) for _ in range(draw.randint(1, 20)))
            job = EngineRequest(id, draw.choice(((), *family)) + more, draw.randint(1, 10))
            jobs.append(self.on(_HERE, self.ask(job, leaves=self.story.happens(0.1))))
        await asyncio.gather(*jobs)
        self.loop.network.cut.clear()
        self.loop.network.tampers = 0.0
        await asyncio.sleep(30.0)  # longer than any lease
        for server in (self.there, self.here):
            assert server is not None
            scheduler = server.engine.scheduler
            leases, ids = list(scheduler.leases), server.engine.ids
            assert not leases and not ids, f"{server.name}: leases {leases} and jobs {ids} stay"
            free = scheduler.pool.num_free
            assert free == scheduler.pool.num_blocks, f"{server.name}: {free} blocks are free"

    def fault(self) -> None:
        story, network = self.story, self.loop.network
        faults: list[Callable[[], None]] = [
            self._crash,
            self._pause,
            lambda: self._break(self.there),
            lambda: self._break(self.here),
            network.break_one,
            lambda: setattr(network, "tampers", story.draw.choice((0.0, 0.1, 0.4))),
            lambda: self._cut(_HERE, _THERE),
            lambda: self._cut(_THERE, _HERE),
            lambda: self.loop.jump(story.draw.uniform(0.1, 20)),
        ]
        kind = story.draw.randrange(len(faults))
        story.tell(f"fault {kind}")
        faults[kind]()

    def _crash(self) -> None:
        self.loop.network.crash(_THERE, silently=self.story.happens(0.5))
        seconds = self.story.draw.uniform(0.1, 10)
        self.loop.call_later(seconds, self._restart)

    def _restart(self) -> None:
        if _THERE in self.loop.network.dead:
            self.loop.network.boot(_THERE)
            self.on(_THERE, self.serve_there())

    def _pause(self) -> None:
        if self.there is not None:
            self.there.pause_s = self.story.draw.choice((0.01, 0.3, 3.0))

    def _break(self, server: Server | None) -> None:
        if server is not None:
            device: Any = server.engine.device
            device.breaks = True
            self.failed += server is self.here

    def _cut(self, one: str, other: str) -> None:
        cut = self.loop.network.cut
        cut.add((one, other))
        self.loop.call_later(self.story.draw.uniform(0.5, 20), lambda: cut.discard((one, other)))


class _NoHost:
    """No block is kept in host memory."""

    def __init__(self, _: object) -> None: ...

    def clear(self) -> None: ...


class _NoThread:
    """A runner's thread: `Server.steps` takes its turns."""

    def __init__(self, **_: object) -> None: ...


def simulate(story: Story) -> None:
    """A few jobs, to the last of them."""
    world = World(story)
    clock = SimpleNamespace(monotonic=world.loop.time)
    threads = SimpleNamespace(Thread=_NoThread, Condition=threading.Condition)
    put: list[tuple[Any, str, Any]] = [
        (run, "Device", Device),
        (run, "HostBlocks", _NoHost),
        (run, "time", clock),
        (runner, "time", clock),
        (runner, "threading", threads),
        (prefill_client, "time", clock),
    ]
    with ExitStack() as stack:
        for module, name, value in put:
            stack.enter_context(patch.object(module, name, value))
        world.loop.run_all(world.run())
