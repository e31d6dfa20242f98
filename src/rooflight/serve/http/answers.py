"""The bodies that clients read: completions and chats, whole or in chunks."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rooflight.serve.chat.tokens import Tokenizer
from rooflight.serve.chat.tools import ToolCall
from rooflight.serve.engine.request import TokenLogprobs
from rooflight.serve.http.asked import Endpoint

Body = dict[str, Any]
_LEAST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; `cached` are those of the prompt that the prefix cache had."""

    prompt: int
    completion: int
    cached: int

    def body(self) -> Body:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one choice gained: text, log probabilities if asked for, why it ended."""

    index: int
    text: str
    offset: int  # characters before it
    logprobs: Sequence[tuple[int, TokenLogprobs]] | None
    finish: str | None
    is_first: bool
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    num_before: int = 0  # calls before these


@dataclass(frozen=True, slots=True)
class ResponseBuilder:
    """The head that all bodies of one request share."""

    kind: Endpoint
    model: str
    tokenizer: Tokenizer
    logprobs: int | None
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, pieces: Sequence[ChoiceDelta], usage: Usage) -> Body:
        """One body, a piece for each choice."""
        name = "chat.completion" if self.kind is Endpoint.CHAT else "text_completion"
        return {**self._head(name, [self._choice(p) for p in pieces]), "usage": usage.body()}

    def chunk(self, piece: ChoiceDelta, *, with_usage: bool) -> Body:
        """One event of a stream; if usage comes at the end, the others say null."""
        body = self._head(self._chunk_name, [self._change(piece)])
        return {**body, "usage": None} if with_usage else body

    def usage_chunk(self, usage: Usage) -> Body:
        return {**self._head(self._chunk_name, []), "usage": usage.body()}

    @property
    def _chunk_name(self) -> str:
        return "chat.completion.chunk" if self.kind is Endpoint.CHAT else "text_completion"

    def _head(self, name: str, choices: list[Body]) -> Body:
        prefix = "chatcmpl" if self.kind is Endpoint.CHAT else "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(self, piece: ChoiceDelta) -> Body:
        if self.kind is Endpoint.CHAT:
            text = None if piece.calls and not piece.text else piece.text
            message: Body = {"role": "assistant", "content": text}
            return self._filled(piece, {"message": {**message, **_more(piece)}})
        return self._filled(piece, {"text": piece.text})

    def _change(self, piece: ChoiceDelta) -> Body:
        if self.kind is Endpoint.CHAT:
            role = {"role": "assistant"} if piece.is_first else {}
            more = _more(piece)
            text = {"content": piece.text} if piece.text or not more else {}
            return self._filled(piece, {"delta": {**role, **text, **more}})
        return self._filled(piece, {"text": piece.text})

    def _filled(self, piece: ChoiceDelta, content: Body) -> Body:
        found = None if piece.logprobs is None else self._logprobs(piece, piece.logprobs)
        return {"index": piece.index, **content, "logprobs": found, "finish_reason": piece.finish}

    def _logprobs(self, piece: ChoiceDelta, tokens: Sequence[tuple[int, TokenLogprobs]]) -> Body:
        if self.kind is Endpoint.CHAT:
            return {"content": [self._entry(t, lp.logprob, lp) for t, lp in tokens]}
        names = [self._name(t) for t, _ in tokens]
        offsets = [piece.offset]
        for name in names[:-1]:
            offsets.append(offsets[-1] + len(name))
        return {
            "tokens": names,
            "token_logprobs": [_finite(lp.logprob) for _, lp in tokens],
            # Tokens that are parts of characters look alike: the likeliest keeps the name.
            "top_logprobs": [
                {self._name(t): _finite(v) for t, v in reversed(self._top(lp))} for _, lp in tokens
            ],
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float, own: TokenLogprobs | None) -> Body:
        piece = self.tokenizer.piece(token)
        entry: Body = {
            "token": piece.decode("utf-8", "replace"),
            "logprob": _finite(logprob),
            "bytes": list(piece),
        }
        if own is not None:
            entry["top_logprobs"] = [self._entry(t, v, None) for t, v in self._top(own)]
        return entry

    def _top(self, found: TokenLogprobs) -> list[tuple[int, float]]:
        return list(found.top.items())[: self.logprobs]

    def _name(self, token: int) -> str:
        return self.tokenizer.piece(token).decode("utf-8", "replace")


def _more(piece: ChoiceDelta) -> Body:
    """Thoughts and calls, where there are any."""
    calls = [call.body(i) for i, call in enumerate(piece.calls, piece.num_before)]
    found = {"reasoning_content": piece.thought, "tool_calls": calls}
    return {name: value for name, value in found.items() if value}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _LEAST_LOGPROB
