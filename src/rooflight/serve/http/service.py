"""`Service`: everything behind the routes: tokenizer, engine, keys, limits; and its life.

start -> warm -> ready -> drain -> stop
"""

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rooflight.models.huggingface.read import read_hf_config
from rooflight.serve.chat.chat_template import load_template
from rooflight.serve.chat.grammar import Grammars
from rooflight.serve.chat.text import TextStream
from rooflight.serve.chat.tokens import load_tokenizer
from rooflight.serve.chat.tools import FORCED, ReplyParser
from rooflight.serve.chat.workers import WorkerThreads
from rooflight.serve.disaggregated.prefill_client import PrefillClient
from rooflight.serve.disaggregated.route import PrefillServer
from rooflight.serve.disaggregated.sides import PeerConfig, make_side
from rooflight.serve.engine.request import Allowed, EngineRequest
from rooflight.serve.engine.run import Engine
from rooflight.serve.engine.runner import Runner
from rooflight.serve.http.asked import Endpoint, GenerationRequest
from rooflight.serve.http.generation import GeneratedChoice, Generation, Port
from rooflight.serve.http.metrics import ServerMetrics
from rooflight.serve.http.protocol import make_protocol
from rooflight.serve.server.body import Bodies
from rooflight.serve.server.bounds import Bounds
from rooflight.serve.server.exchange import Exchange
from rooflight.serve.server.fairness import FairQueue, Shares
from rooflight.serve.server.front import until_ended
from rooflight.serve.server.keys import NOBODY, Allowance, Key
from rooflight.serve.server.logs import Log
from rooflight.serve.server.problem import ApiError, invalid, overloaded, unavailable
from rooflight.serve.server.waiting_limit import WaitingLimit

# Liveness means progress, readiness means warm.

_STEPS = 3


@dataclass(frozen=True, slots=True)
class Health:
    """Watches a runner; asks it nothing that could wait for the device."""

    runner: Runner
    step_seconds: float | None  # of a full step, predicted
    floor_seconds: float

    @property
    def timeout(self) -> float:
        return max(self.floor_seconds, _STEPS * (self.step_seconds or 0.0))

    @property
    def seconds_since_step(self) -> float:
        return time.monotonic() - self.runner.last_step_time

    @property
    def stalled_seconds(self) -> float:
        """Since the last step, or since there was work again; 0 with none."""
        return self.runner.stalled_seconds

    @property
    def is_live(self) -> bool:
        return not self.runner.is_dead and self.stalled_seconds <= self.timeout

    @property
    def is_ready(self) -> bool:
        return self.runner.is_warm and self.is_live


