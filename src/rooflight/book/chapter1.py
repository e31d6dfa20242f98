"""Recipes of chapter 1: rooflines and critical batches. Later chapters reuse a few of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, roof_lines
from rooflight.book.entry import Entry
from rooflight.costs.roofline import (
    Memory,
    batch_tokens,
    contraction_time,
    critical_batch,
    critical_contracting_dim,
    hiding_intensity,
    matmul_time,
    memory_bytes_per_s,
    ridge_point,
    tile_intensity,
    vector_ridge_point,
)
from rooflight.hardware.chip import Chip


def memory_of(entry: Entry) -> Memory:
    """The memory that feeds the matrix unit; HBM unless the question names another."""
    return cast(Memory, entry.text("memory")) if "memory" in entry.inputs else "hbm"


def ridge_lines(chip: Chip, compute: str, memory: Memory = "hbm") -> tuple[Line, ...]:
    """The two rates whose quotient is a ridge point, and the ridge point."""
    return (
        Line(f"{compute} rate C of {chip.title}", chip.peak_flops(compute), "FLOP/s"),
        Line(f"{memory.upper()} bandwidth W", memory_bytes_per_s(chip, memory), "B/s"),
        Line("ridge point C / W", ridge_point(chip, compute, memory), "FLOP/B"),
    )


def batch_from_which_flops_bind(e: Entry) -> Derivation:
    """The critical batch of wide matrices, and the ridge point if it is asked for."""
    chip, compute, memory = chip_of(e), e.text("compute"), memory_of(e)
    weight, activation = e.dtype("weight"), e.dtype("activation")
    batch = critical_batch(
        chip, weight=weight, activation=activation, compute=compute, memory=memory
    )
    values = {"intensity": ridge_point(chip, compute, memory), "b_crit": batch}
    lines = (
        *ridge_lines(chip, compute, memory),
        Line("bytes of a weight w", weight.bits_per_element / 8, "B"),
        Line("critical batch C / W * w / 2", batch, "token"),
    )
    return Derivation({name: values[name] for name in e.expected}, lines)


def _time_of_flops(e: Entry) -> Derivation:
    chip = chip_of(e)
    op = contraction_time(chip, flops=e.number("flops"), bytes_moved=0, compute="bf16")
    rate = Line(f"bf16 rate of {chip.title}", chip.peak_flops("bf16"), "FLOP/s")
    return Derivation({"t": op.lower_s}, (rate, roof_lines(op)[0]))


def _ridge(e: Entry) -> Derivation:
    chip, compute = chip_of(e), e.text("compute")
    return Derivation({"intensity": ridge_point(chip, compute)}, ridge_lines(chip, compute))


def _dot_product(e: Entry) -> Derivation:
    dtype, n = e.dtype(), e.whole("N")
    op = matmul_time(chip_of(e), m=1, k=n, n=1, lhs=dtype, rhs=dtype, out=dtype)
    return Derivation({"intensity": op.intensity}, _amounts(op.roofs[0].amount, op.roofs[1].amount))


def _amounts(flops: float, nbytes: float) -> tuple[Line, ...]:
    return Line("FLOPs", flops, "FLOP"), Line("bytes read and written", nbytes, "B")


def _vector_ridge(e: Entry) -> Derivation:
    chip = chip_of(e)
    chip = replace(chip, vector_flops=e.number("vector_flops_per_core") * chip.cores)
    lines = (
        Line(f"vector rate of all {chip.cores} cores", chip.vector_flops or 0.0, "FLOP/s"),
        Line("HBM bandwidth", memory_bytes_per_s(chip), "B/s"),
    )
    return Derivation({"intensity": vector_ridge_point(chip)}, lines)


def _split_contracting_dim(e: Entry) -> Derivation:
    chip, compute, chips = chip_of(e), e.text("compute"), e.whole("chips")
    link = e.number("link_bytes_per_s")
    d = critical_contracting_dim(
        chip, chips=chips, partial=e.dtype("partial"), compute=compute, bytes_per_s=link
    )
    alpha = hiding_intensity(chip, compute, bytes_per_s=link)
    lines = (
        Line("FLOPs that hide a byte on one link, one way", alpha, "FLOP/B"),
        Line(f"contracting dim D over {chips} chips", d, "elements"),
    )
    return Derivation({"half_D": d / chips, "D": d}, lines)


def _exact_crossover(e: Entry) -> Derivation:
    chip, compute = chip_of(e), e.text("compute")
    weight, activation = e.dtype("weight"), e.dtype("activation")

    def batch(width: int | None) -> float:
        return critical_batch(
            chip, weight=weight, activation=activation, compute=compute, d=width, f=width
        )

    sizes = {f"b_crit_{e.whole(name)}": e.whole(name) for name in ("D_wide", "D_narrow")}
    exact = {name: batch(width) for name, width in sizes.items()}
    lines = [Line("limit of wide matrices", batch(None), "token")]
    lines += [Line(f"crossover at D = F = {sizes[n]}", b, "token") for n, b in exact.items()]
    return Derivation(exact, (*ridge_lines(chip, compute), *lines))


def _matrix_for_each_token(e: Entry) -> Derivation:
    dtype = e.dtype()
    op = matmul_time(
        chip_of(e),
        batch=e.whole("B"),
        m=1,
        k=e.whole("D"),
        n=e.whole("F"),
        lhs=dtype,
        rhs=dtype,
        out=dtype,
    )
    return Derivation({"intensity": op.intensity}, _amounts(op.roofs[0].amount, op.roofs[1].amount))


def _batch_in_tokens(e: Entry) -> Derivation:
    sequences, seq_len = e.whole("sequences"), e.whole("seq_len")
    whole = batch_tokens(sequences=sequences, seq_len=seq_len)
    part = batch_tokens(sequences=sequences, seq_len=seq_len, chips=e.whole("chips"))
    lines = Line("tokens of a batch", whole, "token"), Line("tokens of one chip", part, "token")
    return Derivation({"global": whole, "local": part}, lines)


def _tile(e: Entry) -> Derivation:
    intensity = tile_intensity(e.whole("bm"), e.whole("bn"))
    line = Line("each tile rereads both operands", intensity, "FLOP/B")
    return Derivation({"intensity": intensity}, (line,))


def _bounds(e: Entry) -> Derivation:
    chip, compute = chip_of(e), e.text("compute")
    op = contraction_time(
        chip,
        flops=e.number("t_math") * chip.peak_flops(compute),
        bytes_moved=e.number("t_comms") * memory_bytes_per_s(chip),
        compute=compute,
    )
    lines = (
        *roof_lines(op),
        Line("everything overlaps", op.lower_s, "s"),
        Line("nothing overlaps", op.upper_s, "s"),
    )
    return Derivation({"max_ratio": op.upper_s / op.lower_s}, lines)


RECIPES: Mapping[str, Recipe] = {
    "roofline.h100_time_1e12": _time_of_flops,
    "roofline.v6e_time_1e12": _time_of_flops,
    "roofline.v5e_mxu_intensity": _ridge,
    "roofline.dot_product_intensity": _dot_product,
    "roofline.v5p_vpu_intensity": _vector_ridge,
    "roofline.v5e_bcrit_bf16": batch_from_which_flops_bind,
    "roofline.gpu_bcrit_rule": batch_from_which_flops_bind,
    "roofline.two_chip_split_contracting": _split_contracting_dim,
    "roofline.q1_int8_matmul": batch_from_which_flops_bind,
    "roofline.q2_int8w_bf16flops": batch_from_which_flops_bind,
    "roofline.q3_exact_bcrit": _exact_crossover,
    "roofline.q4_batched_matvec": _matrix_for_each_token,
    "roofline.q5_h100_bcrit": batch_from_which_flops_bind,
    "roofline.local_batch_footnote": _batch_in_tokens,
    "roofline.tiled_matmul_intensity": _tile,
    "roofline.bounds": _bounds,
}
