"""Seconds of one kernel of a GPU by our roofline; the compiler's own, untuned, are no estimate.

In: a chip and the sizes of a kernel, or an instruction of a scheduled step. Out: seconds, and what
kernels of its kind were off by. Seven constants hold for all GPUs: `gpu_rates.toml`, which
`python -m benchmarks.gpu_ops --write` fits to published tables of operators.

    matmul       start + max(waves * tile / (share * C / SMs), bytes / (share * W))
    attention    start + max(FLOPs / SMs, those of its longest row of tiles) / (share * C / SMs)
    other        start + bytes / (share * W)
    collective   latency + bandwidth_s / share, of our network model

A wave is a tile on every SM; the tile is the fastest of a few, k split over several SMs where that
helps. A kernel reads each operand once, of a slice the part that it takes.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rooflight.compile.hlo.instruction import Computation, Instruction, Module
from rooflight.compile.hlo.work import MatmulSizes
from rooflight.costs.network import NetworkTime
from rooflight.hardware.chip import Chip

_TILES = ((64, 64), (128, 128), (128, 256), (256, 128))
_SPLITS = (1, 2, 4, 8)
_LEAST_K = 512  # of a part of a matmul whose k is split
_ROWS = (64, 128, 256)  # of queries that one SM takes at a time
# XLA multiplies f32 in tf32 on these GPUs unless it is told otherwise.
_RUNS_AS = {"f32": "tf32", "f16": "bf16", "f8e4m3fn": "fp8", "f8e5m2": "fp8", "s8": "int8"}
_ATTENTION = re.compile(r"^__cudnn\$fmha\w*?(Backward)?(?:F8)?$")
_SCORES = re.compile(r'"intermediate_tensor_shape": *\{[^{}]*?"dimensions": *\[([^]]*)\]')
_MOVING_CALLS = ("__cub$", "__gpu$TopK", "TopK", "Sharding", "__nop")
_SLICES = ("dynamic-slice", "slice", "gather")
_VIEWS = ("bitcast", "reshape")


@dataclass(frozen=True, slots=True)
class KernelError:
    """How far kernels of one kind were off, those of each GPU by constants of the others."""

    median: float
    p90: float
    rows: int


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Heads of all sequences; FLOPs of what is not masked."""

    flops: float
    heads: int
    queries: int
    is_causal: bool


@dataclass(frozen=True, slots=True)
class GpuRates:
    """What part of a roof kernels reach. Of a format that no table has: that of bf16."""

    start_s: float  # of any kernel, its end included
    matmul: Mapping[str, float]
    attention: float
    attention_start_s: float  # what is split over SMs is put together by a second kernel
    memory: float
    links: float
    errors: Mapping[str, KernelError]  # by unit: matrix, kernels, memory, network


@cache
def gpu_rates() -> GpuRates:
    read = tomllib.loads((files("rooflight.compile.time") / "gpu_rates.toml").read_text())
    errors = {unit: KernelError(**spread) for unit, spread in read["errors"].items()}
    return GpuRates(**read["rates"], errors=errors)


def matmul_s(chip: Chip, sizes: MatmulSizes, nbytes: float, rates: GpuRates) -> float:
    """Waves of tiles, or the bytes if they take longer.

    >>> from rooflight.hardware.catalog import load_chip
    >>> large = MatmulSizes(1, 8192, 8192, 8192, "bf16")
    >>> share = large.flops / matmul_s(load_chip("h100"), large, 4e8, gpu_rates()) / 9.894e14
    >>> 0.7 < share < 0.8
    True
    """
    name = _RUNS_AS.get(sizes.dtype, sizes.dtype)
    share = rates.matmul.get(name, rates.matmul["bf16"])
    each = share * chip.peak_flops(chip.matmul_dtype(name)) / chip.cores
    tiled = min(
        math.ceil(_tiles(sizes, *tile) * split / chip.cores) * 2 * math.prod(tile) * sizes.k / split
        for tile in _TILES
        for split in _SPLITS
        if split == 1 or sizes.k >= _LEAST_K * split
    )
    return rates.start_s + max(tiled / each, _transfer_s(chip, nbytes, rates))


