"""Rows replayed: each one asked, its parts listed, its seconds measured; or refused with a reason.

In: `PublishedFile`. Out: `CaseSet`: the cases that have an answer, in a table, and the refusals.

Microbenchmarks as parts: a matmul, a copy, a collective or an attention kernel, alone. They show a
chip's roofs without any software stack above them, so they have an engine of their own: kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any  # of an empty mapping

import numpy as np

from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError, UsageError
from rooflight.hardware.calibration import DENSE, EXPERTS
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import Slice
from rooflight.measure.published.degrees import (
    compact_shape,
    measured_chip,
    place_axes,
    stated_shape,
)
from rooflight.measure.published.fit import PricedTable
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.question import ReplayQuestion, ask
from rooflight.measure.published.rows import (
    TRAINING,
    Fields,
    PublishedFile,
    PublishedRun,
    read_facts,
)
from rooflight.models.graph.count import dim_sizes, op_flops, training_flops
from rooflight.models.graph.ops import HAS_FLOPS, Graph
from rooflight.plan.training.forecast.calibrated import Floats, Values, part_table
from rooflight.plan.training.forecast.evidence import degrees_of, reach_of
from rooflight.plan.training.time.parts import TrainingRun, training_parts
from rooflight.plan.training.time.traffic import Traffic
from rooflight.plan.training.time.work import Parts, Work

_BF16 = DTYPES["bf16"]

KERNEL = "kernel"  # the engine of microbenchmarks: no software above the chip
REPLAYED = (*TRAINING, "micro")
Watch = Callable[[int, int], None]  # rows done, rows in all


@dataclass(frozen=True, slots=True)
class Case:
    """A row that can be answered: who ran it where, and what a calibration is chosen by."""

    id: str
    kind: str  # train or micro
    source: str
    model: str
    family: str
    chip: str
    chip_kind: str  # tpu or gpu
    engine: str
    blocks: str  # dense or experts
    configuration: str
    measured_s: float
    assumed: tuple[str, ...]
    chips: int = 1
    seq: int = 1
    degrees: Mapping[str, int] = field(default_factory=dict[str, int])  # by scheme
    reach: frozenset[str] = frozenset()  # how far each scheme goes: tp@node; how a cache is split
    is_whole: bool = True  # every weight is trained, not adapters alone


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be answered, and why."""

    id: str
    source: str
    because: str


@dataclass(frozen=True, slots=True)
class CaseSet:
    """A file replayed up to its parts; what is left is to price them.

    `priors` are values that fits of these rows are drawn to, by chip, engine and blocks.
    """

    cases: tuple[Case, ...]
    refusals: tuple[RefusedRow, ...]
    table: PricedTable
    priors: Mapping[tuple[str, str, str], Values] = field(default_factory=dict[Any, Any])

    @property
    def measured_s(self) -> Floats:
        return np.array([case.measured_s for case in self.cases])

    @property
    def coverage(self) -> float:
        """Rows answered of rows asked."""
        return len(self.cases) / max(1, len(self.cases) + len(self.refusals))

    def take(self, chosen: Sequence[bool]) -> "CaseSet":
        """Some of the cases; refusals stay behind."""
        kept = tuple(c for c, is_kept in zip(self.cases, chosen, strict=True) if is_kept)
        return CaseSet(kept, (), self.table.take(np.array(chosen, dtype=np.bool_)), self.priors)


def ask_rows(rows: PublishedFile, *, watch: Watch | None = None) -> CaseSet:
    """Asks every row of training and every microbenchmark; serving has its own replay."""
    wanted = rows.of(REPLAYED)
    cases: list[Case] = []
    parts: list[Parts] = []
    refusals: list[RefusedRow] = []
    known: dict[str, Parts] = {}
    for number, row in enumerate(wanted, start=1):
        try:
            case, one = _case(row, rows, known)
            cases.append(case)
            parts.append(one)
        except RooflightError as error:
            refusals.append(RefusedRow(row.id, row.source, str(error)))
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # a field of another type
            refusals.append(RefusedRow(row.id, row.source, f"the row cannot be read: {error!r}"))
        if watch:
            watch(number, len(wanted))
    return CaseSet(tuple(cases), tuple(refusals), part_table(parts))


def _case(row: PublishedRun, rows: PublishedFile, known: dict[str, Parts]) -> tuple[Case, Parts]:
    if row.kind == "micro":
        kernel = micro_case(row, rows.models)
        chip_kind, family = kernel.chip_kind, row.model
        engine, blocks, measured_s, parts = KERNEL, DENSE, kernel.measured_s, kernel.parts
        assumed, where = kernel.assumed, {}
    else:
        question = ask(row, rows.models)
        measured_s, more = measured_seconds(question)
        assumed = (*question.assumed, *more)
        if row.configuration not in known:
            known[row.configuration] = training_parts(question.run)
        parts = known[row.configuration]
        engine, family = question.engine, question.family
        blocks = EXPERTS if question.is_moe else DENSE
        chip_kind = question.run.mesh.slice.chip.kind
        where = _where(question.run)
    if measured_s <= 0:
        raise UsageError("a measured time of zero", hint="check measured:")
    kind = "micro" if row.kind == "micro" else "train"
    case = Case(
        row.id,
        kind,
        row.source,
        row.model,
        family,
        row.chip,
        chip_kind,
        engine,
        blocks,
        row.configuration,
        measured_s,
        assumed,
        **where,
    )
    return case, parts


