"""Whom to ask and how: the address of a server, and what it understands."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.measure.load.prompts import COMMON_VOCAB, as_text


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and for how long at most."""

    url: str  # http://127.0.0.1:8000
    model: str | None = None  # as the server names it; the first that it lists if left out
    key: str | None = None
    vocab: int = COMMON_VOCAB  # ids of prompts are below it
    timeout_s: float = 300.0  # of one request
    time_limit_s: float = 600.0  # of all; what is still open then is given up

    @property
    def completions(self) -> str:
        return f"{self.url}/v1/completions"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to ask: by ids or by text, and past the end-of-sequence token or not."""

    model: str
    takes_ids: bool
    ignores_eos: bool

    def body(self, ids: Sequence[int], output_tokens: int) -> bytes:
        """A streamed, greedy completion."""
        fields: dict[str, object] = {
            "model": self.model,
            "prompt": list(ids) if self.takes_ids else as_text(ids),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(fields | ({"ignore_eos": True} if self.ignores_eos else {})).encode()
