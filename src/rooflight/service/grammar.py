"""Texts that must be JSON of a schema, through `llguidance`; an optional package.

A grammar comes from a client, so it is compiled in a worker under hard limits, and kept nowhere.
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from rooflight.engine import Allowed, Mask
from rooflight.service.fields import Json
from rooflight.service.problem import invalid
from rooflight.service.tokens import Tokenizer


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
    """Makes guides for the vocabulary of one model."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._library: Any = None

    def guide(self, schema: Mapping[str, Json]) -> Allowed:
        """Compiles a schema; in a worker thread, for it may take a while."""
        if find_spec("llguidance") is None:
            raise invalid("response_format", "this server was installed without structured output")
        from llguidance import LLMatcher, LLParserLimits

        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError:
            raise invalid("response_format", "not a JSON schema") from None
        limits = LLParserLimits(
            initial_lexer_fuel=200_000,
            step_lexer_fuel=50_000,
            step_max_items=20_000,
            max_lexer_states=50_000,
            max_grammar_size=100_000,
        )
        matcher = LLMatcher(self._vocabulary(), text, log_level=0, limits=limits)
        if matcher.is_error():
            raise invalid("response_format", "a schema that is wrong or too complex")
        return _Guide(matcher, self._vocab)

    def _vocabulary(self) -> Any:
        if self._library is None:
            from llguidance import LLTokenizer

            ends = sorted(self._tokenizer.stop_tokens) or None
            text = self._tokenizer.library.to_str()
            self._library = LLTokenizer(text, n_vocab=self._vocab, eos_token=ends)
        return self._library
