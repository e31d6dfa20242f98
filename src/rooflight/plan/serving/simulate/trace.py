"""Recorded traffic: a CSV or JSONL file as a stream of arrivals, one line in memory at a time.

CSV has a header; JSONL has an object a line. The names are `arrival_s`, `input_tokens`,
`output_tokens`, if prompts share beginnings `prefix` (any name), `prefix_tokens`, `tenant`,
`session` (any name) if they continue one another, and `priority` (the smallest goes first). Public
traces are told by their names:

    Mooncake       timestamp (ms), input_length, output_length, hash_ids of 512 tokens
    Qwen-Bailian   chat_id, parent_chat_id, timestamp (s), turn, lengths, hash_ids of 16 tokens
    Azure LLM      TIMESTAMP (a date), ContextTokens, GeneratedTokens
    BurstGPT       Timestamp (s), Session ID in newer ones, Request tokens, Response tokens
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import cast

from rooflight.errors import ParseError, UsageError
from rooflight.plan.serving.simulate.arrivals import Arrival

_NEEDED = ("arrival_s", "input_tokens", "output_tokens")
_MOONCAKE_TOKENS = 512  # that one of its hash_ids stands for
_BAILIAN_TOKENS = 16
_CHAIN = (1 << 63) - 1  # ids in a chain stay below
_MOST_TOKENS = 10_000_000
_HOUR_S = 3600.0
_LEAST_S = 600.0  # of an unfinished hour that still shows a rate
_LONGEST_S = 366 * 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A file of requests in order of time; the first comes at 0."""

    path: Path

    def arrivals(self) -> Iterator[Arrival]:
        """The stream; stops with the line that is wrong."""
        last = start = None
        reader = _TraceReader()
        for number, fields in _rows(self.path):
            try:
                arrival = reader.arrival(fields)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                raise _wrong(self.path, number, f"must be a request: {why}") from None
            if arrival is None:
                continue
            start = arrival.time_s if start is None else start
            if last is not None and arrival.time_s < last:
                raise _wrong(self.path, number, "comes before the line above it")
            last = arrival.time_s
            yield arrival._replace(time_s=last - start)
        if last is None:
            raise UsageError(f"{self.path} holds no request", hint=_hint())


