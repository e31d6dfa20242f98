"""An array streamed from HBM through VMEM in chunks: when each load, product and store runs.

In: the seconds of each chunk's load, work and store, and how many buffers VMEM has for each side.
Out: spans. Loads and stores share HBM, one at a time; the unit works on one chunk at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Work = Literal["load", "work", "store"]


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """Seconds of one chunk: to come in, to be worked on, to go out."""

    load_s: float
    work_s: float
    store_s: float


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One piece of work on one chunk."""

    work: Work
    chunk: int
    start_s: float
    end_s: float


def stream(chunks: Sequence[ChunkTime], *, buffers: int) -> tuple[ChunkSpan, ...]:
    """Runs the chunks in order; a load waits for a free buffer, work for its load and a free one.

    With one buffer nothing overlaps and the time is the sum of all; with two the time tends to
    max(HBM, unit) plus one load and one store (book ch. 2). HBM takes what is ready first, of
    two what the earlier work waits for. It stops holding when several transfers share HBM evenly.

    >>> spans = stream([ChunkTime(1, 1, 0)] * 4, buffers=2)
    >>> max(span.end_s for span in spans)
    5.0
    """
    loads, works, stores = ([0.0] * len(chunks) for _ in range(3))
    spans: list[ChunkSpan] = []
    free = 0.0  # of HBM
    next_load = next_store = worked = 0
    while next_store < len(chunks):
        slot = next_load - buffers  # the chunk whose buffer the next load takes
        can_load = next_load < len(chunks) and slot < worked
        can_store = next_store < worked
        load_at = max(free, works[slot] if can_load and slot >= 0 else 0.0)
        store_at = max(free, works[next_store]) if can_store else 0.0
        load_first = (load_at, next_load) <= (store_at, next_store + buffers)
        if can_load and (not can_store or load_first):
            chunk = chunks[next_load]
            free = loads[next_load] = load_at + chunk.load_s
            spans.append(ChunkSpan("load", next_load, load_at, free))
            next_load += 1
        else:
            free = stores[next_store] = store_at + chunks[next_store].store_s
            spans.append(ChunkSpan("store", next_store, store_at, free))
            next_store += 1
        while worked < next_load and worked - buffers < next_store:
            before = works[worked - 1] if worked else 0.0
            emptied = stores[worked - buffers] if worked >= buffers else 0.0
            start = max(loads[worked], before, emptied)
            works[worked] = start + chunks[worked].work_s
            spans.append(ChunkSpan("work", worked, start, works[worked]))
            worked += 1
    return tuple(sorted(spans, key=lambda s: (s.start_s, s.end_s, s.work)))
