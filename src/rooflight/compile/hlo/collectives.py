"""Every collective of a module, in whatever form the compiler wrote it, once.

A TPU dump hides collectives in fusions (a reduce-scatter is an all-reduce and a slice fused), in
`async-start` calls, in pairs of `-start` and `-done`, and in asynchronous fusions that repeat the
collective in the matmul that hides it. Here each is one `Collective`, in the words of the algebra.

Which part of an all-reduce a device keeps: the mesh axes that decide it. Right after partitioning a
reduce-scatter is an all-reduce and a slice whose start is looked up in a table by the device's id,
perhaps where the computation of the all-reduce is called from. The start is worked out for every
device; the axes along which it changes are those over which the result is scattered.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.compile.hlo.groups import MeshAxes, pairs_of, read_groups
from rooflight.compile.hlo.instruction import Computation, Instruction, Module, nbytes_of
from rooflight.compile.hlo.loops import Execution
from rooflight.compile.hlo.sites import RENDEZVOUS, START, CommSite, Dones, Sites, is_work

_SAME_ELEMENTS = ("reshape", "transpose", "bitcast", "copy")
_SAME_VALUE = ("reshape", "bitcast", "copy", "convert")
_NUMBER = re.compile(r"-?\d{1,18}")
_FARTHEST = 32


Place = tuple[Computation, Instruction]

Form = Literal["sync", "async", "async fusion", "fusion", "offloaded", "dcn"]

_ALGORITHM = re.compile(r'"emitter":"([^"]*)"(?:,"strategy":"([^"]*)")?')
_DCN = re.compile(r'_xla_megascale_transfer_type="?(\w+)')


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective: what it moves, along which mesh axes, when, and how often.

    Bytes are those of one device and one execution. `axes` is None if the groups are not known;
    `is_whole` is False if a group covers only a part of its axes. `overlapped` names the work
    between start and done, and is None where the done is in another round of the loop or the
    module has no schedule yet.
    """

    name: str
    kind: str
    dtype: str
    input_bytes: int
    output_bytes: int
    axes: tuple[str, ...] | None
    is_whole: bool
    group_size: int | None
    form: Form
    done: str | None
    overlapped: tuple[str, ...] | None
    count: int | None
    loops: tuple[str, ...]
    channel: int | None
    algorithm: str
    op_name: str
    source: str

    @property
    def nbytes(self) -> int:
        """The book's V: the array as if this group did not split it; a permute's own block."""
        if self.kind == "all_to_all":
            return self.input_bytes * (self.group_size or 1)
        return max(self.input_bytes, self.output_bytes)

    @property
    def bytes_per_step(self) -> int | None:
        return None if self.count is None else self.nbytes * self.count

    @property
    def is_exposed(self) -> bool:
        """Whether the schedule leaves nothing to do meanwhile."""
        return self.overlapped == ()


def read_collectives(
    module: Module, runs: Mapping[str, Execution], axes: MeshAxes | None = None
) -> list[Collective]:
    """All collectives of a module, in the order of the text; `axes` are those of the jax mesh."""
    reader = _CollectiveReader(module, axes, Sites(module), only_calls(module))
    return [
        collective
        for name, execution in runs.items()
        for collective in reader.read(module.computations[name], execution)
    ]


