"""Events of a timeline as columns: what, when, how long, and the few stats that were asked for.

In: spans of XEvent messages. Out: `Events`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rooflight.measure.trace.batches import FieldColumns, Spans, decode
from rooflight.measure.trace.wire import BYTES, I64, U8, VARINT, Data, Malformed

MISSING = np.iinfo(np.int64).min  # of a stat that an event does not have
FARTHEST_NS = 20 * 24 * 3600 * 10**9  # picoseconds of int64 reach 106 days, and three add up
PS = 1000  # in a nanosecond
PLACE_BITS = 40  # of a code of a text; its length has the rest
_LONGEST_TEXT = np.uint64(1 << 20)


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