def _tiles(sizes: MatmulSizes, rows: int, cols: int) -> int:
    return sizes.batch * math.ceil(sizes.m / rows) * math.ceil(sizes.n / cols)


def attention_s(chip: Chip, sizes: AttentionSizes, nbytes: float, rates: GpuRates) -> float:
    """Flash attention: rows of queries over the SMs, the last of a causal head twice the mean."""
    each = rates.attention * chip.peak_flops("bf16") / chip.cores
    causal, mean = sizes.is_causal, sizes.flops / (sizes.heads * sizes.queries)
    longest = min(
        max(
            (1 + causal) * mean * rows,
            sizes.flops * (1 + causal * rows / sizes.queries) / chip.cores,
        )
        for rows in (min(rows, sizes.queries) for rows in _ROWS)
    )
    return rates.attention_start_s + max(longest / each, _transfer_s(chip, nbytes, rates))


def attention_sizes(computation: Computation, call: Instruction) -> AttentionSizes | None:
    """Of a call of cuDNN's fused attention: two matmuls forward, five backward."""
    found = _ATTENTION.search(call.attribute("custom_call_target") or "")
    scores = _SCORES.search(call.attributes)
    if found is None or scores is None or call.opcode != "custom-call":
        return None
    batch, heads, queries, keys = (int(n) for n in re.findall(r"\d{1,12}", scores[1])[:4])
    width = computation.inputs(call)[0].shapes[0].elements / (batch * heads * queries)
    is_causal = "CAUSAL" in call.attributes
    flops = 2 * (5 if found[1] else 2) * batch * heads * queries * keys * width / (1 + is_causal)
    return AttentionSizes(flops, batch * heads, queries, is_causal)


def is_known_call(call: Instruction) -> bool:
    """A call of what only reads and writes."""
    return (call.attribute("custom_call_target") or "").startswith(_MOVING_CALLS)


def memory_s(chip: Chip, nbytes: float, rates: GpuRates) -> float:
    """What only reads and writes."""
    return rates.start_s + _transfer_s(chip, nbytes, rates)


def network_s(time: NetworkTime, rates: GpuRates) -> float:
    """Of our network model; the tables reach one NVLink domain, not beyond."""
    return time.latency_s + time.bandwidth_s / rates.links


def _transfer_s(chip: Chip, nbytes: float, rates: GpuRates) -> float:
    assert chip.hbm_bytes_per_s, "checked where a step is read"
    return nbytes / (rates.memory * chip.hbm_bytes_per_s)


def kernel_traffic(module: Module, computation: Computation, kernel: Instruction) -> int:
    """Bytes that one run reads and writes; of slices and updates in place what moves."""
    body = module.computations.get(kernel.calls("calls") or "")
    if body is None:
        return _read(computation, kernel) + _written(computation, kernel)
    users: dict[str, list[Instruction]] = {}
    for instruction in body.instructions:
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)
    parameters = [i for i in body.instructions if i.opcode == "parameter"]
    root = body.root
    results = body.inputs(root) if root.opcode == "tuple" else [root]
    return sum(_taken(p, users) for p in parameters) + sum(_written(body, r) for r in results)


def _taken(value: Instruction, users: Mapping[str, list[Instruction]]) -> int:
    """Of a parameter: the slices that are cut from it, nothing if it is updated in place."""
    names, taken = [value.name], 0
    while names:
        name = names.pop()
        for user in users.get(name, ()):
            if user.opcode in _VIEWS:
                names.append(user.name)
            elif user.opcode in _SLICES:
                taken += user.nbytes
            elif user.opcode != "dynamic-update-slice" or user.operands[0] != name:
                return value.nbytes
    return min(taken, value.nbytes)


def _read(computation: Computation, at: Instruction) -> int:
    if at.opcode in (*_SLICES, "dynamic-update-slice"):
        return _written(computation, at)
    return sum(value.nbytes for value in computation.inputs(at))


def _written(computation: Computation, at: Instruction) -> int:
    """Bytes of a result, or of the update where it is written into what was there."""
    while at.opcode in _VIEWS and at.operands:
        at = computation.inputs(at)[0]
    is_update = at.opcode == "dynamic-update-slice"
    return computation.inputs(at)[1].nbytes if is_update else at.nbytes