def hourly_rates(trace: RequestTrace) -> list[float]:
    """Requests per second in each hour of a trace; an hour without any counts as if it had one.

    The last hour ends with its last request; one of less than ten minutes is left out.
    """
    counts: list[int] = []
    last_s = 0.0
    for arrival in trace.arrivals():
        last_s = arrival.time_s
        if last_s > _LONGEST_S:
            raise UsageError(f"{trace.path} lasts over a year", hint="cut it to a day or a week")
        counts += [0] * (int(last_s // _HOUR_S) + 1 - len(counts))
        counts[-1] += 1
    rates = [max(1, count) / _HOUR_S for count in counts]
    spent_s = last_s - _HOUR_S * (len(counts) - 1)
    if len(counts) > 1 and spent_s < _LEAST_S:
        return rates[:-1]
    return [*rates[:-1], counts[-1] / max(spent_s, 1.0)]


def _wrong(path: Path, number: int, what: str) -> ParseError:
    return ParseError(f"{path}, line {number} {what}", hint=_hint())


def _hint() -> str:
    return (
        f"a header `{','.join(_NEEDED)}` and lines in order of time such as `0.25,1024,128`;"
        " or a trace of Mooncake, Qwen-Bailian, Azure LLM inference or BurstGPT"
    )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix in (".jsonl", ".json"):
                yield from _json_rows(path, file)
            else:
                yield from enumerate(csv.DictReader(file), start=2)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}", hint=_hint()) from None


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise _wrong(path, number, "is not a JSON object")
        yield number, cast(dict[str, object], fields)


class _TraceReader:
    """Lines of a file, and the sessions that were seen: number, turns, tokens."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[int, int, int]] = {}
        self._count = 0

    def arrival(self, fields: Mapping[str, object]) -> Arrival | None:
        """None of a request that failed."""
        if "chat_id" in fields:
            return self._bailian(fields)
        if "hash_ids" in fields:
            return _hashed(fields, _MOONCAKE_TOKENS, second=1000)
        if "ContextTokens" in fields:
            inputs, outputs = _number(fields["ContextTokens"]), _number(fields["GeneratedTokens"])
            return Arrival(_date_s(fields["TIMESTAMP"]), _tokens(inputs), _tokens(outputs))
        if "Request tokens" in fields:
            return self._burst(fields)
        return self._own(fields)

    def _own(self, fields: Mapping[str, object]) -> Arrival:
        time_s, inputs, outputs = (_number(fields[name]) for name in _NEEDED)
        prefix, tenant = str(fields.get("prefix") or ""), str(fields.get("tenant") or "")
        shared = int(_number(fields.get("prefix_tokens") or 0))
        if shared > inputs or (shared > 0) != bool(prefix):
            raise ValueError(f"prefix {prefix!r} of {shared} tokens in a prompt of {inputs:.0f}")
        segments = (_segment(tenant, prefix),) if prefix else ()
        first = _whole("priority", fields.get("priority") or 0)
        tokens = _tokens(inputs), _tokens(outputs)
        found = Arrival(time_s, *tokens, segments, shared, first)
        name = str(fields.get("session") or "")
        return self._continued(found, f"{len(tenant)}:{tenant}{name}") if name else found

    def _burst(self, fields: Mapping[str, object]) -> Arrival | None:
        outputs = _number(fields["Response tokens"])
        if not outputs:
            return None
        inputs, time_s = _number(fields["Request tokens"]), _number(fields["Timestamp"])
        found = Arrival(time_s, _tokens(inputs), _tokens(outputs))
        name = str(fields.get("Session ID") or "")
        return self._continued(found, name) if name else found

    def _continued(self, found: Arrival, name: str) -> Arrival:
        """A prompt that is shorter than its session so far begins a new one."""
        number, turn, tokens = self._sessions.get(name, (-1, 0, 0))
        if number < 0 or found.input_tokens < tokens:
            number, turn = self._count, 0
            self._count += 1
        self._sessions[name] = number, turn + 1, found.input_tokens + found.output_tokens
        return found._replace(session=number, turn=turn + 1)

    def _bailian(self, fields: Mapping[str, object]) -> Arrival:
        parent, chat = str(fields.get("parent_chat_id", -1)), str(fields["chat_id"])
        number = self._sessions.get(parent, (self._count, 0, 0))[0]
        self._count += number == self._count
        self._sessions[chat] = number, 0, 0
        found = _hashed(fields, _BAILIAN_TOKENS, second=1)
        turn = max(1, int(_number(fields.get("turn", 1))))
        chained = accumulate(found.segments, lambda before, id: hash((before, id)) & _CHAIN)
        return found._replace(segments=(*chained,), session=number, turn=turn)


def _hashed(fields: Mapping[str, object], id_tokens: int, *, second: int) -> Arrival:
    ids = fields["hash_ids"]
    if not isinstance(ids, list):
        raise ValueError("hash_ids is not a list")
    segments = tuple(int(_number(id)) for id in cast(list[object], ids))
    inputs, outputs = _number(fields["input_length"]), _number(fields["output_length"])
    whole = segments[: int(inputs) // id_tokens]
    time_s = _number(fields["timestamp"]) / second
    return Arrival(time_s, _tokens(inputs), _tokens(outputs), whole, id_tokens)


def _date_s(value: object) -> float:
    """A date without a zone is read as UTC; only differences count."""
    when = datetime.fromisoformat(str(value))
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _whole(name: str, value: object) -> int:
    """A whole number, below 0 too."""
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"{name} {value} is not a whole number") from None


def _number(value: object) -> float:
    number = float(value) if isinstance(value, str | int | float) else math.nan
    if not 0 <= number < 1e15:
        raise ValueError(f"{value!r} is not a number from 0 on")
    return number


def _tokens(count: float) -> int:
    """A text has at least one token: an empty prompt still starts with one."""
    if count > _MOST_TOKENS:
        raise ValueError(f"{count:.0f} tokens in one sequence")
    return max(1, int(count))


@lru_cache(maxsize=1 << 16)
def _segment(tenant: str, prefix: str) -> int:
    """A number for a shared beginning; tenants never share one."""
    name = f"{len(tenant)}:{tenant}{prefix}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest())
