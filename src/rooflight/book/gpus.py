"""Recipes of chapter 12: what is inside a GPU, and its TPU counterpart."""

from collections.abc import Mapping

from rooflight.book.chapter2 import flops_per_cycle, neighbours
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, roof_lines, slice_of
from rooflight.book.entry import Entry
from rooflight.costs.roofline import (
    OpTime,
    matmul_time,
    ridge_point,
    vector_ridge_point,
    vector_time,
)


def _tensor_cores(e: Entry) -> Derivation:
    rates = {name: flops_per_cycle(chip_of(e, name)) for name in e.inputs}
    lines = tuple(Line(f"one tensor core of {n}", r, "FLOP/cycle") for n, r in rates.items())
    return Derivation(rates, lines)


def _ridge_points(e: Entry) -> Derivation:
    values: dict[str, float] = {}
    for name in ("h100", "b200"):
        for label, dtype in (("fp16", "half"), ("fp8", "quarter")):
            values[f"{name}_{label}"] = ridge_point(chip_of(e, name), e.text(dtype))
    lines = tuple(
        Line(f"ridge point, {k.replace('_', ' ')}", v, "FLOP/B") for k, v in values.items()
    )
    return Derivation(values, lines)


def _matmul(e: Entry) -> OpTime:
    dtype = e.dtype()
    m, k, n = e.whole("B"), e.whole("D"), e.whole("F")
    return matmul_time(chip_of(e), m=m, k=k, n=n, lhs=dtype, rhs=dtype, out=dtype)


def _small_matmul(e: Entry) -> Derivation:
    op = _matmul(e)
    nbytes = op.roofs[1].amount
    lines = (Line("bytes read and written", nbytes, "B"), *roof_lines(op))
    return Derivation({"bytes": nbytes, "t": op.lower_s}, lines)


def _large_matmul(e: Entry) -> Derivation:
    op = _matmul(e)
    return Derivation({"t": op.lower_s}, roof_lines(op))


def _add_vectors(e: Entry) -> Derivation:
    chip, dtype = chip_of(e), e.dtype()

    def add(n: int) -> OpTime:
        return vector_time(chip, flops=n, bytes_moved=3 * dtype.nbytes(n))  # two read, one written

    n = e.whole("N_small")
    small, large = add(n), add(e.whole("N_large"))
    values = {
        "intensity": small.intensity,
        "hw_intensity": vector_ridge_point(chip),
        "elems_per_s": n / small.lower_s,
        "t1": small.lower_s,
        "t2": large.lower_s,
    }
    lines = (
        Line("FLOPs per byte of the addition", small.intensity, "FLOP/B"),
        Line("FLOPs a byte that the vector units need", vector_ridge_point(chip), "FLOP/B"),
        *roof_lines(small),
    )
    return Derivation(values, lines)


def _all_links(e: Entry) -> Derivation:
    on = slice_of(e)
    links, rate = neighbours(on), on.chip.torus.link_bytes_per_s if on.chip.torus else 0.0
    lines = Line("links of a chip", links, ""), Line("one link, one way", rate, "B/s")
    return Derivation({"bw": links * rate}, lines)


RECIPES: Mapping[str, Recipe] = {
    "gpus.tc_flops_per_cycle": _tensor_cores,
    "gpus.quiz1_q3_intensity": _ridge_points,
    "gpus.quiz1_q4_small": _small_matmul,
    "gpus.quiz1_q4_big": _large_matmul,
    "gpus.quiz1_q7_add": _add_vectors,
    "gpus.v5p_egress": _all_links,
}
