"""What `rooflight hlo` shows of a compiled step: a line, tables, a document."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.dump import Dump
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.hlo.work import HloWork
from rooflight.ui.html.page import Grid
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_si

_ROWS = 12


def answer(step: CompiledStep, dump: Dump) -> str:
    """Size, FLOPs, collectives and memory in a line or two."""
    module = step.module
    unknown = len(step.of_unknown_flops)
    kernels = f" ({unknown} kernels or loops do not say theirs)" if unknown else ""
    moved = [c.bytes_per_step for c in step.collectives]
    known = sum(n for n in moved if n is not None)
    more = " and an unknown rest" if None in moved else ""
    lines = [
        f"{module.name}, {dump.stage}, one of {format_count(module.num_partitions)} devices:"
        f" {format_si(step.known_flops, 'FLOP')} of matmuls per step{kernels},"
        f" {len(step.collectives)} collectives of {format_si(known, 'B')} in all{more}."
    ]
    if step.memory:
        parts = [
            f"{name} {format_si(size, 'B')}"
            for name, size in step.memory.by_category.items()
            if size
        ]
        total = format_si(step.memory.total_bytes, "B")
        lines.append(f"The compiler needs {total} of main memory: {', '.join(parts)}.")
    if step.recomputed_flops:
        part = step.recomputed_flops / step.known_flops
        lines.append(f"{part:.0%} of the FLOPs are computed a second time to save memory.")
    lines += [f"The compiler warns: {text}" for text in step.warnings]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Shown:
    """A table, and how many rows it leaves out."""

    grid: Grid
    left: int

    @property
    def text(self) -> str:
        shown = table(self.grid.header, self.grid.rows, align=self.grid.align)
        return f"{shown}\n({self.left} more rows: -v)" if self.left else shown

    @property
    def captioned(self) -> Grid:
        more = f" ({format_count(self.left)} smaller ones left out)" if self.left else ""
        return replace(self.grid, caption=self.grid.caption + more)


def tables(step: CompiledStep, *, everything: bool) -> list[str]:
    """Collectives, loops, matmuls, moves and the peak; what is empty is left out."""
    return [shown.text for shown in grids(step, most=None if everything else _ROWS)]


def grids(step: CompiledStep, *, most: int | None) -> list[Shown]:
    """The tables as records, each with at most so many rows."""
    found = [
        _collectives(step.collectives, most),
        _loops(step),
        _matmuls(step, most),
        _moves(step, most),
        _peak(step, most),
    ]
    return [shown for shown in found if shown.grid.rows]


def _shown(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], align: str, *, total: int
) -> Shown:
    cells = tuple(tuple(row) for row in rows)
    return Shown(Grid(caption, tuple(header), cells, align), total - len(rows))


def _collectives(found: Sequence[Collective], most: int | None) -> Shown:
    """Equal ones in one row, the most bytes first."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for c in found:
        hidden = bool(c.overlapped)
        key = (c.kind, c.axes, c.is_whole, c.form, c.dtype, c.nbytes, c.loops, hidden, c.algorithm)
        groups.setdefault(key, []).append(c)
    ordered = sorted(groups.values(), key=lambda g: -sum(c.bytes_per_step or 0 for c in g))
    rows = [_collective_row(group) for group in ordered[:most]]
    header = ["collective", "axes", "form", "dtype", "bytes", "times", "bytes per step", "in"]
    columns = [*header, "meanwhile", "from"]
    return _shown("Collectives", columns, rows, "llllrrrlll", total=len(ordered))


def _collective_row(group: list[Collective]) -> list[str]:
    one = group[0]
    counts = [c.count for c in group]
    total = [c.bytes_per_step for c in group]
    return [
        one.kind.replace("_", "-"),
        _axes(one),
        one.form,
        one.dtype,
        format_si(one.nbytes, "B"),
        "unknown" if None in counts else format_count(sum(c or 0 for c in counts)),
        "unknown" if None in total else format_si(sum(n or 0 for n in total), "B"),
        one.loops[-1] if one.loops else "-",
        _meanwhile(one),
        _origin(one.source, one.op_name),
    ]


