"""A trace of XLA's profiler as planes, lines and events: the XSpace message, columns of numbers.

In: the bytes of an `.xplane.pb`. Out: `Plane`s with their `XLine`s. Events are three columns each
(what, when, how long) and the few stats that were asked for. Names are looked up when needed:
metadata is most of the text of a trace, and few of its entries are ever shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rooflight.measure.trace.events import (
    FARTHEST_NS,
    MISSING,
    PLACE_BITS,
    PS,
    Events,
    Spans,
    decode,
    read_events,
    split,
)
from rooflight.measure.trace.wire import (
    BYTES,
    FIXED64,
    I64,
    U8,
    VARINT,
    Data,
    Malformed,
    WireField,
    fields,
    text,
)

MOST_EVENTS = 20_000_000  # kept at 24 bytes each
_MOST_LINES = 100_000
_MOST_NAMES = 1_000_000

Value = int | float | str | bytes


@dataclass(frozen=True, slots=True)
class XLine:
    """One timeline of a plane."""

    name: str
    events: Events


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """What events of one id have in common."""

    name: str
    display_name: str
    stats: Mapping[str, Value]


_Known = dict[tuple[int, bytes], EventMetadata]


@dataclass(slots=True)
class Plane:
    """A device or a host: its timelines, its own facts, and the names its events refer to."""

    name: str
    stats: Mapping[str, Value]
    lines: tuple[XLine, ...]
    words: Mapping[int, str]  # of stats: their names, and texts that stats refer to
    _data: Data
    _kinds: Mapping[int, tuple[int, int]]
    _known: _Known  # by all planes with the same words: every core names the same ops
    _seen: dict[int, EventMetadata] = field(default_factory=dict[int, EventMetadata])

    def kind(self, number: int) -> EventMetadata:
        """The metadata of an event; one that is not there has a name that says so."""
        if number not in self._seen:
            start, stop = self._kinds.get(number, (0, 0))
            own = number, self._data[start:stop]
            if own not in self._known:
                self._known[own] = _read_kind(own[1], self.words, f"unnamed {number}")
            self._seen[number] = self._known[own]
        return self._seen[number]

    def kind_ids(self) -> Sequence[int]:
        return list(self._kinds)

    def texts(self, codes: I64) -> dict[int, str]:
        """What the values of a text stat mean: a word, or a span of the file written as -1 - at."""
        found: dict[int, str] = {}
        left = len(self._data)  # spans of a file cannot be longer than the file
        for code in np.unique(codes).tolist():
            if code >= 0:
                found[code] = self.words.get(code, f"unnamed {code}")
            elif code != MISSING:
                size, at = divmod(-1 - code, 1 << PLACE_BITS)
                left -= size
                if left < 0:
                    raise Malformed("numbers where texts should be", at)
                found[code] = self._data[at : at + size].decode("utf-8", "backslashreplace")
        return found


def read_planes(data: Data, raw: U8, *, wanted: Sequence[str]) -> list[Plane]:
    """All planes. Of every event the `wanted` stats are kept.

    A number is kept as it is, a text as a code for `Plane.texts`.
    """
    found, _ = split(data, raw, 0, len(data), (1,))
    if len(found[1]) > _MOST_LINES:
        raise Malformed(f"more than {_MOST_LINES:,} planes", 0)
    drafts = [_draft(data, raw, *span) for span in found[1].pairs()]
    lines = [line for draft in drafts for line in draft.lines]
    if sum(len(line.spans) for line in lines) > MOST_EVENTS:
        raise Malformed(f"more than {MOST_EVENTS:,} events", 0)
    busy = [line.timestamp_ns for line in lines if len(line.spans)]
    origin = min(busy, default=0)
    if busy and max(busy) - origin > FARTHEST_NS:
        raise Malformed("timelines more than 20 days apart", 0)
    known: dict[tuple[tuple[int, str], ...], _Known] = {}
    return [
        draft.plane(
            data,
            raw,
            origin,
            wanted,
            known.setdefault(tuple(draft.words.items()), {}),
        )
        for draft in drafts
    ]


@dataclass(frozen=True, slots=True)
class _LineDraft:
    name: str
    timestamp_ns: int
    spans: Spans


@dataclass(frozen=True, slots=True)
class _PlaneDraft:
    """A plane whose events are not read yet: they count from the earliest line of all."""

    name: str
    own: list[WireField]
    lines: list[_LineDraft]
    words: Mapping[int, str]
    kinds: Mapping[int, tuple[int, int]]

    def plane(
        self,
        data: Data,
        raw: U8,
        origin: int,
        wanted: Sequence[str],
        known: _Known,
    ) -> Plane:
        ids = {number: word for number, word in self.words.items() if word in wanted}
        lines = tuple(
            XLine(
                line.name,
                read_events(
                    data,
                    raw,
                    line.spans,
                    (line.timestamp_ns - origin) * PS,
                    ids,
                ),
            )
            for line in self.lines
        )
        stats = _stats(data, self.own, self.words)
        return Plane(self.name, stats, lines, self.words, data, self.kinds, known)


def _draft(data: Data, raw: U8, start: int, stop: int) -> _PlaneDraft:
    """XPlane: name 2, lines 3, event metadata 4, stat metadata 5, stats 6."""
    found, others = split(data, raw, start, stop, (3, 4, 5))
    if len(found[3]) > _MOST_LINES or len(found[4]) + len(found[5]) > _MOST_NAMES:
        raise Malformed("more timelines or names than any trace has", start)
    names = [text(data, f) for f in others if f.number == 2 and f.wire == BYTES]
    lines = [_line(data, raw, *span) for span in found[3].pairs()]
    words = {number: _name(data, *span) for number, span in _entries(data, raw, found[5]).items()}
    own = [f for f in others if f.number == 6 and f.wire == BYTES]
    kinds = _entries(data, raw, found[4])
    return _PlaneDraft(names[-1] if names else "", own, lines, words, kinds)


def _line(data: Data, raw: U8, start: int, stop: int) -> _LineDraft:
    """XLine: name 2, timestamp_ns 3, events 4, display_name 11."""
    found, others = split(data, raw, start, stop, (4,))
    words = {f.number: text(data, f) for f in others if f.wire == BYTES}
    times = [f.signed for f in others if f.number == 3 and f.wire == VARINT]
    return _LineDraft(words.get(2) or words.get(11, ""), times[-1] if times else 0, found[4])


def _entries(data: Data, raw: U8, spans: Spans) -> dict[int, tuple[int, int]]:
    """A map of the wire, key 1 and message 2, as key -> span."""
    found: dict[int, tuple[int, int]] = {}
    for starts, stops in spans.parts:
        key, begin, end = (np.zeros(len(starts), dtype=np.int64) for _ in range(3))
        for batch in decode(data, raw, starts, stops):
            keys, values = batch.of(1, VARINT), batch.of(2, BYTES)
            key[keys.owner] = keys.value.view(np.int64)
            begin[values.owner] = values.start
            end[values.owner] = values.start + values.value.view(np.int64)
        found.update(zip(key.tolist(), zip(begin.tolist(), end.tolist(), strict=True), strict=True))
    return found


def _name(data: Data, start: int, stop: int) -> str:
    """XStatMetadata: name 2."""
    names = [text(data, f) for f in fields(data, start, stop) if f.number == 2 and f.wire == BYTES]
    return names[-1] if names else ""


def _read_kind(data: bytes, words: Mapping[int, str], unnamed: str) -> EventMetadata:
    """XEventMetadata: name 2, display_name 4, stats 5."""
    own = [f for f in fields(data, 0, len(data)) if f.wire == BYTES]
    names = {f.number: text(data, f) for f in own if f.number in (2, 4)}
    stats = _stats(data, [f for f in own if f.number == 5], words)
    return EventMetadata(names.get(2) or names.get(4) or unnamed, names.get(4, ""), stats)


def _stats(data: Data, found: Sequence[WireField], words: Mapping[int, str]) -> dict[str, Value]:
    """XStat: metadata_id 1, then one of double 2, uint64 3, int64 4, text 5, bytes 6, word 7."""
    stats: dict[str, Value] = {}
    for stat in found:
        number, value = 0, None
        for f in fields(data, stat.start, stat.stop):
            if f.number == 1 and f.wire == VARINT:
                number = f.signed
            else:
                value = _value(data, f, words) if value is None else value
        if value is not None:
            stats[words.get(number, f"unnamed {number}")] = value
    return stats


def _value(data: Data, f: WireField, words: Mapping[int, str]) -> Value | None:
    if f.number == 2 and f.wire == FIXED64:
        return float(np.array([f.value], dtype=np.uint64).view(np.float64)[0])
    if f.number in (3, 4) and f.wire == VARINT:
        return f.value if f.number == 3 else f.signed
    if f.number == 5 and f.wire == BYTES:
        return text(data, f)
    if f.number == 6 and f.wire == BYTES:
        return data[f.start : f.stop]
    if f.number == 7 and f.wire == VARINT:
        return words.get(f.signed, f"unnamed {f.signed}")
    return None