Tokens = tuple[int, ...]
T = TypeVar("T")
_SEEDS = 2**31 - 1
_WORKER_THREADS = 2
_STOP_S = 10.0  # that the last step gets
_MORE_OPEN = 64  # requests that may be read or tokenised beyond those the engine can hold


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Choices of the operator."""

    name: str  # of the model, as clients say it
    keys: tuple[Key, ...] = ()
    deadline_s: float = 600.0  # of a request, from when its body is read to its last byte
    write_s: float = 20.0  # that a reader may take to make room in its socket
    drain_s: float = 60.0  # that running requests get when the server is told to stop
    timeout_s: float = 5.0  # after which a step is stuck, unless three predicted are longer
    open_metrics: bool = False  # no key is asked for them


class Service:
    """One model, served."""

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        settings: ServerSettings,
        limit: WaitingLimit,
        log: Log,
        peer: PeerConfig | None = None,
    ) -> None:
        self.settings = settings
        self.log = log
        self.limit = limit
        self.tokenizer = load_tokenizer(folder)
        self.template = load_template(folder)
        config, vocab = engine.config, read_hf_config(folder).vocab
        bounds = Bounds(vocab, config.max_model_tokens, max_logprobs=config.max_logprobs)
        self.protocol = make_protocol(bounds, model=settings.name)
        self.exchange = Exchange()
        self.runner = Runner(engine, self.exchange.deliver)
        self.prefill_server: PrefillServer | None = None
        self._prefill_client: PrefillClient | None = None
        if peer is not None:
            side = make_side(peer, engine, self.runner, self.exchange, bounds, log)
            self.prefill_server = side if isinstance(side, PrefillServer) else None
            self._prefill_client = side if isinstance(side, PrefillClient) else None
        self.health = Health(self.runner, limit.step_seconds, settings.timeout_s)
        self.metrics = ServerMetrics(settings.name, self.runner.stats, self._gauges())
        self.bodies = Bodies()
        self.is_draining = False
        self.num_open = 0
        self.max_open = config.max_rows + config.max_waiting + _MORE_OPEN
        self._grammars = Grammars(self.tokenizer, vocab)
        self._allowances = {key.name: Allowance(key) for key in (*settings.keys, NOBODY)}
        is_shared = len(settings.keys) > 1
        self._fairness = FairQueue(
            limit.max_waiting_tokens if is_shared else math.inf,
            config.max_waiting if is_shared else math.inf,
        )
        self._open = Shares(self.max_open if is_shared else math.inf)
        self.ids = itertools.count(1)  # of jobs; clients never choose or see them
        threads = _WORKER_THREADS
        self._workers = WorkerThreads("worker", threads=threads, a_key=1 if is_shared else threads)

    def _gauges(self) -> dict[str, Callable[[], float]]:
        """Of ours, read when they are scraped."""
        return {
            "last_step_timestamp_seconds": lambda: time.time() - self.health.seconds_since_step,
            "stalled_seconds": lambda: self.health.stalled_seconds,
            "predicted_step_seconds": lambda: self.limit.step_seconds or math.nan,
            "steps": lambda: self.runner.step_count,
            "max_waiting_tokens": lambda: self.limit.max_waiting_tokens,
            "open_requests": lambda: self.num_open,
            "log_lines_dropped": lambda: self.log.dropped,
            **(self._prefill_client.gauges() if self._prefill_client else {}),
            **(self.prefill_server.gauges() if self.prefill_server else {}),
        }

    @property
    def _queue_s(self) -> float:
        """How long a full queue takes."""
        return self.limit.seconds(self.limit.max_waiting_tokens)

    # Its life

    def start(self) -> None:
        """On the running event loop; `health.is_ready` says when it is warm."""
        self.exchange.attach()
        if self._prefill_client is not None:
            self._prefill_client.start()
        self.runner.start()

    async def drain(self) -> bool:
        """Refuses new requests and waits for those there are; false if some had to be ended."""
        self.is_draining = True
        self.bodies.end()
        return await until_ended(lambda: self.num_open, self.settings.drain_s)

    async def stop(self) -> None:
        if self._prefill_client is not None:
            await self._prefill_client.stop()
        stop = partial(self.runner.stop, _STOP_S if self.runner.is_warm else 0)
        await asyncio.get_running_loop().run_in_executor(None, stop)
        self._grammars.stop()
        if self.template is not None:
            self.template.stop()
        self._workers.stop()

    # A request

    @contextmanager
    def entered(self, key: Key) -> Generator[None]:
        """One more request while the block runs, or the reason why not."""
        self._check_open()
        allowance = self._allowances[key.name]
        if not self._open.may_enter(key.name):
            raise overloaded("too many requests of this key are open", retry_after=1)
        allowance.enter()
        self._open.enter(key.name)
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self._open.leave(key.name)
            allowance.leave()

    def _check_open(self) -> None:
        if self.is_draining:
            raise unavailable("draining", "this server is about to stop")
        if not self.runner.is_warm:
            raise unavailable("warming_up", "this server is not ready yet")
        if not self.health.is_live:
            raise unavailable("engine_dead", "the engine has stopped")
        if self.num_open >= self.max_open:
            raise overloaded("too many requests are open", retry_after=1)

    @asynccontextmanager
    async def generation(
        self, asked: GenerationRequest, key: Key, deadline: float
    ) -> AsyncGenerator[Generation]:
        """A request in the engine, while the block runs; whatever it leaves undone is cancelled."""
        async with asyncio.timeout_at(deadline):
            prompts, is_thought = await self._encode(asked, key)
            new_tokens = sum(self._new_tokens(p, asked) for p in prompts) * asked.n
            tokens = sum(map(len, prompts)) * asked.n + new_tokens
            self._check_logprobs(asked, new_tokens)
            guides = await self._guides(asked, len(prompts) * asked.n, key)
        allowance, fairness = self._allowances[key.name], self._fairness
        self._spend(key, tokens, sum(map(len, prompts)) * asked.n, len(prompts) * asked.n)
        choices = self._choices(asked, prompts, key, guides, is_thought)
        intake = self._prefill_client or self.runner
        port = Port(intake, self.runner, self.exchange, self.metrics, fairness, key.name)
        found = Generation(port, choices, n=asked.n, with_logprobs=asked.logprobs is not None)
        waiting = self.runner.waiting_tokens + sum(map(len, prompts))
        try:
            found.start(retry_after=self._queue_s)
            if self.limit.prefill_tokens_per_s is not None:
                self.metrics.predicted_ttft.observe(self.limit.seconds(waiting))
            yield found
        finally:
            found.close()
            unused = tokens - found.num_used
            allowance.give_back(unused)
            fairness.give_back(key.name, unused)

    def _spend(self, key: Key, tokens: int, waiting: int, requests: int) -> None:
        """Takes what a request may use of its key's limits, and its place in the queue."""
        allowance = self._allowances[key.name]
        allowance.spend(tokens)
        if not self._fairness.enter(key.name, waiting, requests):
            allowance.give_back(tokens)
            raise overloaded("too much of this key is waiting", retry_after=self._queue_s)

    @contextmanager
    def charged(self, key: Key, prompt_tokens: int) -> Generator[None]:
        """A prompt that is computed for another server, while the block runs."""
        self._spend(key, prompt_tokens, prompt_tokens, 1)
        try:
            yield
        finally:
            self._fairness.leave(key.name, prompt_tokens)

    def _check_logprobs(self, asked: GenerationRequest, new_tokens: int) -> None:
        """Each is a few words of the answer: all of them are held until the last is there."""
        most = self.protocol.bounds.max_logprob_entries
        if asked.logprobs is not None and new_tokens * (1 + asked.logprobs) > most:
            found = f"{new_tokens} new tokens with {asked.logprobs} alternatives each"
            raise invalid("logprobs", f"{found}, of at most {most} log probabilities in all")

    async def _encode(self, asked: GenerationRequest, key: Key) -> tuple[list[Tokens], bool]:
        """The tokens of its prompts, by a worker thread; whether the answer begins in a thought."""
        most = self.protocol.bounds.max_characters
        if asked.kind is Endpoint.CHAT:
            if self.template is None:
                raise ApiError(400, "no_chat_template", "this model has no chat template")
            if asked.tools and self.template.form is None:
                raise ApiError(400, "no_tools", "the chat template of this model has no tools")
            render = partial(self.template.render, asked.messages, asked.tools, most=most)
            text = await self.in_worker(key, render)
            tokens = await self.encode(key, text, with_special=False)
            return [tokens], text.rstrip().endswith("<think>")
        tokens = [
            await self.encode(key, prompt, with_special=True) if isinstance(prompt, str) else prompt
            for prompt in asked.prompts
        ]
        return tokens, False

    async def encode(self, key: Key, text: str, *, with_special: bool) -> Tokens:
        work = partial(self.tokenizer.encode, text, with_special=with_special)
        return await self.in_worker(key, work)

    async def in_worker(self, key: Key, work: Callable[[], T]) -> T:
        """Work that would hold up the event loop."""
        return await self._workers.run(key.name, work)

    def _new_tokens(self, prompt: Tokens, asked: GenerationRequest) -> int:
        """As many as asked for, or as fit; both numbers are said where they do not."""
        most = self.protocol.bounds.max_model_tokens
        wanted = asked.new_tokens(most - len(prompt))
        if not prompt or len(prompt) + wanted > most:
            found = f"{len(prompt)} prompt tokens and {wanted} new ones"
            raise invalid("prompt", f"{found}, of at least 2 and at most {most} in all")
        return wanted

    def _choices(
        self,
        asked: GenerationRequest,
        prompts: Sequence[Tokens],
        key: Key,
        guides: Sequence[Allowed | None],
        is_thought: bool,
    ) -> list[GeneratedChoice]:
        stops = frozenset[int]() if asked.ignore_eos else self.tokenizer.stop_tokens
        seed = secrets.randbits(31) if asked.seed is None else asked.seed
        choices: list[GeneratedChoice] = []
        for index, prompt in enumerate(p for p in prompts for _ in range(asked.n)):
            wanted = self._new_tokens(prompt, asked)
            job = EngineRequest(
                next(self.ids),
                prompt,
                wanted,
                replace(asked.sampling, seed=(seed + index) & _SEEDS),
                stops,
                logprobs=0 if asked.logprobs is None else max(1, asked.logprobs),
                salt=key.salt,
                priority=self._fairness.place(key.name, len(prompt) + wanted),
                allowed=guides[index],
            )
            stream = TextStream(self.tokenizer, asked.stops)
            choices.append(GeneratedChoice(index, job, stream, self._parser(asked, is_thought)))
        return choices

    def _parser(self, asked: GenerationRequest, is_thought: bool) -> ReplyParser | None:
        """Of calls and thoughts, for a model that has either."""
        if asked.kind is not Endpoint.CHAT or self.template is None:
            return None
        form, thinks = self.template.form if asked.tools else None, self.template.thinks
        names = [tool["function"]["name"] for tool in asked.tools]
        if asked.must_call:
            return ReplyParser(FORCED, names, thinks=False, is_thought=False)
        if asked.schema is not None or not (form or thinks):  # the text is JSON, or text
            return None
        most = 1 if asked.one_call else math.inf
        return ReplyParser(form, names, thinks=thinks, is_thought=is_thought, most_calls=most)

    async def _guides(
        self, asked: GenerationRequest, count: int, key: Key
    ) -> Sequence[Allowed | None]:
        if asked.schema is None:
            return [None] * count
        param = "tools" if asked.must_call else "response_format"
        return await self._grammars.guides(asked.schema, count, key=key.name, param=param)