def _where(run: TrainingRun) -> dict[str, Any]:
    """The layout of a run as evidence."""
    degrees = degrees_of(run.layout, run.mesh)
    return {
        "chips": run.mesh.slice.num_chips,
        "seq": run.seq,
        "degrees": {name: degree for name, degree in degrees.items() if degree > 1},
        "reach": reach_of(run.layout, run.mesh),
        "is_whole": not run.freezes_weights,
    }


# The seconds of a step as its source measured it.


def _matmuls(graph: Graph, seq: int, *, causal: bool) -> float:
    return float(training_flops(graph, batch=1, seq=seq, causal=causal)) / seq


def _hardware(graph: Graph, seq: int) -> float:
    """Layers forward four times (once again, twice backward), the head three; full attention."""
    exact = {name: share * seq for name, share in graph.per_token.items()}
    sizes = dim_sizes(graph, batch=1, seq=seq) | exact
    layers = sum(
        op.count * op_flops(op, sizes, causal=False)
        for op in graph.ops
        if op.kind in HAS_FLOPS and op.block is not None
    )
    return _matmuls(graph, seq, causal=False) + float(layers) / seq


CONVENTIONS: Mapping[str, Callable[[Graph, int], float]] = {
    "causal attention": lambda graph, seq: _matmuls(graph, seq, causal=True),
    "full attention": lambda graph, seq: _matmuls(graph, seq, causal=False),
    "hardware": _hardware,
}


def convention(stated: str) -> str:
    """The convention that a source's words name.

    >>> convention("maxtext causal-halved"), convention("attention counted full (non-causal)")
    ('causal attention', 'full attention')
    """
    if "hardware" in stated:
        return "hardware"
    if "causal-halved" in stated or stated.startswith("causal"):
        return "causal attention"
    if "full" in stated:
        return "full attention"
    raise UsageError(f"nobody counts FLOPs as {stated!r}", hint="say causal-halved or full")


def measured_seconds(question: ReplayQuestion) -> tuple[float, tuple[str, ...]]:
    """Seconds of one step, and what was assumed to get them."""
    measured, chips = question.row.measured, question.run.mesh.slice.num_chips
    if "step_s" in measured:
        return float(measured["step_s"]), ()
    if "tokens_per_s_per_chip" in measured:
        return question.tokens / float(measured["tokens_per_s_per_chip"]) / chips, ()
    per_chip, assumed = _flops_per_s(question)
    stated = question.row.fields.get("flops")
    if stated is None:
        stated = read_facts("sources").get(question.row.source, {}).get("flops")
        assumed = (*assumed, f"FLOPs counted with {stated}")
    if stated is None:
        raise UsageError("only FLOP/s, and not how the source counts them", hint="add flops:")
    per_token = CONVENTIONS[convention(str(stated))](question.run.graph, question.run.seq)
    return question.tokens * per_token / per_chip / chips, assumed


