"""Events of a timeline as columns: what, when, how long, and the few stats that were asked for.

In: spans of XEvent messages. Out: `Events`.

Many messages at once: where those of a repeated field are, and their fields as columns. A trace has
millions of events of a few bytes each; read one by one they would take a minute.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    I64,
    U8,
    U64,
    VARINT,
    Data,
    Malformed,
    WireField,
    field_at,
    fields,
    varint,
)

_WINDOW = 1 << 20  # bytes copied out of the file at a time: a bytes object is the fastest to index
_MOST_FIELDS = 100_000  # of one message, beside those that repeat
_FEW = 48  # messages; below this a plain loop beats arrays, and one long message stays linear

MISSING = np.iinfo(np.int64).min  # of a stat that an event does not have
FARTHEST_NS = 20 * 24 * 3600 * 10**9  # picoseconds of int64 reach 106 days, and three add up
PS = 1000  # in a nanosecond
PLACE_BITS = 40  # of a code of a text; its length has the rest
_LONGEST_TEXT = np.uint64(1 << 20)


@dataclass(slots=True)
class Spans:
    """Where the messages of one repeated field begin and end, in parts of a window each."""

    parts: list[tuple[I64, I64]] = field(default_factory=list[tuple[I64, I64]])

    def __len__(self) -> int:
        return sum(len(starts) for starts, _ in self.parts)

    def pairs(self) -> Iterator[tuple[int, int]]:
        for starts, stops in self.parts:
            yield from zip(starts.tolist(), stops.tolist(), strict=True)


def split(
    data: Data, raw: U8, start: int, stop: int, repeated: tuple[int, ...]
) -> tuple[dict[int, Spans], list[WireField]]:
    """The spans of the repeated fields of a message, and its other fields.

    `raw` is the same file as an array. The loop has one turn for every event of a trace, so it
    only finds where messages begin; their lengths are read again, all at once.
    """
    found = {number: Spans() for number in repeated}
    others: list[WireField] = []
    at = start
    while at < stop:
        heads: dict[int, list[int]] = {number << 3 | BYTES: [] for number in repeated}
        window = data[at : min(stop, at + _WINDOW)]
        used = _find_heads(data, window, at, stop, heads, others)
        for key, places in heads.items():
            if places:
                place = np.array(places, dtype=np.int64) + (at + 1)
                size, inner = _varints(raw, place, np.full(len(place), stop))
                found[key >> 3].parts.append((inner, inner + size.view(np.int64)))
        at += used
    return found, others


def _find_heads(
    data: Data,
    window: bytes,
    at: int,
    stop: int,
    heads: dict[int, list[int]],
    others: list[WireField],
) -> int:
    """Puts down where repeated fields begin in a window; gives how much of it was read."""
    adder = {key: places.append for key, places in heads.items()}.get
    safe = len(window) - 16 if at + len(window) < stop else len(window)
    here, last = 0, safe - 1
    while here < safe:
        add = adder(window[here])
        if add is None:
            one, ended = field_at(data, at + here, stop)
            others.append(one)
            here = ended - at
            if len(others) > _MOST_FIELDS:
                raise Malformed(f"more than {_MOST_FIELDS:,} fields in one message", ended)
            continue
        add(here)
        if here < last and (size := window[here + 1]) < 128:
            here += size + 2
        else:
            size, inner = varint(data, at + here + 1, stop)
            here = inner + size - at
    if at + here > stop:
        raise Malformed(f"{at + here - stop:,} bytes too few", stop)
    return here


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """Fields of many messages: whose, which, and the number or the length and place of each."""

    owner: I64
    key: I64  # number << 3 | wire type
    value: U64
    start: I64

    def of(self, number: int, wire: int) -> "FieldColumns":
        """Those of one field."""
        mine = self.key == (number << 3 | wire)
        return FieldColumns(self.owner[mine], self.key[mine], self.value[mine], self.start[mine])


def decode(data: Data, raw: U8, starts: I64, stops: I64) -> Iterator[FieldColumns]:
    """The fields of many messages: the first field of each, then the second, and so on.

    `raw` is the same file as an array. A message of many more fields than the others is read by
    the plain loop in the end.
    """
    owner = np.arange(len(starts), dtype=np.int64)
    at, stop = starts, stops
    while True:
        alive = at < stop
        if not alive.all():
            owner, at, stop = owner[alive], at[alive], stop[alive]
        if len(owner) <= _FEW:
            break
        key, at = _varints(raw, at, stop)
        batch, at = _values(raw, owner, key.astype(np.int64), at, stop)
        yield batch
    for one, start, end in zip(owner.tolist(), at.tolist(), stop.tolist(), strict=True):
        yield from _one_by_one(data, one, start, end)


def _one_by_one(data: Data, owner: int, start: int, stop: int) -> Iterator[FieldColumns]:
    rest = [(f.number << 3 | f.wire, f.value, f.start) for f in fields(data, start, stop)]
    if rest:
        key, value, place = zip(*rest, strict=True)
        owners = np.full(len(rest), owner, dtype=np.int64)
        keys = np.array(key, dtype=np.int64)
        yield FieldColumns(owners, keys, np.array(value, np.uint64), np.array(place, np.int64))


def _values(raw: U8, owner: I64, key: I64, at: I64, stop: I64) -> tuple[FieldColumns, I64]:
    """What follows the keys, and where the next fields begin."""
    wire = key & 7
    fixed8, fixed4 = wire == FIXED64, wire == FIXED32
    bad = (wire != VARINT) & (wire != BYTES) & ~fixed8 & ~fixed4
    if bad.any():
        where = int(np.argmax(bad))
        raise Malformed(f"a field of wire type {int(wire[where])}", int(at[where]))
    value = np.zeros(len(key), dtype=np.uint64)
    begin = at.copy()
    packed = np.flatnonzero(~fixed8 & ~fixed4)
    value[packed], begin[packed] = _varints(raw, at[packed], stop[packed])
    size = np.zeros(len(key), dtype=np.int64)
    spans = wire == BYTES
    size[spans] = np.minimum(value[spans], np.uint64(1 << 62)).astype(np.int64)
    size[fixed8], size[fixed4] = 8, 4
    over = size > stop - begin
    if over.any():
        where = int(np.argmax(over))
        left = int(stop[where] - begin[where])
        raise Malformed(f"{int(size[where]):,} bytes where {left:,} are left", int(begin[where]))
    for mask, width in ((fixed8, 8), (fixed4, 4)):
        for byte in range(width if mask.any() else 0):
            value[mask] |= raw[begin[mask] + byte].astype(np.uint64) << np.uint64(8 * byte)
    return FieldColumns(owner, key, value, begin), begin + size


def _varints(raw: U8, at: I64, stop: I64) -> tuple[U64, I64]:
    """A number at each place, and where each ends."""
    if (at >= stop).any():
        raise Malformed("a number runs over its end", int(at[np.argmax(at >= stop)]))
    byte = raw[at]
    value = (byte & 127).astype(np.uint64)
    end = at + 1
    more = np.flatnonzero(byte >= 128)
    for shift in range(7, 70, 7):
        if not len(more):
            return value, end
        place = end[more]
        over = place >= stop[more]
        if over.any():
            raise Malformed("a number runs over its end", int(place[np.argmax(over)]))
        byte = raw[place]
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        end[more] += 1
        more = more[byte >= 128]
    if len(more):
        raise Malformed("a number of more than ten bytes", int(end[more[0]]))
    return value, end


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a line in the order of the file; times from the start of the trace."""

    kind: I64  # the id of its metadata
    start_ps: I64
    duration_ps: I64
    stats: Mapping[str, I64] = field(default_factory=dict[str, I64])  # those that some event has

    def __len__(self) -> int:
        return len(self.kind)

    def stat(self, name: str) -> I64:
        """A stat of every event, MISSING where it has none."""
        return self.stats[name] if name in self.stats else np.full(len(self), MISSING)

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        return self.stat(name) != MISSING

    def pick(self, mine: npt.NDArray[np.bool_] | I64) -> "Events":
        """Some of the events."""
        stats = {name: column[mine] for name, column in self.stats.items()}
        return Events(self.kind[mine], self.start_ps[mine], self.duration_ps[mine], stats)


