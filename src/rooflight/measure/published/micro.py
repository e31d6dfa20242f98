"""Microbenchmarks as parts: a matmul, a copy, a collective or an attention kernel, alone.

In: a row of kind micro. Out: its `Parts` and measured seconds. They show a chip's roofs without any
software stack above them, so they have an engine of their own: kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip
from rooflight.hardware.slice import Slice
from rooflight.measure.published.chips import measured_chip
from rooflight.measure.published.degrees import compact_shape, place_axes, stated_shape
from rooflight.measure.published.model_sizes import sized_model
from rooflight.measure.published.rows import Fields, PublishedRun
from rooflight.plan.training.time.parts import Parts, Work
from rooflight.plan.training.time.traffic import Traffic

_BF16 = DTYPES["bf16"]


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
