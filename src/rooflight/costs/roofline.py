"""Roofline time of a local op: what each roof of a chip allows, and which one binds.

In: a `Chip` and the sizes of an op. Out: an `OpTime`, or the intensity or batch where two roofs
meet. Symbols are the book's: C FLOP/s, W bytes/s, B batch tokens, D model, F feed-forward, T and S
query and key length, G queries per key-value head, n chips.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import ModelError, UsageError
from rooflight.hardware.chip import Chip

Memory = Literal["hbm", "vmem", "pcie"]

_BF16 = DTYPES["bf16"]
_MATRIX_NAME = {"tpu": "MXU", "gpu": "tensor core"}


@dataclass(frozen=True, slots=True)
class Roof:
    """One limit on an op: an `amount` (FLOPs or bytes) at a `rate` takes `seconds`."""

    name: str
    amount: float
    rate: float

    @property
    def seconds(self) -> float:
        return self.amount / self.rate


@dataclass(frozen=True, slots=True)
class OpTime:
    """The time of one op under its roofs: all overlapped at best, one after another at worst.

    `utilisation` is the useful part of the matrix unit's rate over `lower_s`; `intensity` is
    useful FLOPs per byte, infinite when nothing moves.
    """

    roofs: tuple[Roof, ...]
    utilisation: float
    intensity: float

    def __post_init__(self) -> None:
        if not self.utilisation <= 1 + 1e-9:
            raise ModelError(
                f"matrix-unit utilisation of {self.utilisation:.4g} is above 1",
                hint="this is a bug in the cost model; report the op and the chip",
            )

    @property
    def binds(self) -> str:
        """Name of the slowest roof."""
        return max(self.roofs, key=lambda r: r.seconds).name

    @property
    def lower_s(self) -> float:
        """Everything overlaps: the slowest roof alone."""
        return max(r.seconds for r in self.roofs)

    @property
    def upper_s(self) -> float:
        """Nothing overlaps: every roof in turn; with two roofs at most twice `lower_s`."""
        return sum(r.seconds for r in self.roofs)


def memory_bytes_per_s(chip: Chip, memory: Memory = "hbm") -> float:
    """The rate at which the chip reads a memory; a rate the catalog lacks is an error."""
    rates = {
        "hbm": chip.hbm_bytes_per_s,
        "vmem": chip.vmem_bytes_per_s,
        "pcie": chip.pcie_bytes_per_s,
    }
    return _known(rates[memory], chip, f"{memory}_bytes_per_s")


def _known(rate: float | None, chip: Chip, fact: str) -> float:
    if not rate:
        raise UsageError(
            f"{chip.title} has no {fact} in its catalog, so the op has no price",
            hint=f"add `{fact} = [VALUE, SOURCE]` in your own chip file, or choose another chip",
        )
    return rate


def _memory_roof(chip: Chip, memory: Memory, bytes_moved: float) -> Roof:
    on_chip = "SMEM" if chip.kind == "gpu" else "VMEM"
    names = {"hbm": "HBM", "vmem": on_chip, "pcie": "PCIe"}
    return Roof(names[memory], bytes_moved, memory_bytes_per_s(chip, memory))


def _intensity(flops: float, bytes_moved: float) -> float:
    return flops / bytes_moved if bytes_moved else math.inf


def contraction_time(
    chip: Chip, *, flops: float, bytes_moved: float, compute: str, memory: Memory = "hbm"
) -> OpTime:
    """Time of any local einsum, given its FLOPs and the bytes it moves.

    lower = max(flops / C, bytes / W), upper = their sum (book ch. 1). It stops holding for ops too
    short to fill the pipelines, and when tiles do not fill the matrix unit (see `matmul_time`).

    >>> from rooflight.hardware.catalog import load_chip
    >>> op = contraction_time(load_chip("h100"), flops=1e12, bytes_moved=0, compute="bf16")
    >>> round(op.lower_s, 5)
    0.00101
    """
    return _matrix_op(
        chip, flops=flops, spent=flops, moved=bytes_moved, compute=compute, memory=memory
    )


def _matrix_op(
    chip: Chip, *, flops: float, spent: float, moved: float, compute: str, memory: Memory
) -> OpTime:
    """An op of `flops` useful FLOPs that occupies the matrix unit as long as `spent` FLOPs do."""
    name = f"{_MATRIX_NAME.get(chip.kind, 'matrix unit')} {compute}"
    matrix = Roof(name, spent, chip.peak_flops(compute))
    roofs = (matrix, _memory_roof(chip, memory, moved))
    lower_s = max(r.seconds for r in roofs)
    utilisation = flops / matrix.rate / lower_s if lower_s else 0.0
    return OpTime(roofs, utilisation, _intensity(flops, moved))


def matmul_time(
    chip: Chip,
    *,
    batch: int = 1,
    m: int,
    k: int,
    n: int,
    lhs: Dtype,
    rhs: Dtype,
    out: Dtype,
    compute: str | None = None,
    memory: Memory = "hbm",
    pad: bool = False,
) -> OpTime:
    """Time of [batch,m,k] x [batch,k,n]: each operand read once, the output written once.

    FLOPs = 2 batch m k n; bytes are exact bits, block scales included (book ch. 1). `compute`
    defaults to the rate of the wider operand. It stops holding when an operand does not stay on
    the chip between its uses and is read again (see `tile_intensity`).

    `pad` rounds k and n up to the matrix unit, which multiplies whole tiles only, and m up to the
    vector registers' sublanes (book ch. 2). Bytes stay unpadded: the layout in memory is the
    compiler's choice. It stops holding where the compiler packs several small matmuls in a tile.

    >>> from rooflight.hardware.catalog import load_chip
    >>> int8 = DTYPES["int8"]
    >>> op = matmul_time(load_chip("v5e"), m=256, k=4096, n=16384, lhs=int8, rhs=int8, out=int8)
    >>> op.binds, round(op.utilisation, 3)
    ('HBM', 0.988)
    """
    compute = compute or chip.matmul_dtype(max(lhs, rhs, key=lambda d: d.bits).name)
    rows, inner, cols = _padded(chip, m, k, n) if pad else (m, k, n)
    nbytes = lhs.nbytes(batch * m * k) + rhs.nbytes(batch * k * n) + out.nbytes(batch * m * n)
    return _matrix_op(
        chip,
        flops=2 * batch * m * k * n,
        spent=2 * batch * rows * inner * cols,
        moved=nbytes,
        compute=compute,
        memory=memory,
    )


def _padded(chip: Chip, m: int, k: int, n: int) -> tuple[int, int, int]:
    unit = chip.matrix_unit
    if unit is None:
        raise UsageError(
            f"{chip.title} has no matrix_unit in its catalog, so nothing is known about padding",
            hint="leave padding off, or add [facts.matrix_unit] in your own chip file",
        )
    sublanes = int(chip.detail.get("vpu_sublanes", 1))
    rows, inner, cols = padded_shape((m, k, n), (sublanes, unit.rows, unit.cols))
    return rows, inner, cols


def vector_time(chip: Chip, *, flops: float, bytes_moved: float) -> OpTime:
    """Time of an elementwise op: the vector unit against HBM; the matrix unit idles.

    lower = max(flops / C_vector, bytes / W) (book ch. 1). It stops holding for transcendentals,
    which cost several vector FLOPs each, and for ops the compiler fuses into a neighbour.
    """
    vector = Roof("vector", flops, _known(chip.vector_flops, chip, "vector_flops"))
    roofs = (vector, _memory_roof(chip, "hbm", bytes_moved))
    return OpTime(roofs, 0.0, _intensity(flops, bytes_moved))


def hiding_intensity(chip: Chip, dtype: str, *, bytes_per_s: float) -> float:
    """FLOPs the matrix unit does while one byte arrives over any link: C / W (book ch. 1, 5).

    >>> from rooflight.hardware.catalog import load_chip
    >>> chip = load_chip("v5p")
    >>> hiding_intensity(chip, "bf16", bytes_per_s=2 * chip.torus.link_bytes_per_s)
    2550.0
    """
    return chip.peak_flops(dtype) / bytes_per_s


def ridge_point(chip: Chip, dtype: str, memory: Memory = "hbm") -> float:
    """The intensity in FLOP/byte where the matrix unit and a memory take equally long: C / W.

    >>> from rooflight.hardware.catalog import load_chip
    >>> round(ridge_point(load_chip("v5e"), "bf16"))
    240
    """
    return hiding_intensity(chip, dtype, bytes_per_s=memory_bytes_per_s(chip, memory))


def vector_ridge_point(chip: Chip) -> float:
    """The intensity where the vector unit and HBM take equally long: C_vector / W."""
    vector = _known(chip.vector_flops, chip, "vector_flops")
    return vector / memory_bytes_per_s(chip)


def critical_batch(
    chip: Chip,
    *,
    weight: Dtype,
    activation: Dtype,
    compute: str,
    d: int | None = None,
    f: int | None = None,
    out: Dtype | None = None,
    memory: Memory = "hbm",
) -> float:
    """Tokens B from which [B,D] x [D,F] is bound by FLOPs; infinite when it never is.

    With w, a, o the bytes of a weight, an activation and an output (which is like the activation
    unless `out` says otherwise), the crossover solves 2BDF / C = (aBD + wDF + oBF) / W. Without
    `d` and `f` it is the limit of B << D, F: B = C/W * w/2 (book ch. 1). It stops holding when
    weights are read more or less often than once a step (MoE: see `moe_critical_batch`).

    >>> from rooflight.hardware.catalog import load_chip
    >>> bf16, int8 = DTYPES["bf16"], DTYPES["int8"]
    >>> v5e = load_chip("v5e")
    >>> round(critical_batch(v5e, weight=bf16, activation=bf16, compute="bf16"))
    240
    >>> round(critical_batch(v5e, weight=int8, activation=bf16, compute="bf16", d=4096, f=4096))
    136
    """
    w, a, o = (x.bits_per_element / 8 for x in (weight, activation, out or activation))
    limit = ridge_point(chip, compute, memory) * w / 2
    if d is None and f is None:
        return limit
    if d is None or f is None:
        raise UsageError(
            f"the exact crossover needs both d and f; got d={d}, f={f}",
            hint="give both, or neither for the limit of a small batch",
        )
    # Dividing the crossover by 2DF/C leaves the limit over what the activations leave free.
    free = 1 - ridge_point(chip, compute, memory) * (a / f + o / d) / 2
    return limit / free if free > 0 else math.inf


def moe_critical_batch(dense: float, *, experts: int, active: int) -> float:
    """The critical batch of a mixture: B_dense * E / k, as an expert sees B k / E tokens (ch. 4).

    It stops holding when routing is unbalanced or when B k < E leaves some experts unread.

    >>> moe_critical_batch(120, experts=256, active=8)
    3840.0
    """
    return dense * experts / active


def critical_contracting_dim(
    chip: Chip, *, chips: int, partial: Dtype, compute: str, bytes_per_s: float, passes: int = 1
) -> float:
    """The D from which a matmul split over n chips along D hides the exchange of partial sums.

    2B(D/n)F / C = passes * p B F / W, so D = n * passes * p/2 * C/W with p bytes a partial sum
    (book ch. 1). Two chips that swap sums take one pass at the one-way rate of a link; an
    AllReduce takes two at the rate of a ring (ch. 3). It stops holding under latency.

    >>> from rooflight.hardware.catalog import load_chip
    >>> v5e, bf16 = load_chip("v5e"), DTYPES["bf16"]
    >>> link = v5e.torus.link_bytes_per_s
    >>> round(critical_contracting_dim(
    ...     v5e, chips=2, partial=bf16, compute="bf16", bytes_per_s=link
    ... ))
    8756
    """
    alpha = hiding_intensity(chip, compute, bytes_per_s=bytes_per_s)
    return chips * passes * partial.bits_per_element / 16 * alpha


def tile_intensity(bm: int, bn: int, dtype: Dtype = _BF16) -> float:
    """FLOP/byte of a matmul tiled bm x bn that rereads its operands for each tile.

    2 bm bn bk / (s bk (bm + bn)) with s bytes an element; the output is left out (book ch. 1),
    which stops holding when the contracting dim is not much longer than the tile.

    >>> tile_intensity(512, 512)
    256.0
    """
    return 2 * bm * bn / (dtype.bits_per_element / 8 * (bm + bn))


def attention_intensity(*, q_len: int, kv_len: int, group: int = 1) -> float:
    """FLOP/byte of fused attention in bf16, T queries on S keys, G query heads a key-value head.

    4TSG / (2 (2TG + 2S)) = TSG / (TG + S): TG/(G+1) at prefill and SG/(S+G) for one query
    (book ch. 4, 7). It stops holding for causal masks that skip blocks, which halve the FLOPs.

    >>> attention_intensity(q_len=4096, kv_len=4096), attention_intensity(q_len=1, kv_len=8)
    (2048.0, 0.8888888888888888)
    """
    return q_len * kv_len * group / (q_len * group + kv_len)


def batch_tokens(*, sequences: int, seq_len: int, chips: int = 1) -> float:
    """B of every formula here counts tokens, not sequences: those of one of `chips` (book ch. 1).

    >>> batch_tokens(sequences=512, seq_len=4096, chips=2048)
    1024.0
    """
    return sequences * seq_len / chips


def padded_shape(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Rounds the last dims of a shape up to whole tiles: ceil(n / t) * t each (book ch. 9).

    A tile with fewer dims than the shape leaves the outer ones alone. It stops holding for nested
    tiles such as T(8,128)(2,1), where a second tiling packs narrow elements inside the first.

    >>> padded_shape((3, 5), (2, 2)), padded_shape((7, 3, 5), (2, 2))
    ((4, 6), (7, 4, 6))
    """
    outer = len(shape) - len(tile)
    if outer < 0 or min(tile, default=1) < 1:
        raise UsageError(
            f"a shape {tuple(shape)} cannot lie in tiles of {tuple(tile)}",
            hint="give a tile of positive sizes with at most as many dims as the shape",
        )
    inner = (-(-n // t) * t for n, t in zip(shape[outer:], tile, strict=True))
    return (*shape[:outer], *inner)
