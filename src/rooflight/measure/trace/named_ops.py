"""Ops of events that only name an instruction: the rest is in the compiled program.

In: events with the stats `hlo_op`, `hlo_module` and `program_id`, and the programs of the trace.
Out: a `Timeline`, and the module of each event. Traces of GPUs and CPUs are such.

The compiled programs inside a trace: what each instruction is, where it comes from, its work.
Traces of TPUs say all of this beside their events; traces of CPUs and GPUs say only the name of the
instruction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rooflight.measure.trace.classify import layer_of, op_class
from rooflight.measure.trace.events import MISSING, Events
from rooflight.measure.trace.record import Timeline, TraceOp
from rooflight.measure.trace.wire import BYTES, I64, VARINT, Data, WireField, fields, numbers, text
from rooflight.measure.trace.xspace import Plane

# Bits of XLA's PrimitiveType, by its number; others (tuples, tokens) have no bytes of their own.
_KINDS = {
    4: (21, 22, 32),
    8: (1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33),
    16: (3, 7, 10, 16),
    32: (4, 8, 11),
    64: (5, 9, 12, 15),
    128: (18,),
}
_BITS = {kind: bits for bits, kinds in _KINDS.items() for kind in kinds}
_DEEPEST = 8  # of tuples in tuples
_LARGEST = 2**60  # elements of an array; what says more is not believed
_MATMULS = ("dot", "convolution")
_VIEWS = ("get-tuple-element", "tuple", "bitcast")
_MOST_INPUTS = 64
_MOVES_NOTHING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota")

_MOST_NEAR = 64  # neighbours of an op


@dataclass(frozen=True, slots=True)
class ProtoInstruction:
    """One instruction of a compiled program."""

    name: str
    opcode: str
    op_name: str  # scopes of the program and the primitive
    source: str  # file:line
    target: str  # of a custom call
    inner: frozenset[str]  # opcodes of what a fusion holds
    inputs: frozenset[str]  # instructions whose results it reads
    flops: float | None  # of one execution; only matmuls are counted
    nbytes: int | None  # operands and result, once each


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


@dataclass(slots=True)
class _Raw:
    """An instruction as far as its own message says."""

    name: str = ""
    opcode: str = ""
    op_name: str = ""
    source: str = ""
    target: str = ""
    frame: int = 0
    number: int = 0
    shape: "_ProtoShape | None" = None
    contracted: tuple[int, ...] = ()
    operands: list[int] = field(default_factory=list[int])
    called: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class _ProtoShape:
    dims: tuple[int, ...]
    nbytes: int

    @property
    def size(self) -> int:
        return math.prod(self.dims)


def read_program(data: Data, start: int, stop: int) -> dict[str, ProtoInstruction]:
    """HloProto: module 1. HloModuleProto: computations 3, stack frames 17."""
    modules = [f for f in fields(data, start, stop) if f.number == 1 and f.wire == BYTES]
    if not modules:
        return {}
    parts = _bytes(data, modules[0])
    bodies = dict(_computation(data, f) for f in parts if f.number == 3)
    frames: dict[int, str] = {}
    for part in parts:
        if part.number == 17:
            frames = _frames(data, part)
    by_id = {one.number: one for body in bodies.values() for one in body}
    work = {number: _work(body, by_id) for number, body in bodies.items()}
    every = [one for body in bodies.values() for one in body]
    return {one.name: _finish(one, by_id, work, frames) for one in every}


@dataclass(frozen=True, slots=True)
class _BodyWork:
    """What a computation holds: its opcodes and the FLOPs of its matmuls, None if unknown."""

    opcodes: frozenset[str]
    flops: float | None


def _work(body: Sequence[_Raw], by_id: Mapping[int, _Raw]) -> _BodyWork:
    counts = [_flops(i, by_id) for i in body if i.opcode in _MATMULS]
    known = [n for n in counts if n is not None]
    flops = math.fsum(known) if len(known) == len(counts) else None
    return _BodyWork(frozenset(i.opcode for i in body), flops)


def _finish(
    one: _Raw, by_id: Mapping[int, _Raw], work: Mapping[int, _BodyWork], frames: Mapping[int, str]
) -> ProtoInstruction:
    """A fusion does what it holds; what a loop or a call holds has events of its own.

    Nobody knows what a custom call does.
    """
    inside = work.get(one.called[0]) if one.opcode == "fusion" and one.called else None
    own = inside or _work([one], by_id)
    return ProtoInstruction(
        name=one.name,
        opcode=one.opcode,
        op_name=one.op_name,
        source=one.source or frames.get(one.frame, ""),
        target=one.target,
        inner=inside.opcodes if inside else frozenset(),
        inputs=_inputs(one, by_id),
        flops=None if one.opcode == "custom-call" else own.flops,
        nbytes=_traffic(one, by_id),
    )


def _inputs(one: _Raw, by_id: Mapping[int, _Raw]) -> frozenset[str]:
    """Where its operands were made, through tuples and views; at most some dozens."""
    found: set[str] = set()
    seen: set[int] = set()
    level = one.operands[:_MOST_INPUTS]
    while level and len(seen) < _MOST_INPUTS:
        seen.update(level)
        made = [by_id[number] for number in level if number in by_id]
        found.update(i.name for i in made if i.opcode not in _VIEWS)
        level = [n for i in made if i.opcode in _VIEWS for n in i.operands if n not in seen]
    return frozenset(found)


def _flops(one: _Raw, by_id: Mapping[int, _Raw]) -> float | None:
    """2 * elements of the result * elements summed for each (book, chapter 4); dots only."""
    lhs = by_id.get(one.operands[0]) if one.operands else None
    if one.opcode != "dot" or one.shape is None or lhs is None or lhs.shape is None:
        return None
    dims = lhs.shape.dims
    if any(d >= len(dims) for d in one.contracted):
        return None
    return 2.0 * one.shape.size * math.prod(dims[d] for d in set(one.contracted))


def _traffic(one: _Raw, by_id: Mapping[int, _Raw]) -> int | None:
    """Operands read and result written, as if all of each: an upper bound where slices are."""
    if one.opcode in _MOVES_NOTHING or one.shape is None:
        return None
    inputs = [by_id[number].shape for number in one.operands if number in by_id]
    return one.shape.nbytes + sum(shape.nbytes for shape in inputs if shape)


def _computation(data: Data, found: WireField) -> tuple[int, list[_Raw]]:
    """HloComputationProto: instructions 2, id 5."""
    own = list(fields(data, found.start, found.stop))
    ids = [f.signed for f in own if f.number == 5 and f.wire == VARINT]
    body = [_instruction(data, f) for f in own if f.number == 2 and f.wire == BYTES]
    return (ids[-1] if ids else 0), body


def _instruction(data: Data, found: WireField) -> _Raw:
    """HloInstructionProto: name 1, opcode 2, shape 3, metadata 7, target 28, dot 30, ids 35-38."""
    raw = _Raw()
    for f in fields(data, found.start, found.stop):
        if f.number == 35 and f.wire == VARINT:
            raw.number = f.signed
        elif f.number == 36:
            raw.operands += numbers(data, f)
        elif f.number == 38:
            raw.called += numbers(data, f)
        elif f.wire != BYTES:
            continue
        elif f.number == 1:
            raw.name = text(data, f)
        elif f.number == 2:
            raw.opcode = text(data, f)
        elif f.number == 3:
            raw.shape = _shape(data, f, _DEEPEST)
        elif f.number == 7:
            _metadata(data, f, raw)
        elif f.number == 28:
            raw.target = text(data, f)
        elif f.number == 30:
            raw.contracted = tuple(_repeated(data, f, 1))
    return raw


def _metadata(data: Data, found: WireField, raw: _Raw) -> None:
    """OpMetadata: op_name 2, source_file 3, source_line 4, stack_frame_id 15."""
    words = {f.number: text(data, f) for f in _bytes(data, found) if f.number in (2, 3)}
    counts = {f.number: f.signed for f in fields(data, found.start, found.stop) if f.wire == VARINT}
    raw.op_name = words.get(2, "")
    raw.frame = counts.get(15, 0)
    if words.get(3):
        raw.source = f"{words[3]}:{counts[4]}" if 4 in counts else words[3]


def _bytes(data: Data, found: WireField) -> list[WireField]:
    return [f for f in fields(data, found.start, found.stop) if f.wire == BYTES]


def _repeated(data: Data, found: WireField, number: int) -> list[int]:
    own = [f for f in fields(data, found.start, found.stop) if f.number == number]
    return [value for f in own for value in numbers(data, f)]


def _shape(data: Data, found: WireField, deepest: int) -> _ProtoShape:
    """ShapeProto: element_type 2, dimensions 3, tuple_shapes 4."""
    own = list(fields(data, found.start, found.stop))
    kinds = [f.value for f in own if f.number == 2 and f.wire == VARINT]
    dims = tuple(n for f in own if f.number == 3 for n in numbers(data, f))
    if len(dims) > 64 or math.prod(dims) > _LARGEST:
        return _ProtoShape((), 0)
    nbytes = math.prod(dims) * _BITS.get(kinds[-1] if kinds else 0, 0) // 8
    if deepest:
        parts = [f for f in own if f.number == 4 and f.wire == BYTES]
        nbytes += sum(_shape(data, f, deepest - 1).nbytes for f in parts)
    return _ProtoShape(dims, nbytes)


def _frames(data: Data, found: WireField) -> dict[int, str]:
    """Frame -> file:line. StackFrameIndexProto: files 1, locations 3, frames 4; all from one."""
    own = _bytes(data, found)
    files = [text(data, f) for f in own if f.number == 1]
    places = [_counts(data, f) for f in own if f.number == 3]
    frames = [_counts(data, f).get(1, 0) for f in own if f.number == 4]
    found_lines: dict[int, str] = {}
    for frame, place in enumerate(frames, start=1):
        location = places[place - 1] if 0 < place <= len(places) else {}
        file = location.get(1, 0)
        if 0 < file <= len(files):
            found_lines[frame] = _place(files, file, location.get(3))
    return found_lines


def _place(files: Sequence[str], file: int, line: int | None) -> str:
    return f"{files[file - 1]}:{line}" if line is not None else files[file - 1]


def _counts(data: Data, found: WireField) -> dict[int, int]:
    own = fields(data, found.start, found.stop)
    return {f.number: f.signed for f in own if f.wire == VARINT}