def _flops_per_s(question: ReplayQuestion) -> tuple[float, tuple[str, ...]]:
    measured, chip = question.row.measured, question.run.mesh.slice.chip
    if "tflops_per_chip" in measured:
        return float(measured["tflops_per_chip"]) * 1e12, ()
    if "mfu" in measured:
        return float(measured["mfu"]) * chip.peak_flops("bf16"), ("of the dense bf16 peak",)
    raise UsageError("no step time, no rate, no utilisation", hint="add measured:")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: what it is made of, and how long it took."""

    parts: Parts
    measured_s: float
    chip_kind: str
    assumed: tuple[str, ...] = ()


def micro_case(row: PublishedRun, models: Mapping[str, Fields]) -> Kernel:
    """Reads a microbenchmark; raises `UsageError` for one that is none of the known kinds."""
    chip = measured_chip(row.chip).chip
    op = row.table("op")
    share = min(1.0, float(row.fields.get("chips") or 1))  # of a chip that a device is
    if row.model == "gemm":
        return _matmul(row, chip, _sizes(op), share)
    if row.model == "hbm_copy":
        return _copy(row, chip, int(op["bytes"]))
    if row.model in ("all_gather", "all_reduce"):
        return _collective(row, chip)
    if "tokens" in op or row.model == "attention":
        return _layer_op(row, chip, models)
    raise UsageError(f"no microbenchmark is called {row.model}", hint="use gemm, hbm_copy, ...")


def _parts(
    chip: Chip, works: tuple[Work, ...] = (), traffic: tuple[Traffic, ...] = (), flops: float = 0.0
) -> Parts:
    return Parts(works, traffic, 1, 0.0, flops, chip.peak_flops("bf16"), is_step=False)


def _sizes(op: Fields) -> tuple[int, int, int]:
    if "mnk" in op:
        m, n, k = (int(x) for x in str(op["mnk"]).split("x"))
        return m, n, k
    return int(op["m"]), int(op["n"]), int(op["k"])


def _matmul(row: PublishedRun, chip: Chip, sizes: tuple[int, int, int], share: float) -> Kernel:
    m, n, k = sizes
    dtype = DTYPES[str(row.table("op").get("dtype", "bf16"))]
    flops, nbytes = 2.0 * m * n * k, dtype.nbytes(m * k + k * n) + _BF16.nbytes(m * n)
    peak = share * chip.peak_flops(chip.matmul_dtype(dtype.name))
    work = Work("matmul", dtype.name, flops / peak, nbytes / share / _hbm(chip), 1.0)
    seconds = flops / (float(row.measured["tflops_per_device"]) * 1e12)
    return Kernel(_parts(chip, (work,), flops=flops), seconds, chip.kind)


def _copy(row: PublishedRun, chip: Chip, nbytes: int) -> Kernel:
    work = Work("elementwise", "bf16", 0.0, 2 * nbytes / _hbm(chip), 1.0)
    seconds = 2 * nbytes / (float(row.measured["gb_per_s_per_chip"]) * 1e9)
    return Kernel(_parts(chip, (work,)), seconds, chip.kind, ("a copy reads and writes",))


def _collective(row: PublishedRun, chip: Chip) -> Kernel:
    """Such benchmarks print bytes over seconds, the whole array being the bytes."""
    op, chips = row.table("op"), int(row.fields["chips"])
    slices = int(row.fields.get("slices") or 1)
    if chip.torus is None:
        raise UsageError("a collective behind switches", hint="use a chip with a torus")
    shape = stated_shape(row) or compact_shape(chip.torus, chips // slices)
    slice_ = Slice(chip, shape, slices)
    far = op.get("axis") == "dcn"
    axes = {"R": slices, "X": chips // slices} if slices > 1 else {"X": chips}
    group = place_axes(axes, slice_).group(["R"] if far else ["X"])
    width = DTYPES[str(op.get("dtype", "bf16"))].nbytes(1)
    nbytes = int(op["bytes"]) if "bytes" in op else int(op["elements"]) * width
    kind = "all_gather" if row.model == "all_gather" else "all_reduce"
    time = collective_time(kind, nbytes, group)
    traffic = Traffic(
        "slow" if far else "fast", False, True, False, time.bandwidth_s, time.latency_s, 1.0
    )
    seconds = nbytes / (float(row.measured["gb_per_s"]) * 1e9)
    return Kernel(_parts(chip, traffic=(traffic,)), seconds, chip.kind, ("rate = bytes / seconds",))


def _layer_op(row: PublishedRun, chip: Chip, models: Mapping[str, Fields]) -> Kernel:
    """One op of one layer of a named model, forward."""
    op = row.table("op")
    name = str(op.get("of", "")).split(" ")[0]
    spec = sized_model(PublishedRun({**row.fields, "model": name}), models).spec
    attention, block = spec.blocks[0].attention, spec.blocks[0]
    heads, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads
    seconds = float(row.measured["us"]) * 1e-6
    if row.model == "attention":
        work = _attention_work(chip, op, heads, 2 * kv * attention.head_dim)
        return Kernel(_parts(chip, (work,)), seconds, chip.kind)
    width = getattr(block.mlp, "width", 0)
    columns = {
        "q_proj": (spec.d_model, heads),
        "o_proj": (heads, spec.d_model),
        "gate_proj": (spec.d_model, 2 * width),
        "down_proj": (width, spec.d_model),
        "lm_head": (spec.d_model, spec.vocab),
    }
    if row.model not in columns:
        raise UsageError(f"no op of a layer is called {row.model}", hint="use q_proj, ...")
    k, n = columns[row.model]
    tokens = int(op["tokens"])
    flops, nbytes = 2.0 * tokens * k * n, _BF16.nbytes(tokens * (k + n) + k * n)
    work = Work("matmul", "bf16", flops / chip.peak_flops("bf16"), nbytes / _hbm(chip), 1.0)
    return Kernel(_parts(chip, (work,), flops=flops), seconds, chip.kind)


def _attention_work(chip: Chip, op: Fields, heads: int, cache: int) -> Work:
    """New tokens see the cache and, causally, each other; keys and values are read once."""
    new, cached = int(op["prefill_chunk"]) or 1, int(op["kv"])
    batch = int(op["batch"])
    pairs = batch * (new * cached + new * (new + 1) / 2)
    nbytes = _BF16.nbytes(batch * ((cached + new) * cache + 2 * new * heads))
    return Work(
        "attention", "bf16", 4.0 * pairs * heads / chip.peak_flops("bf16"), nbytes / _hbm(chip), 1.0
    )


def _hbm(chip: Chip) -> float:
    return chip.hbm_bytes_per_s or float("inf")