def _axes(one: Collective) -> str:
    if one.axes is None:
        return f"{one.group_size} devices" if one.group_size else "unknown"
    return "+".join(one.axes) + ("" if one.is_whole else f" (part: {one.group_size})")


def _meanwhile(one: Collective) -> str:
    if one.overlapped is None:
        return "unknown"
    names = list(one.overlapped)
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0] + more if names else "nothing"


def _origin(source: str, op_name: str) -> str:
    """File and line without the folders, else the end of the program's own name."""
    return source.rpartition("/")[2] or op_name.rpartition("/")[2] or "-"


def _loops(step: CompiledStep) -> Shown:
    rows = [
        [loop.name, _count(loop.trips), _count(total), _origin(loop.source, loop.op_name)]
        for loop, total in step.loops.values()
    ]
    header = ["loop", "trips", "rounds per step", "from"]
    return _shown("Loops", header, rows, "lrrl", total=len(rows))


def _count(value: int | None) -> str:
    return "unknown" if value is None else format_count(value)


def _matmuls(step: CompiledStep, most: int | None) -> Shown:
    found = [w for w in step.work if w.flops is None or w.flops > 0]
    found.sort(key=lambda w: -(w.flops_per_step or 0))
    rows = [
        [
            w.name,
            w.shape,
            "unknown" if w.flops is None else format_si(w.flops, "FLOP"),
            _count(w.count),
            "-" if w.estimated_cycles is None else format_count(w.estimated_cycles),
            w.recomputed or "-",
            _origin(w.source, w.op_name),
        ]
        for w in found[:most]
    ]
    header = ["matmul", "result", "FLOPs", "times", "est. cycles", "again for", "from"]
    return _shown("Matmuls", header, rows, "llrrrll", total=len(found))


def _moves(step: CompiledStep, most: int | None) -> Shown:
    found = sorted(step.moves, key=lambda w: -w.nbytes * (w.count or 1))
    rows = [_move_row(w) for w in found[:most]]
    header = ["copy or transpose", "what", "bytes", "times", "from"]
    return _shown("Copies and transposes", header, rows, "llrrl", total=len(found))


def _move_row(work: HloWork) -> list[str]:
    size = format_si(work.nbytes, "B")
    return [work.name, work.shape, size, _count(work.count), _origin(work.source, work.op_name)]


def _peak(step: CompiledStep, most: int | None) -> Shown:
    buffers = list(step.memory.peak) if step.memory else []
    large = [b for b in buffers if b.nbytes * 100 >= buffers[0].nbytes]
    rows = [
        [b.name, b.shape or "-", format_si(b.nbytes, "B"), b.memory, _origin(b.source, b.op_name)]
        for b in large[:most]
    ]
    header = ["at the peak", "what", "bytes", "in", "from"]
    return _shown("Live at the peak", header, rows, "llrll", total=len(large))


def document(step: CompiledStep, dump: Dump) -> dict[str, object]:
    """Everything the tables show, in full, as plain data."""
    memory = step.memory
    return {
        "module": step.module.name,
        "stage": dump.stage,
        "num_partitions": step.module.num_partitions,
        "is_scheduled": step.module.is_scheduled,
        "flops": step.flops,
        "known_flops": step.known_flops,
        "recomputed_flops": step.recomputed_flops,
        "collectives": [
            asdict(c) | {"nbytes": c.nbytes, "bytes_per_step": c.bytes_per_step}
            for c in step.collectives
        ],
        "loops": [
            {"name": loop.name, "trips": loop.trips, "rounds_per_step": total}
            for loop, total in step.loops.values()
        ],
        "work": [asdict(w) for w in step.work],
        "memory": None if memory is None else asdict(memory) | {"total_bytes": memory.total_bytes},
        "warnings": list(step.warnings),
    }
