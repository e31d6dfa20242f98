"""A trace as the JSON that Perfetto and chrome://tracing open.

In: a `Trace`. Out: pieces of text, so that a large one is never held whole. Devices and threads
are rows; steps, ops and flights are spans in microseconds.
"""

import json
from collections.abc import Iterator, Sequence

from rooflight.measure.trace.record import Thread, Timeline, Trace, TraceDevice
from rooflight.measure.trace.wire import I64

_ROWS = ("steps", "ops", "in flight")
_US = 1e-6  # of a picosecond
_HOST = 0  # the process of the host's threads; devices follow
_PIECE = 4096  # events


def perfetto(trace: Trace) -> Iterator[str]:
    """The document, piece by piece."""
    yield '{"displayTimeUnit":"ns","traceEvents":[\n'
    yield _meta("process_name", _HOST, 0, "host")
    for number, device in enumerate(trace.devices, start=1):
        yield from _device(number, device)
    for row, thread in enumerate(trace.threads):
        yield ",\n" + _meta("thread_name", _HOST, row, thread.name)
        yield from _thread(row, thread)
    yield "\n]}\n"


def _meta(what: str, process: int, row: int, name: str) -> str:
    fields = {"ph": "M", "pid": process, "tid": row, "name": what, "args": {"name": name}}
    return json.dumps(fields)


def _device(number: int, device: TraceDevice) -> Iterator[str]:
    yield ",\n" + _meta("process_name", number, 0, f"{device.name} {device.kind}".strip())
    for row, name in enumerate(_ROWS):
        yield ",\n" + _meta("thread_name", number, row, name)
    for step in device.steps:
        span = {"ts": step.start_ps * _US, "dur": (step.stop_ps - step.start_ps) * _US}
        yield ",\n" + json.dumps({"ph": "X", "pid": number, "tid": 0, "name": step.name, **span})
    yield from _ops(number, 1, device.work)
    yield from _ops(number, 2, device.flights)


def _ops(process: int, row: int, line: Timeline) -> Iterator[str]:
    heads = [
        json.dumps(
            {"name": op.name, "cat": op.op_class, "args": {"layer": op.layer, "line": op.line}}
        )
        for op in line.ops
    ]
    yield from _spans(process, row, heads, line.which, line.start_ps, line.stop_ps)


def _thread(row: int, thread: Thread) -> Iterator[str]:
    events = thread.events
    kinds = sorted(set(events.kind.tolist()))
    place = {kind: at for at, kind in enumerate(kinds)}
    heads = [json.dumps({"name": thread.event_name(kind)}) for kind in kinds]
    which = [place[kind] for kind in events.kind.tolist()]
    yield from _spans(
        _HOST, row, heads, which, events.start_ps, events.start_ps + events.duration_ps
    )


def _spans(
    process: int, row: int, heads: Sequence[str], which: I64 | Sequence[int], start: I64, stop: I64
) -> Iterator[str]:
    """Events that share the text before their times."""
    fixed = [f'{head[:-1]}, "ph":"X","pid":{process},"tid":{row}' for head in heads]
    for first in range(0, len(which), _PIECE):
        part = slice(first, first + _PIECE)
        rows = zip(list(which[part]), start[part].tolist(), stop[part].tolist(), strict=True)
        yield "".join(
            f',\n{fixed[at]},"ts":{begin * _US:.6f},"dur":{(end - begin) * _US:.6f}}}'
            for at, begin, end in rows
        )
