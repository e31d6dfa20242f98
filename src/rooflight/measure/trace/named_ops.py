"""Ops of events that only name an instruction: the rest is in the compiled program.

In: events with the stats `hlo_op`, `hlo_module` and `program_id`, and the programs of the trace.
Out: a `Timeline`, and the module of each event. Traces of GPUs and CPUs are such.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooflight.measure.trace.classify import layer_of, op_class
from rooflight.measure.trace.events import MISSING, Events
from rooflight.measure.trace.hlo_proto import ProtoInstruction, read_program
from rooflight.measure.trace.record import Timeline, TraceOp
from rooflight.measure.trace.wire import I64
from rooflight.measure.trace.xspace import Plane

_MOST_NEAR = 64  # neighbours of an op


class Programs:
    """The compiled programs of a trace, each read when an op of it is asked for."""

    def __init__(self, planes: Sequence[Plane]) -> None:
        self._planes = [plane for plane in planes if plane.name == "/host:metadata"]
        self._protos: dict[str, bytes] | None = None  # by title; none were looked for yet
        self._read: dict[str, dict[str, ProtoInstruction]] = {}

    def instruction(self, module: str, program_id: int, name: str) -> ProtoInstruction | None:
        """An instruction, if the trace has its program; they are kept as `module(program_id)`."""
        return self._program(f"{module}({program_id & (1 << 64) - 1})").get(name)

    def _program(self, title: str) -> dict[str, ProtoInstruction]:
        if self._protos is None:
            kinds = [plane.kind(i) for plane in self._planes for i in plane.kind_ids()]
            found = {kind.name: kind.stats.get("Hlo Proto") for kind in kinds}
            self._protos = {name: p for name, p in found.items() if isinstance(p, bytes)}
        if title not in self._read:
            proto = self._protos.get(title, b"")
            self._read[title] = read_program(proto, 0, len(proto))
        return self._read[title]


@dataclass(frozen=True, slots=True)
class NamedOps:
    """A timeline, the number of the module of each event, and the neighbours of each op.

    Neighbours read what an op makes or make what it reads; those of one run of a computation start
    after it is done, or have started before it.
    """

    work: Timeline
    module: I64
    near: tuple[frozenset[int], ...]


def named_ops(plane: Plane, found: Sequence[Events], programs: Programs) -> NamedOps:
    """All ops of some lines as one timeline."""
    if not found:
        return NamedOps(Timeline.empty(), np.zeros(0, dtype=np.int64), ())
    kind = np.concatenate([events.kind for events in found])
    start = np.concatenate([events.start_ps for events in found])
    stop = start + np.concatenate([events.duration_ps for events in found])
    op, module, program = (
        np.concatenate([events.stat(name) for events in found])
        for name in ("hlo_op", "hlo_module", "program_id")
    )
    names, name = _interned(plane, op)
    modules, home = _interned(plane, module)
    kinds, own = np.unique(np.where(op == MISSING, kind, MISSING), return_inverse=True)
    ids, run = np.unique(program, return_inverse=True)
    table = np.stack([name, home, run, own], axis=1)
    rows, which = np.unique(table, axis=0, return_inverse=True)
    ops: list[TraceOp] = []
    made: list[ProtoInstruction | None] = []
    for row in rows:
        a, b, c, d = (int(index) for index in row)
        made.append(programs.instruction(modules[b], int(ids[c]), names[a]))
        ops.append(_op(names[a] or plane.kind(int(kinds[d])).name, made[-1]))
    work = Timeline(tuple(ops), which.reshape(-1), start, stop)
    return NamedOps(work, home, _neighbours(rows[:, 1:3].tolist(), made))


def _neighbours(
    programs: list[list[int]], made: Sequence[ProtoInstruction | None]
) -> tuple[frozenset[int], ...]:
    """For every op itself, those of its program whose results it reads, and those that read its."""
    homes = [tuple(home) for home in programs]
    at = {(home, one.name): i for i, (home, one) in enumerate(zip(homes, made, strict=True)) if one}
    near = [{i} for i in range(len(made))]
    for i, (home, one) in enumerate(zip(homes, made, strict=True)):
        for name in one.inputs if one else ():
            other = at.get((home, name))
            if other is not None and len(near[i]) < _MOST_NEAR and len(near[other]) < _MOST_NEAR:
                near[i].add(other)
                near[other].add(i)
    return tuple(frozenset(one) for one in near)


def _interned(plane: Plane, codes: I64) -> tuple[list[str], I64]:
    """Texts of a stat, each once, and the index of each event; missing ones are empty."""
    known = plane.texts(codes)
    distinct, at = np.unique(codes, return_inverse=True)
    order: dict[str, int] = {}
    table = [order.setdefault(known.get(code, ""), len(order)) for code in distinct.tolist()]
    return list(order), np.array(table, dtype=np.int64)[at]


def _op(name: str, found: ProtoInstruction | None) -> TraceOp:
    """Without its program an op is what its name says, such as a kernel of NCCL."""
    if found is None:
        stem = name.rpartition(".")[0] if name.rpartition(".")[2].isdigit() else name
        return TraceOp(name, op_class(stem, name, holds=frozenset()), layer_of(""), "", None, None)
    return TraceOp(
        name=name,
        op_class=op_class(
            found.opcode, name, target=found.target, scope=found.op_name, holds=found.inner
        ),
        layer=layer_of(found.op_name),
        line=found.source,
        flops=found.flops,
        nbytes=found.nbytes,
    )
