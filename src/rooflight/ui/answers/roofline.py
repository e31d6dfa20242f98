"""Matmuls under the roof of a chip as an `Answer`: what binds each, and how long it takes.

In: a chip, a dtype, a memory, and what lies under the roof. Out: what terminal, explorer and
notebook show of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.costs.roofline import Memory, OpTime, critical_batch, memory_bytes_per_s, ridge_point
from rooflight.dtypes import Dtype
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
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
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.units import format_si

_WHERE = {"hbm": "HBM", "vmem": "on-chip memory", "pcie": "PCIe"}


@dataclass(frozen=True, slots=True)
class Placed:
    """Something under the roof."""

    name: str
    flops: float
    nbytes: float
    time: OpTime

    @property
    def point(self) -> PlotPoint:
        return PlotPoint(self.name, self.time.intensity, self.flops / self.time.lower_s)


def placed_matmul(m: int, k: int, n: int, time: OpTime) -> Placed:
    """[m,k] x [k,n]."""
    flops = 2.0 * m * k * n
    return Placed(f"{m}x{k}x{n}", flops, flops / time.intensity, time)


@dataclass(frozen=True, slots=True)
class ChipRoof:
    """A chip at a dtype on a memory."""

    chip: Chip
    dtype: Dtype
    memory: Memory

    def __post_init__(self) -> None:
        if not self.chip.flops:
            raise UsageError(
                f"{self.chip.title} has no rates in its catalog, so it has no roof",
                hint="choose one that `rooflight chips` shows with a rate, such as v5e",
            )

    @property
    def compute(self) -> str:
        return self.chip.matmul_dtype(self.dtype.name)

    @property
    def line(self) -> RoofLine:
        peak, rate = self.chip.peak_flops(self.compute), memory_bytes_per_s(self.chip, self.memory)
        return RoofLine(f"{self.chip.name} {self.compute}", peak, rate)

    @property
    def ridge(self) -> float:
        return ridge_point(self.chip, self.compute, self.memory)

    @property
    def critical_batch(self) -> float:
        dtype = self.dtype
        return critical_batch(
            *(self.chip,),
            weight=dtype,
            activation=dtype,
            compute=self.compute,
            memory=self.memory,
        )


def roofline_answer(roof: ChipRoof, placed: Sequence[Placed]) -> Answer:
    """Where the roofs meet, and what lies under them; the slowest comes first in words."""
    line, title = roof.line, f"{roof.chip.title}, {roof.compute} over {roof.memory}"
    drawn = roofline_svg([line], [p.point for p in placed], title=title)
    slowest = max(placed, key=lambda p: p.time.lower_s, default=None)
    said = [_sentence(slowest, len(placed))] if slowest else []
    caption = f"FLOP/s that each intensity allows on {roof.chip.title}. {' '.join(said)}".strip()
    note = "from which a matmul with large weights is bound by FLOPs"
    return Answer(
        sentences=(*said, *_about(roof)),
        facts=(
            *(_facts(slowest) if slowest else ()),
            Fact(
                *("ridge_flops_per_byte", "ridge", roof.ridge, _show_intensity),
                "left of it bytes bind, right of it FLOPs",
            ),
            Fact(
                *("critical_batch_tokens", "critical batch", roof.critical_batch),
                *(_show_tokens, note),
            ),
        ),
        pictures=(Picture("roofline", drawn, caption),),
        tables=(_table(placed),) if placed else (),
        figures=(("flops_per_s", line.flops_per_s), ("bytes_per_s", line.bytes_per_s)),
    )


def _sentence(one: Placed, count: int) -> str:
    time = one.time
    slowest = "the slowest, " if count > 1 else ""
    return (
        f"{slowest}{one.name}: {show_seconds(time.lower_s)}, bound by {time.binds};"
        f" {time.utilisation:.1%} of the matrix unit's rate"
    )


def _about(roof: ChipRoof) -> tuple[str, str]:
    line = roof.line
    upcast = "" if roof.compute == roof.dtype.name else f", computed in {roof.compute}"
    return (
        f"{roof.chip.name}, {roof.dtype.name} over {_WHERE[roof.memory]}{upcast}: ridge at"
        f" {roof.ridge:.4g} FLOP/B, critical batch {roof.critical_batch:.4g} tokens",
        f"{format_si(line.flops_per_s, 'FLOP/s')} over {format_si(line.bytes_per_s, 'B/s')};"
        " left of the ridge bytes bind, right of it FLOPs",
    )


def _facts(one: Placed) -> tuple[Fact, ...]:
    time = one.time
    return (
        Fact("lower_s", "time", time.lower_s, show_seconds, f"of {one.name}"),
        Fact("binds", "binds", time.binds),
        Fact("intensity_flops_per_byte", "intensity", time.intensity, _show_intensity),
    )


def _table(placed: Sequence[Placed]) -> Table:
    columns = (
        Column("name", "matmul"),
        Column("lower_s", "time", show_seconds),
        Column("binds", "binds"),
        Column("upper_s", "if nothing overlaps", show_seconds),
        Column("intensity_flops_per_byte", "intensity", _show_intensity),
        Column("utilisation", "utilisation", show_share),
        Column("flops", "FLOPs", lambda v: format_si(v, "FLOP")),
        Column("bytes", "bytes moved", show_bytes),
    )
    rows = tuple(
        (
            *(p.name, p.time.lower_s, p.time.binds, p.time.upper_s, p.time.intensity),
            *(p.time.utilisation, p.flops, p.nbytes),
        )
        for p in placed
    )
    return Table("ops", "What lies under the roof", columns, rows)


def _show_tokens(value: float) -> str:
    return f"{value:.4g} tokens"


def _show_intensity(value: float) -> str:
    return f"{value:.4g} FLOP/B"


def op_answer(op: OpTime) -> Answer:
    """What an operation needs of each roof."""
    columns = Column("roof", "roof"), Column("seconds", "time", show_seconds)
    rows = tuple((roof.name, roof.seconds) for roof in op.roofs)
    heading = f"{show_seconds(op.lower_s)}, bound by {op.binds}"
    return Answer((heading,), tables=(Table("roofs", "Roofs", columns, rows),))
