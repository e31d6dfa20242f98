"""Texts that must be JSON of a schema, through `llguidance`; an optional package."""

import json
from collections.abc import Mapping
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from rooflight.serve.chat.bounded import Bounded, TooMuch
from rooflight.serve.chat.grammar_trial import make_matcher, make_vocabulary
from rooflight.serve.chat.tokens import Tokenizer
from rooflight.serve.chat.workers import WorkerThreads
from rooflight.serve.engine.request import Allowed, Mask
from rooflight.serve.server.fields import Json
from rooflight.serve.server.problem import invalid


class _Guide:
    """The state of one text in its grammar; belongs to the thread of the engine."""

    __slots__ = ("_matcher", "_vocab", "_words")

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._words = np.zeros((1, -(-vocab // 32)), np.int32)

    def mask(self) -> Mask | None:
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._words)
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._vocab].astype(np.bool_)

    def accept(self, token: int) -> bool:
        """False once the JSON is complete, or the grammar gave up."""
        return bool(self._matcher.consume_token(token)) and not self._matcher.is_stopped()


class Grammars:
    """Makes guides for the vocabulary of one model; has a thread and a process of its own."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._workers = WorkerThreads("grammar", threads=1, a_key=1)

    async def guides(
        self, schema: Mapping[str, Json], count: int, *, key: str, param: str
    ) -> list[Allowed]:
        """Compiles a schema once, for so many sequences; a key has one under way, others between.

        A grammar comes from a client: it is tried first where it can take neither the time nor
        the memory of this process. What passed there takes as little here.
        """
        if find_spec("llguidance") is None:
            raise invalid(param, "this server was installed without structured output")
        try:
            matcher = await self._workers.run(key, partial(self._matcher, json.dumps(schema)))
        except ValueError as error:
            raise invalid(param, str(error)) from None
        return [_Guide(matcher.deep_copy(), self._vocab) for _ in range(count)]

    def stop(self) -> None:
        if "_trial" in self.__dict__:
            self._trial.stop()
        self._workers.stop()

    def _matcher(self, schema: str) -> Any:
        try:
            why = self._trial.ask(schema)
        except TooMuch:
            why = "a schema that is too complex"
        if why:
            raise ValueError(why)
        return make_matcher(self._vocabulary, schema)

    @cached_property
    def _trial(self) -> Bounded:
        return Bounded("rooflight.serve.chat.grammar_trial", self._told)

    @cached_property
    def _vocabulary(self) -> Any:
        return make_vocabulary(*self._told)

    @property
    def _told(self) -> tuple[str, int, list[int]]:
        ends = sorted(self._tokenizer.stop_tokens)
        return self._tokenizer.library.to_str(), self._vocab, ends
