"""Roofline: a chip's roof, and a matmul, or every op of a model, as points under it.

The numbers are those of `rooflight roofline`; an op of a model is priced on one chip, unsharded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from rooflight.costs.roofline import (
    Memory,
    OpTime,
    contraction_time,
    critical_batch,
    matmul_time,
    memory_bytes_per_s,
    ridge_point,
)
from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UsageError
from rooflight.hardware.catalog import chip_names
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import dim_sizes, elements, op_flops
from rooflight.models.graph.ops import HAS_FLOPS, Graph, Op
from rooflight.models.presets import model_names
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Picture,
    Table,
    show_bytes,
    show_seconds,
    show_share,
)
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.units import format_si

_SIZES = tuple(str(2**n) for n in range(18))
_WIDTHS = tuple(str(2**n) for n in range(6, 18))
_MOST_SIZE = 1e9


@dataclass(frozen=True, slots=True)
class _Placed:
    """Something under the roof."""

    name: str
    flops: float
    nbytes: float
    time: OpTime

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.time.lower_s

    @property
    def row(self) -> tuple[str | float, ...]:
        time = self.time
        return (
            *(self.name, time.lower_s, time.binds, time.upper_s, time.intensity),
            *(time.utilisation, self.flops, self.nbytes),
        )


def _show_intensity(value: float) -> str:
    return f"{value:.4g} FLOP/B"


def _show_flops(value: float) -> str:
    return format_si(value, "FLOP")


_COLUMNS = (
    Column("name", "op"),
    Column("lower_s", "time", show_seconds),
    Column("binds", "binds"),
    Column("upper_s", "if nothing overlaps", show_seconds),
    Column("intensity_flops_per_byte", "intensity", _show_intensity),
    Column("utilisation", "utilisation", show_share),
    Column("flops", "FLOPs", _show_flops),
    Column("bytes", "bytes moved", show_bytes),
)


def answer(question: ViewQuery) -> Answer:
    """Where the op lies, what binds it, how long it takes."""
    chip = parse_slice(question.text("on")).chip
    if not chip.flops:
        raise UsageError(
            f"{chip.title} has no rates in its catalog, so it has no roof", hint="choose v5e"
        )
    dtype = question.dtype("dtype")
    memory = cast(Memory, question.text("memory"))  # one of the choices of the field
    compute = chip.matmul_dtype(dtype.name)
    roof = RoofLine(
        f"{chip.name} {compute}", chip.peak_flops(compute), memory_bytes_per_s(chip, memory)
    )
    placed = list(_placed(question, chip, dtype, memory))
    points = [PlotPoint(p.name, p.time.intensity, p.flops_per_s) for p in placed]
    critical = critical_batch(chip, weight=dtype, activation=dtype, compute=compute, memory=memory)
    title = f"{chip.title}, {compute} over {memory}"
    slowest = max(placed, key=lambda p: p.time.lower_s)
    return Answer(
        sentences=(_sentence(slowest, len(placed)), _about(chip, dtype, compute)),
        facts=(
            Fact("lower_s", "time", slowest.time.lower_s, show_seconds, f"of {slowest.name}"),
            Fact("binds", "binds", slowest.time.binds),
            Fact("intensity_flops_per_byte", "intensity", slowest.time.intensity, _show_intensity),
            Fact(
                "ridge_flops_per_byte",
                "ridge",
                ridge_point(chip, compute, memory),
                _show_intensity,
                "left of it bytes bind, right of it FLOPs",
            ),
            Fact(
                "critical_batch_tokens",
                "critical batch",
                critical,
                lambda b: f"{b:.4g} tokens",
                "from which a matmul with large weights is bound by FLOPs",
            ),
        ),
        pictures=(
            Picture(
                "roofline",
                roofline_svg([roof], points, title=title),
                f"FLOP/s that each intensity allows on {chip.title}. {_sentence(slowest, 1)}",
            ),
        ),
        tables=(Table("ops", "What lies under the roof", _COLUMNS, tuple(p.row for p in placed)),),
        figures=(("flops_per_s", roof.flops_per_s), ("bytes_per_s", roof.bytes_per_s)),
        command=_command(question),
    )


def _sentence(one: _Placed, count: int) -> str:
    time = one.time
    slowest = "the slowest, " if count > 1 else ""
    return (
        f"{slowest}{one.name}: {show_seconds(time.lower_s)}, bound by {time.binds};"
        f" {time.utilisation:.1%} of the matrix unit's rate"
    )


def _about(chip: Chip, dtype: Dtype, compute: str) -> str:
    upcast = "" if compute == dtype.name else f", computed in {compute}"
    return f"One {chip.title}, stored in {dtype.name}{upcast}; unsharded, each operand read once."


def _placed(question: ViewQuery, chip: Chip, dtype: Dtype, memory: Memory) -> Iterator[_Placed]:
    if question.text("model"):
        yield from _ops(question, chip, dtype, memory)
        return
    m, k, n = (question.count(name) for name in ("b", "d", "f"))
    time = matmul_time(
        *(chip,),
        m=m,
        k=k,
        n=n,
        lhs=dtype,
        rhs=dtype,
        out=dtype,
        memory=memory,
        pad=question.is_on("pad"),
    )
    flops = 2.0 * m * k * n
    yield _Placed(f"{m}x{k}x{n}", flops, flops / time.intensity, time)


def _ops(question: ViewQuery, chip: Chip, dtype: Dtype, memory: Memory) -> Iterator[_Placed]:
    """The contractions of one layer and of the head, each once, on one chip."""
    graph = model_graph(question.model("model"))
    seq = question.length("seq")
    batch = max(1, question.count("b") // seq)
    sizes = dim_sizes(graph, batch=batch, seq=seq)
    compute = chip.matmul_dtype(dtype.name)
    for op in _distinct(graph):
        flops = float(op_flops(op, sizes, causal=True))
        nbytes = _op_bytes(op, sizes, dtype)
        time = contraction_time(
            chip, flops=flops, bytes_moved=nbytes, compute=compute, memory=memory
        )
        yield _Placed(op.name, flops, nbytes, time)


def _distinct(graph: Graph) -> list[Op]:
    """Ops with FLOPs, each name once: the layers of a model are alike."""
    return list({op.name: op for op in graph.ops if op.kind in HAS_FLOPS}.values())


def _op_bytes(op: Op, sizes: Mapping[str, int], dtype: Dtype) -> int:
    tensors = (*op.contraction.operands, op.contraction.result)
    return sum(dtype.nbytes(elements(tensor, sizes)) for tensor in tensors)


def _command(question: ViewQuery) -> str:
    text = question.text
    chip = parse_slice(text("on")).chip.name
    shared = f"rooflight roofline --on {chip} --dtype {text('dtype')} --memory {text('memory')}"
    if text("model"):
        return shared
    pad = " --pad" if question.is_on("pad") else ""
    return f"{shared} --matmul {'x'.join(text(name) for name in 'bdf')}{pad}"


VIEW = View(
    "roofline",
    "Roofline",
    "A matmul or the ops of a model under the roof of a chip: what binds, and how long it takes.",
    (
        Field("on", "Chip", "text", "v5e", "any chip of `rooflight chips`", chip_names()),
        Field("dtype", "Dtype", "choice", "bf16", choices=tuple(DTYPES)),
        Field(
            *("memory", "Memory", "choice", "hbm", "where operands come from"),
            choices=("hbm", "vmem", "pcie"),
        ),
        Field("b", "Batch B", "count", "128", "tokens", stops=_SIZES, most=_MOST_SIZE),
        Field("d", "D", "count", "8192", "contracted", stops=_WIDTHS, most=_MOST_SIZE),
        Field("f", "F", "count", "8192", "[B,D] x [D,F]", stops=_WIDTHS, most=_MOST_SIZE),
        Field("pad", "Whole tiles", "switch", "no", "round the matmul up to the matrix unit"),
        Field(
            *("model", "Ops of a model", "text", "", "in place of D and F: all matmuls of a layer"),
            choices=model_names(),
            is_optional=True,
        ),
        Field("seq", "Sequence", "length", "4096", "tokens, for a model", most=2**24),
    ),
    answer,
)
