"""Recipes of chapter 2: what is inside a TPU and between TPUs."""

from collections.abc import Mapping
from dataclasses import replace

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.book.chapter1 import ridge_lines
from rooflight.book.derivation import Derivation, Line, Recipe, chip_of, rule_seconds, slice_of
from rooflight.book.entry import Entry
from rooflight.costs.netsim.torus import torus_of
from rooflight.costs.roofline import matmul_time, ridge_point
from rooflight.costs.systolic import systolic_cycles
from rooflight.dtypes import DTYPES
from rooflight.hardware.chip import Chip, MatrixUnit
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice, parse_slice


def neighbours(on: Slice) -> int:
    """Chips that the first chip of a slice has a link to."""
    torus = torus_of(on)
    ends = [(dim, step) for dim in range(len(torus.dims)) for step in (1, -1)]
    return len({torus.neighbour(0, dim=dim, step=step) for dim, step in ends})


def _neighbours(e: Entry) -> Derivation:
    values: dict[str, int] = {}
    lines: list[Line] = []
    names = {"flat": "v2_v3_v5e_v6e_neighbors", "deep": "v4_v5p_neighbors"}
    for group, name in names.items():
        counts = {text: neighbours(parse_slice(text)) for text in e.text(group).split()}
        lines += [Line(f"neighbours in {text}", count, "links") for text, count in counts.items()]
        (values[name],) = set(counts.values())
    return Derivation(values, tuple(lines))


def _wraparound(e: Entry) -> Derivation:
    times = {
        name: rule_seconds("all_gather", e.number("nbytes"), slice_of(e, name), "X")
        for name in ("line", "ring")
    }
    lines = [Line(f"all-gather along x of {e.text(n)}, a {n}", t, "s") for n, t in times.items()]
    return Derivation({"no_wrap_slowdown": times["line"] / times["ring"]}, tuple(lines))


def _hop_distance(e: Entry) -> Derivation:
    on = slice_of(e, "line")
    ring = parse_mesh("X=16", on=on).group("X").rings[0]
    line = replace(ring, wraps=False)
    lines = Line("hops along the line", line.hops, ""), Line("hops around the ring", ring.hops, "")
    return Derivation({"line": line.hops, "ring": ring.hops}, lines)


def matrix_unit(chip: Chip) -> MatrixUnit:
    assert chip.matrix_unit is not None, f"{chip.title} has no matrix unit in the catalog"
    return chip.matrix_unit


def flops_per_cycle(chip: Chip) -> float:
    """What one matrix unit does in one cycle."""
    return replace(matrix_unit(chip), count=1, clock_hz=1.0).peak_flops


def _unit_peak(e: Entry) -> Derivation:
    unit = matrix_unit(chip_of(e))
    one = replace(unit, count=1).peak_flops
    lines = (
        Line(f"one array of {unit.rows} x {unit.cols}, clock", unit.clock_hz, "Hz"),
        Line("one array, 2 FLOPs a cell and cycle", one, "FLOP/s"),
        Line(f"all {unit.count} arrays", unit.peak_flops, "FLOP/s"),
    )
    return Derivation({"per_mxu": one, "per_chip": unit.peak_flops}, lines)


def _unit_op(e: Entry) -> Derivation:
    chip, dtype = chip_of(e), e.dtype()
    m, k, n = e.whole("m"), e.whole("k"), e.whole("n")
    flops = matmul_time(chip, m=m, k=k, n=n, lhs=dtype, rhs=dtype, out=dtype).roofs[0].amount
    cycles = systolic_cycles(m, k, n, replace(matrix_unit(chip), count=1)).stream
    lines = Line("FLOPs", flops, "FLOP"), Line("cycles once the array is full", cycles, "cycle")
    return Derivation({"flops_per_cycle": flops / cycles}, lines)


def _unit_gain(e: Entry) -> Derivation:
    rates = {name: flops_per_cycle(chip_of(e, name)) for name in ("large", "small")}
    lines = tuple(Line(f"one array of {e.text(n)}", r, "FLOP/cycle") for n, r in rates.items())
    return Derivation({"gain": rates["large"] / rates["small"]}, lines)


def _multiply_adds(e: Entry) -> Derivation:
    chip = chip_of(e)
    product = parse_contraction(e.text("product"))
    sizes = dict.fromkeys(product.dims, 128)
    pairs = strategies(product)[0].steps[0].elements(sizes, {})
    bf16 = DTYPES["bf16"]
    op = matmul_time(chip, m=128, k=128, n=128, lhs=bf16, rhs=bf16, out=bf16)
    share = pairs / op.roofs[0].amount
    lines = (
        Line("bf16 rate", chip.peak_flops("bf16"), "FLOP/s"),
        Line("multiply-adds in a FLOP of a matmul", share, ""),
    )
    return Derivation({"macs": chip.peak_flops("bf16") * share}, lines)


def _vmem_intensity(e: Entry) -> Derivation:
    chip = chip_of(e)
    ridges = {
        f"intensity_{end}": ridge_point(chip, e.text(name), "vmem")
        for end, name in (("lo", "low"), ("hi", "high"))
    }
    lines = (*ridge_lines(chip, e.text("low"), "vmem"), *ridge_lines(chip, e.text("high"), "vmem"))
    return Derivation(ridges, lines)


def _padding(e: Entry) -> Derivation:
    sides = {name: _padded_side(chip_of(e, name), e) for name in ("small", "large")}
    lines = tuple(Line(f"a dim of 1 on {e.text(n)} becomes", s, "") for n, s in sides.items())
    return Derivation({"v5": sides["small"], "v6e": sides["large"]}, lines)


def _padded_side(chip: Chip, e: Entry) -> float:
    """How many times the work of a contracting dim of 1 grows by padding, the rest being whole."""
    dtype, n = e.dtype(), matrix_unit(chip).cols

    def spent(pad: bool) -> float:
        op = matmul_time(chip, m=8, k=1, n=n, lhs=dtype, rhs=dtype, out=dtype, pad=pad)
        return op.roofs[0].amount

    return spent(pad=True) / spent(pad=False)


RECIPES: Mapping[str, Recipe] = {
    "tpus.ici_neighbors": _neighbours,
    "tpus.wraparound_rules": _wraparound,
    "tpus.hop_distance": _hop_distance,
    "tpus.mxu_flops_v5e": _unit_peak,
    "tpus.mxu_op": _unit_op,
    "tpus.v6e_mxu_gain": _unit_gain,
    "tpus.macs_claim": _multiply_adds,
    "tpus.vmem": _vmem_intensity,
    "tpus.mxu_padding": _padding,
}