def read_events(
    data: Data, raw: U8, spans: Spans, origin_ps: int, ids: Mapping[int, str]
) -> Events:
    """XEvent: metadata_id 1, offset_ps 2, duration_ps 3, stats 4."""
    count = len(spans)
    kind, start, duration = (np.zeros(count, dtype=np.int64) for _ in range(3))
    stats: dict[str, I64] = {}
    first = 0
    for starts, stops in spans.parts:
        part = slice(first, first + len(starts))
        columns = (kind[part], start[part], duration[part])
        for batch in decode(data, raw, starts, stops):
            for number, column in enumerate(columns, start=1):
                own = batch.of(number, VARINT)
                column[own.owner] = own.value.view(np.int64)
            if ids:
                found = _read_stats(data, raw, batch.of(4, BYTES), ids)
                for name, (owner, value) in found.items():
                    if name not in stats:
                        stats[name] = np.full(count, MISSING)
                    stats[name][first + owner] = value
        first += len(starts)
    for column in (start, duration):
        if count and (column.min() < 0 or column.max() > FARTHEST_NS * PS):
            raise Malformed(
                "an event before the trace or 20 days after it", int(spans.parts[0][0][0])
            )
    spans.parts.clear()  # as much memory as the events themselves
    start += origin_ps
    return Events(kind, start, duration, stats)


def _read_stats(
    data: Data, raw: U8, found: FieldColumns, ids: Mapping[int, str]
) -> dict[str, tuple[I64, I64]]:
    """The wanted stats of some events: whose, and the number or the code of a text."""
    number = np.zeros(len(found.owner), dtype=np.int64)
    value = np.full(len(found.owner), MISSING)
    for batch in decode(data, raw, found.start, found.start + found.value.view(np.int64)):
        own = batch.of(1, VARINT)
        number[own.owner] = own.value.view(np.int64)
        for kind in (3, 4, 7):
            own = batch.of(kind, VARINT)
            value[own.owner] = own.value.view(np.int64)
        own = batch.of(5, BYTES)
        size = np.minimum(own.value, _LONGEST_TEXT).astype(np.int64)
        value[own.owner] = -1 - (own.start + (size << PLACE_BITS))
    mine = {name: np.flatnonzero(number == one) for one, name in ids.items()}
    return {name: (found.owner[at], value[at]) for name, at in mine.items() if len(at)}