@dataclass(frozen=True, slots=True)
class _CollectiveReader:
    """Turns the sites of a module into collectives."""

    module: Module
    axes: MeshAxes | None
    sites: Sites
    calls: Mapping[str, Place]

    def read(self, computation: Computation, execution: Execution) -> list[Collective]:
        found: list[Collective] = []
        dones = Dones.of(computation, self.sites)
        for at, instruction in enumerate(computation.instructions):
            if instruction.opcode == "send":
                dcn = self._dcn(computation, instruction, dones)
                found += [_executed(dcn, execution)] if dcn else []
                continue
            site = self.sites.of(computation, instruction)
            if site is None or self.sites.is_repeat(instruction, site, dones):
                continue
            done = dones.of_start(instruction, site)
            collective = self._collective(instruction, site, done)
            if collective.form not in ("sync", "fusion"):
                collective = replace(collective, overlapped=self._between(computation, at, done))
            for part in self._scattered(computation, instruction, collective):
                found.append(_executed(part, execution))
        return found

    def _collective(
        self, instruction: Instruction, site: CommSite, done: Instruction | None
    ) -> Collective:
        inner = site.inner
        kind, form = self._kind_and_form(instruction, site)
        inputs = nbytes_of(tuple(s for i in site.home.inputs(inner) for s in i.shapes))
        result = inner if done is None or inner is not instruction else done
        if kind == "reduce_scatter" and inner.opcode == "all-reduce":
            result = instruction
        groups = read_groups(inner.attributes) or ()
        pairs = pairs_of(inner.attributes)
        if not groups and not pairs:
            groups = (tuple(range(self.module.num_partitions)),)
        devices = self.module.num_partitions
        known = self.axes.of_groups(groups, devices=devices, pairs=pairs) if self.axes else None
        algorithm = _ALGORITHM.search(instruction.attributes) or _ALGORITHM.search(inner.attributes)
        dtypes = [s.dtype for s in inner.shapes]
        return Collective(
            name=instruction.name,
            kind=kind,
            dtype=dtypes[0] if dtypes else "unknown",
            input_bytes=inputs,
            output_bytes=result.nbytes if kind != "permute" else inputs,
            axes=known.axes if known else None,
            is_whole=known.is_whole if known else True,
            group_size=None if pairs else max(map(len, groups), default=1),
            form=form,
            done=done.name if done else None,
            overlapped=() if self.module.is_scheduled else None,
            count=None,
            loops=(),
            channel=site.channel,
            algorithm="/".join(w for w in algorithm.groups() if w) if algorithm else "",
            op_name=inner.op_name or instruction.op_name,
            source=self.module.source(inner) or self.module.source(instruction),
        )

    def _kind_and_form(self, instruction: Instruction, site: CommSite) -> tuple[str, Form]:
        if instruction is site.inner:
            return site.kind, "async" if instruction.opcode.endswith("-start") else "sync"
        if instruction.opcode == "async-start":
            offloaded = "SPARSECORE" in site.inner.attributes or "sparsecore" in (
                instruction.attribute("async_execution_thread") or ""
            )
            return site.kind, "offloaded" if offloaded else "async"
        callee = instruction.calls("calls") or ""
        if self.sites.mark(callee) == START:
            return site.kind, "async fusion"
        scatters = site.kind == "all_reduce" and instruction.nbytes < site.inner.nbytes
        return "reduce_scatter" if scatters else site.kind, "fusion"

    def _dcn(self, computation: Computation, send: Instruction, dones: Dones) -> Collective | None:
        """A collective between slices: the host sends what it was handed over the network."""
        kind = _DCN.search(send.attributes)
        if kind is None or not send.operands:
            return None
        data = computation.inputs(send)[0]
        place = RENDEZVOUS.search(send.attributes)
        done = dones.by_rendezvous.get(place[1]) if place else None
        start = computation.position[send.name]
        dcn: Mapping[str, int] = self.axes.dcn if self.axes else {}
        return Collective(
            name=send.name,
            kind=kind[1].lower(),
            dtype=data.shapes[0].dtype if data.shapes else "unknown",
            input_bytes=data.nbytes,
            output_bytes=done.nbytes if done else data.nbytes,
            axes=tuple(dcn) or None,
            is_whole=all(self.axes.sizes[a] == n for a, n in dcn.items()) if self.axes else True,
            group_size=math.prod(dcn.values()) if dcn else None,
            form="dcn",
            done=done.name if done else None,
            overlapped=self._between(computation, start, done),
            count=None,
            loops=(),
            channel=None,
            algorithm="",
            op_name=send.op_name,
            source=self.module.source(send),
        )

    def _between(
        self, computation: Computation, start: int, done: Instruction | None
    ) -> tuple[str, ...] | None:
        """The work the schedule puts between a start and its done."""
        if done is None or not self.module.is_scheduled:
            return None
        end = computation.position[done.name]
        return tuple(i.name for i in computation.instructions[start + 1 : end] if is_work(i))

    def _scattered(
        self, computation: Computation, instruction: Instruction, found: Collective
    ) -> list[Collective]:
        """Before fusion a reduce-scatter is an all-reduce of which each device keeps a part."""
        if self.module.is_scheduled or instruction.opcode != "all-reduce" or not self.axes:
            return [found]
        sizes = self.axes.sizes
        kept = sliced_axes((computation, instruction), sizes, self.calls)
        scattered = tuple(a for a in found.axes or () if a in kept)
        if not scattered:
            return [found]
        rest = tuple(a for a in found.axes or () if a not in kept)
        ways = math.prod(sizes[a] for a in scattered)
        part = found.input_bytes // ways
        first = replace(
            found, kind="reduce_scatter", axes=scattered, output_bytes=part, group_size=ways
        )
        if not rest:
            return [first]
        size = math.prod(sizes[a] for a in rest)
        second = replace(
            found, axes=rest, input_bytes=part, output_bytes=part, group_size=size, form="sync"
        )
        return [first, second]


