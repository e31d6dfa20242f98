"""`Generation`: one request on its way through the engine, from tokens to pieces of text.

It owns the jobs of the request, one for each choice. Whatever happens, `close` ends them: a job
that is not done when its request is gone is cancelled before the next step.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple, Protocol

from rooflight.batching.request import Admission
from rooflight.errors import UsageError
from rooflight.serve.chat.text import TextStream
from rooflight.serve.chat.tools import ParsedReply, ReplyParser
from rooflight.serve.engine.request import Delta, EngineRequest, Finish
from rooflight.serve.engine.runner import Runner
from rooflight.serve.http.answers import ChoiceDelta, Usage
from rooflight.serve.http.metrics import ServerMetrics
from rooflight.serve.server.exchange import Exchange, Inbox
from rooflight.serve.server.fairness import FairQueue
from rooflight.serve.server.problem import ApiError, invalid, overloaded, unavailable


class Intake(Protocol):
    """Where jobs go in: a runner, or who has their prompts computed elsewhere."""

    def submit(self, job: EngineRequest) -> Admission: ...
    def cancel(self, id: int) -> None: ...


class Port(NamedTuple):
    """Where jobs go in and deltas come out."""

    intake: Intake
    runner: Runner
    exchange: Exchange
    metrics: ServerMetrics
    fairness: FairQueue
    key: str  # whose request it is


class GeneratedChoice:
    """A text that is being made."""

    def __init__(
        self, index: int, job: EngineRequest, text: TextStream, parser: ReplyParser | None = None
    ) -> None:
        self.parser = parser
        self.index = index
        self.job = job
        self.text = text
        self.finish: str | None = None
        self.num_tokens = 0
        self.num_pieces = 0
        self.cached = 0
        self.then = 0.0  # when the last token came


class Generation:
    """The choices of one request."""

    def __init__(
        self, port: Port, choices: Sequence[GeneratedChoice], *, n: int, with_logprobs: bool
    ) -> None:
        self._port = port
        self._n = n  # choices in a row that have one prompt
        self._is_admitted = False
        self._inbox = Inbox()
        self._with_logprobs = with_logprobs
        self._by_job = {choice.job.id: choice for choice in choices}
        self.choices = choices
        self.start_time = time.monotonic()
        self.first_time: float | None = None  # of the first token

    def start(self, *, retry_after: float) -> None:
        """Submits all jobs, or none."""
        for choice in self.choices:
            self._port.exchange.open(choice.job.id, self._inbox)
            try:
                found = self._port.intake.submit(choice.job)
            except UsageError:  # tokens that this tokenizer has and this model lacks
                raise invalid("prompt", "tokens outside the vocabulary of this model") from None
            if found is not Admission.ADMITTED:
                raise self._refusal(found, retry_after)
        self._is_admitted = True

    def _refusal(self, found: Admission, retry_after: float) -> ApiError:
        if found is Admission.TOO_LONG:
            return invalid("prompt", "prompt and new tokens do not fit into this model")
        if self._port.runner.is_dead:
            return unavailable("engine_dead", "the engine has stopped")
        return overloaded("too many requests are waiting", retry_after=retry_after)

    def close(self) -> None:
        """Cancels what still runs, and counts how it went; called once."""
        for choice in self.choices:
            self._port.exchange.close(choice.job.id)
            if choice.num_tokens == 0:
                self._port.fairness.leave(self._port.key, len(choice.job.prompt))
            if choice.finish is None:
                self._port.intake.cancel(choice.job.id)
        if self._is_admitted:
            self._count()

    def _count(self) -> None:
        for choice in self.choices:
            self._port.metrics.ended(choice.finish or "abort")
        if self.first_time is not None:
            now, made = time.monotonic(), self.usage.completion / len(self.choices)
            self._port.metrics.end_to_end.observe(now - self.start_time)
            self._port.metrics.decode.observe(now - self.first_time)
            if made > 1:
                seconds = (now - self.first_time) / (made - 1)
                self._port.metrics.time_per_token.observe(seconds)

    @property
    def usage(self) -> Usage:
        """A prompt with several choices is counted once."""
        firsts = self.choices[:: self._n]
        made = sum(choice.num_tokens for choice in self.choices)
        prompts = sum(len(choice.job.prompt) for choice in firsts)
        return Usage(prompts, made, sum(choice.cached for choice in firsts))

    @property
    def num_used(self) -> int:
        """Tokens that count against the limits of a key; those of a refused request do not."""
        return self.usage.prompt + self.usage.completion if self._is_admitted else 0

    def counts(self) -> dict[str, int | float | None]:
        """For the log: lengths and times, no text."""
        first = self.first_time
        return {
            "prompt_tokens": self.usage.prompt,
            "completion_tokens": self.usage.completion,
            "cached_tokens": self.usage.cached,
            "ttft": None if first is None else round(first - self.start_time, 6),
        }

    async def pieces(self, deadline: float) -> AsyncIterator[list[ChoiceDelta]]:
        """What came since the last time, until every choice has ended or the loop's time is up."""
        left = len(self.choices)
        while left:
            found: list[ChoiceDelta] = []
            async with asyncio.timeout_at(deadline):
                deltas = await self._inbox.take()
            for delta in deltas:
                choice = self._by_job[delta.id]
                if choice.finish is None:
                    found += self._take(choice, delta)
                    left -= choice.finish is not None
            if found:
                yield found

    def _take(self, choice: GeneratedChoice, delta: Delta) -> Iterator[ChoiceDelta]:
        if delta.finish in (Finish.FAILED, Finish.CANCELLED):
            choice.finish = "error"
            # Not 503, which says that nothing was begun: a router would hand it to the next.
            raise ApiError(500, "engine_failed", "the engine could not finish this request")
        self._observe(choice, delta)
        choice.cached += delta.cached_tokens
        offset = choice.text.length
        text = choice.text.push(_shown(choice.job, delta), is_last=delta.finish is not None)
        if choice.text.is_stopped:
            choice.finish = str(Finish.STOP)
            if delta.finish is None:
                self._port.intake.cancel(choice.job.id)
        elif delta.finish is not None:
            choice.finish = str(delta.finish)
        reply, num_before = self._reply(choice, text)
        logprobs = None
        if self._with_logprobs:
            logprobs = tuple(zip(delta.tokens, delta.logprobs, strict=True))
        if any(reply) or choice.finish or logprobs:
            is_first = choice.num_pieces == 0
            choice.num_pieces += 1
            more = (reply.text, offset, logprobs, choice.finish, is_first)
            yield ChoiceDelta(choice.index, *more, reply.thought, reply.calls, num_before)

    def _reply(self, choice: GeneratedChoice, text: str) -> tuple[ParsedReply, int]:
        """The text without calls and thoughts, and the calls before; the last call may end it."""
        parser = choice.parser
        if parser is None:
            return ParsedReply(text), 0
        num_before = parser.num_calls
        reply = parser.push(text, is_last=choice.finish is not None)
        if parser.is_done and choice.finish is None:
            self._port.intake.cancel(choice.job.id)
            choice.finish = str(Finish.STOP)
        if parser.num_calls and choice.finish == Finish.STOP:
            choice.finish = "tool_calls"
        return reply, num_before

    def _observe(self, choice: GeneratedChoice, delta: Delta) -> None:
        if not delta.tokens:
            return
        now, metrics = time.monotonic(), self._port.metrics
        if choice.num_tokens == 0:
            metrics.time_to_first_token.observe(now - self.start_time)
            if delta.began is not None:
                metrics.queue.observe(max(0.0, delta.began - self.start_time))
                metrics.prefill.observe(max(0.0, now - delta.began))
            self.first_time = self.first_time or now
            self._port.fairness.leave(self._port.key, len(choice.job.prompt))
            self._port.fairness.started(choice.job.priority)
        else:
            metrics.inter_token.observe(now - choice.then)
        choice.then = now
        choice.num_tokens += len(delta.tokens)


def _shown(job: EngineRequest, delta: Delta) -> tuple[int, ...]:
    """The token that ends a text is not part of it."""
    ends = delta.finish is Finish.STOP and delta.tokens and delta.tokens[-1] in job.stop_tokens
    return delta.tokens[:-1] if ends else delta.tokens


def merge(pieces: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """All pieces of one choice as one."""
    first, last = pieces[0], pieces[-1]
    logprobs = None
    if first.logprobs is not None:
        logprobs = [entry for piece in pieces for entry in piece.logprobs or ()]
    text, thought = ("".join(getattr(p, name) for p in pieces) for name in ("text", "thought"))
    calls = tuple(call for piece in pieces for call in piece.calls)
    return ChoiceDelta(first.index, text, 0, logprobs, last.finish, True, thought, calls)
