"""Calls of tools and thoughts, told apart from the text of an answer as it comes.

A family of models writes calls in its own way, which its chat template shows (`call_form`). A call
is given out when it is whole; what is none, or names no tool that was offered, is text.
"""

import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

_THINK, _THOUGHT = "<think>", "</think>"
_NAMED = re.compile(r"\s*([\w.-]{1,64})(?:\[ARGS\])?\s*(?=\{)")  # Mistral's later way
_MOST_HELD = 1 << 15  # characters of a call; a longer one is text
_BETWEEN = " \t\r\n;,"


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family of models writes calls."""

    before: str  # a call; nothing: it is all of the text
    after: str = ""  # a call; nothing: calls go on to the end of the text
    is_bare: bool = False  # whether a text that begins with a brace is a call, too


HERMES, MISTRAL = CallForm("<tool_call>", "</tool_call>"), CallForm("[TOOL_CALLS]")
LLAMA, FORCED, NO_CALLS = CallForm("<|python_tag|>", is_bare=True), CallForm(""), CallForm("")
MARKERS = {*(HERMES.before, HERMES.after, MISTRAL.before, LLAMA.before, "[ARGS]"), _THINK, _THOUGHT}


def call_form(template: str) -> CallForm | None:
    """That of a chat template; None if it does not show calls in a form that is known."""
    for form in (HERMES, MISTRAL, LLAMA) if "tools" in template else ():
        if form.before in template or (form.is_bare and '"parameters"' in template):
            return form
    return None


class ToolCall(NamedTuple):
    """A function to call; arguments are JSON."""

    id: str
    name: str
    arguments: str

    def body(self, index: int) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": index, "id": self.id, "type": "function", "function": function}


class ParsedReply(NamedTuple):
    """What an answer gained."""

    text: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()


class ReplyParser:
    """The state of one answer: in its text, in a thought, or in a call."""

    def __init__(
        self,
        form: CallForm | None,
        names: Sequence[str],
        *,
        thinks: bool,
        is_thought: bool,
        most_calls: float = math.inf,
    ) -> None:
        self._most_calls = most_calls
        self._form, self._names, self._thinks = form or NO_CALLS, names, thinks
        self._in = "call" if form is FORCED else "thought" if is_thought else "start"
        self._held = self._before = ""
        self.num_calls = 0

    def push(self, text: str, *, is_last: bool) -> ParsedReply:
        """What is certain now; with the last text, all of it."""
        self._held += text
        found = ParsedReply()
        before = self.num_calls
        while (more := self._next(is_last=is_last)) is not None:
            text, thought, calls = more
            text = "" if before and not text.strip() else text  # lines between calls
            found = ParsedReply(found.text + text, found.thought + thought, found.calls + calls)
            before = self.num_calls
        return found

    def _next(self, *, is_last: bool) -> ParsedReply | None:
        """One more part of what is held; None if nothing is certain."""
        form, begin = self._form, self._held.lstrip()[:1]
        is_last |= self._in in ("start", "call") and len(self._held) > _MOST_HELD
        if self._in == "start" and (begin or is_last or not form.is_bare):
            self._in = "call" if form.is_bare and begin == "{" else "text"
        opens = (_THINK if self._thinks else "", form.before)
        ends = {"thought": (_THOUGHT,), "call": (form.after,)}.get(self._in, opens)
        ends = [end for end in ends if end]
        places = [(at, end) for end in ends if (at := self._held.find(end)) >= 0]
        at, end = min(places, default=(len(self._held), ""))
        if not end and not is_last:  # a call is whole or nothing
            at = 0 if self._in in ("start", "call") else at - possible_start(self._held, ends)
        part, self._held = self._held[:at], self._held[at + len(end) :]
        was, before = self._in, self._before
        if not (part or end or (was == "call" and is_last and before)):
            return None
        if was == "call":
            self._in, self._before = "text", ""
            return self._called(part, before, end)
        if end:
            self._in, self._before = {_THINK: "thought", _THOUGHT: "text"}.get(end, "call"), end
        return ParsedReply(thought=part) if was == "thought" else ParsedReply(part)

    def _called(self, body: str, before: str, after: str) -> ParsedReply:
        calls = tuple(call for part in body.split(MISTRAL.before) for call in self._read(part))
        if not calls:
            return ParsedReply(before + body + after)
        left = self._most_calls - self.num_calls
        self.num_calls += len(calls)
        return ParsedReply(calls=calls if left >= len(calls) else calls[: int(left)])

    @property
    def is_done(self) -> bool:
        """Whether no more calls may follow."""
        return self.num_calls >= self._most_calls

    def _read(self, body: str) -> list[ToolCall]:
        """The calls that a text is; none if any of it is something else."""
        named = _NAMED.match(body)
        at, values, read = named.end() if named else 0, list[Any](), json.JSONDecoder().raw_decode
        try:
            while rest := body[at:].lstrip(_BETWEEN):
                value, length = read(rest)
                at = len(body) - len(rest) + length
                values += cast(list[Any], value) if isinstance(value, list) else [value]
        except (ValueError, RecursionError):
            return []
        if named:
            values = [{"name": named[1], "arguments": value} for value in values]
        calls: list[ToolCall] = []
        for value in values:
            found = cast(dict[str, Any], value if isinstance(value, dict) else {})
            given = found.get("arguments", found.get("parameters", {}))
            if found.get("name") not in self._names or not isinstance(given, dict):
                return []
            # Nine letters and digits: what Mistral's templates take, as others do.
            id, text = secrets.token_hex(5)[:9], json.dumps(given, ensure_ascii=False)
            calls.append(ToolCall(id, found["name"], text))
        return calls


def possible_start(held: str, words: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a word."""
    most = 0
    for word in words:
        at = held.find(word[0], max(0, len(held) - len(word) + 1))
        while at >= 0 and not word.startswith(held[at:]):
            at = held.find(word[0], at + 1)
        most = max(most, len(held) - at if at >= 0 else 0)
    return most