def _executed(collective: Collective, execution: Execution) -> Collective:
    names = tuple(loop.name for loop in execution.loops)
    return replace(collective, count=execution.count, loops=names)


def only_calls(module: Module) -> dict[str, Place]:
    """The computations that one `call` of the module asks for, and that call.

    jax takes a pending sum in a computation of its own; its caller cuts the result.
    """
    found: dict[str, list[Place]] = {}
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "call":
                for name in instruction.called:
                    found.setdefault(name, []).append((computation, instruction))
    return {name: places[0] for name, places in found.items() if len(places) == 1}


def sliced_axes(
    place: Place, axes: Mapping[str, int], calls: Mapping[str, Place]
) -> dict[str, int | None]:
    """The mesh axes that decide which part of a value a device keeps; none if it keeps it all.

    With the dim that each cuts, unless the value was reshaped before.
    """
    cut = _only_slice(place, calls)
    if cut is None:
        return {}
    value = cut[0].inputs(cut[1])[0]
    is_same = [s.dims for s in value.shapes] == [s.dims for s in place[1].shapes]
    return {name: dim if is_same else None for name, dim in cut_axes(cut, axes).items()}


def cut_axes(cut: Place, axes: Mapping[str, int]) -> dict[str, int | None]:
    """The mesh axes that decide where a slice starts, with the one dim that each cuts."""
    starts = [varying_axes((cut[0], i), axes) for i in cut[0].inputs(cut[1])[1:]]
    dims = {name: [at for at, over in enumerate(starts) if name in over] for name in axes}
    return {name: at[0] if len(at) == 1 else None for name, at in dims.items() if at}


def varying_axes(place: Place, axes: Mapping[str, int]) -> set[str]:
    """The mesh axes along which a scalar index changes; none if it does not follow from the id."""
    values = _values(*place, axes, _FARTHEST)
    return {name for name, along in _strides(axes).items() if values and _changes(values, *along)}


def _only_slice(place: Place, calls: Mapping[str, Place]) -> Place | None:
    """The slice that is the only use of a value, through reshapes and out of calls."""
    computation, value = place
    for _ in range(_FARTHEST):
        if value is computation.root and computation.name in calls:
            computation, value = calls[computation.name]
        start = computation.position[value.name]
        users = [i for i in computation.instructions[start:] if value.name in i.operands]
        if len(users) != 1:
            return None
        if users[0].opcode == "dynamic-slice":
            return computation, users[0]
        if users[0].opcode not in _SAME_ELEMENTS:
            return None
        value = users[0]
    return None


def _strides(axes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Places between neighbours along an axis, and its size; row-major."""
    found: dict[str, tuple[int, int]] = {}
    stride = 1
    for name, size in reversed(list(axes.items())):
        found[name] = (stride, size)
        stride *= size
    return found


def _changes(values: list[int], stride: int, size: int) -> bool:
    """Whether moving along an axis ever changes the value."""
    return any(
        value != values[place - place // stride % size * stride]
        for place, value in enumerate(values)
    )


def _values(
    computation: Computation, value: Instruction, axes: Mapping[str, int], depth: int
) -> list[int] | None:
    """The value of a scalar index on every device; None if it does not follow from the id."""
    places = math.prod(axes.values())
    inputs = computation.inputs(value)
    if value.opcode == "partition-id":
        return list(range(places))
    if value.integer is not None:
        return [value.integer] * places
    if depth == 0 or not inputs:
        return None
    if value.opcode in _SAME_VALUE:
        return _values(computation, inputs[0], axes, depth - 1)
    if value.opcode == "dynamic-slice" and inputs[0].opcode == "constant" and len(inputs) == 2:
        return _looked_up(inputs[0], _values(computation, inputs[1], axes, depth - 1))
    if value.opcode in ("add", "subtract", "multiply") and len(inputs) == 2:
        left, right = (_values(computation, i, axes, depth // 2) for i in inputs)
        return _combined(value.opcode, left, right)
    return None


def _looked_up(table: Instruction, places: list[int] | None) -> list[int] | None:
    """Entries of a constant table; a dump may leave a large one out."""
    entries = [int(n) for n in _NUMBER.findall(table.body)]
    if places is None or not entries or not all(0 <= at < len(entries) for at in places):
        return None
    return [entries[at] for at in places]


def _combined(opcode: str, left: list[int] | None, right: list[int] | None) -> list[int] | None:
    if left is None or right is None:
        return None
    pairs = zip(left, right, strict=True)
    if opcode == "multiply":
        return [a * b for a, b in pairs]
    sign = 1 if opcode == "add" else -1
    return [a + sign * b for a, b in pairs]
