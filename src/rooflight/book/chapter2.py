"""Recipes of chapter 2: what is inside a TPU and between TPUs."""

from collections.abc import Mapping
from dataclasses import replace

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.book.chapter1 import batch_from_which_flops_bind, ridge_lines
from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    chip_of,
    dims_of,
    mesh_of,
    ring_lines,
    rule_seconds,
    slice_of,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.netsim.torus import torus_of
from rooflight.costs.network import collective_time, permute_time
from rooflight.costs.roofline import (
    Memory,
    OpTime,
    contraction_time,
    critical_batch,
    matmul_time,
    memory_bytes_per_s,
    ridge_point,
)
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


def _pod(e: Entry) -> Derivation:
    on = slice_of(e)
    chips, hbm = on.num_chips, on.chip.hbm_bytes or 0
    values = {
        "hosts": on.num_hosts,
        "cores": chips * on.chip.cores,
        "flops": chips * on.chip.peak_flops("bf16"),
        "hbm": chips * hbm,
    }
    lines = (
        Line(f"chips of {on}", chips, "chips"),
        Line("chips of a host", on.chip.host_chips, "chips"),
        Line("cores of a chip", on.chip.cores, "core"),
    )
    return Derivation(values, lines)


def _wide_matmul(e: Entry) -> Derivation:
    chip, dtype, d, f = chip_of(e), e.dtype(), e.whole("D"), e.whole("F")
    one = matmul_time(chip, m=1, k=d, n=f, lhs=dtype, rhs=dtype, out=dtype)
    weights = device_bytes(parse_tensor("W[D,F]"), {"D": d, "F": f}, {}, dtype)
    values = {
        "flops_per_B": one.roofs[0].amount,
        "weight_bytes": weights,
        "act_bytes_per_B": one.roofs[1].amount - weights,
        "b_crit": _crossover(e, chip, "hbm"),
    }
    lines = (
        Line("operations a token", one.roofs[0].amount, "OP"),
        Line("bytes of the weights", weights, "B"),
        Line("bytes of activations per token", one.roofs[1].amount - weights, "B"),
        *ridge_lines(chip, dtype.name),
    )
    return Derivation(values, lines)


def _wide_matmul_in_vmem(e: Entry) -> Derivation:
    chip = chip_of(e)
    vmem = e.number("vmem_over_hbm") * memory_bytes_per_s(chip)
    chip = replace(chip, vmem_bytes_per_s=vmem)
    lines = ridge_lines(chip, e.dtype().name, "vmem")
    return Derivation({"vmem_bw": vmem, "b_crit": _crossover(e, chip, "vmem")}, lines)


def _crossover(e: Entry, chip: Chip, memory: Memory) -> float:
    dtype = e.dtype()
    return critical_batch(
        chip,
        weight=dtype,
        activation=dtype,
        compute=dtype.name,
        d=e.whole("D"),
        f=e.whole("F"),
        memory=memory,
    )


def _corner_to_corner(e: Entry) -> Derivation:
    on, tensor = slice_of(e), parse_tensor(e.text("tensor"))
    nbytes = device_bytes(tensor, dims_of(e, tensor), {}, e.dtype())
    source, target = e.position("source"), e.position("target")
    time = permute_time(nbytes, on, source=source, target=target)
    lines = (
        Line(f"bytes of {tensor}", nbytes, "B"),
        Line("flight of the first byte, hop by hop", time.latency_s, "s"),
        Line(f"transfer, bound by {time.binds}", time.bandwidth_s, "s"),
        Line("both together", time.expected_s, "s"),
    )
    values = {
        "bytes": nbytes,
        "first_byte": time.latency_s,
        "bw_time": time.bandwidth_s,
        "total": time.expected_s,
    }
    return Derivation(values, lines)


def _from_hosts(e: Entry) -> OpTime:
    """Every chip takes its part of the array over its own PCIe link."""
    on = slice_of(e)
    part = e.number("nbytes") / on.num_chips
    return contraction_time(on.chip, flops=0, bytes_moved=part, compute="bf16", memory="pcie")


def _hosts_to_chips(e: Entry) -> Derivation:
    op = _from_hosts(e)
    lines = (
        Line("bytes of one chip", op.roofs[1].amount, "B"),
        Line("its PCIe link", op.roofs[1].rate, "B/s"),
    )
    return Derivation({"t": op.lower_s}, lines)


def _to_the_corner(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    time = collective_time("all_gather", e.number("nbytes"), mesh.group("XY"))
    return Derivation({"t": time.bandwidth_s}, (*ring_lines(mesh, "XY"), *time_lines(time)))


def _end_to_end(e: Entry) -> Derivation:
    chip, product = slice_of(e).chip, parse_contraction(e.text("product"))
    flops = 2 * strategies(product)[0].steps[0].elements(dims_of(e, *product.operands), {})
    op = contraction_time(chip, flops=flops, bytes_moved=e.number("nbytes"), compute="bf16")
    gather = collective_time("all_gather", e.number("nbytes"), mesh_of(e).group("XY"))
    stages = {
        "host memory to all chips, PCIe": _from_hosts(e).lower_s,
        "all chips to the corner, links": gather.bandwidth_s,
        "HBM to the matrix unit": op.roofs[1].seconds,
        "FLOPs": op.roofs[0].seconds,
    }
    lines = tuple(Line(text, seconds, "s") for text, seconds in stages.items())
    return Derivation({"lo": max(stages.values()), "hi": sum(stages.values())}, lines)


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
    "tpus.q2_v5e_pod": _pod,
    "tpus.q2_v5p_pod": _pod,
    "tpus.q3_pcie_bcrit": batch_from_which_flops_bind,
    "tpus.q4_matmul_hbm": _wide_matmul,
    "tpus.q4_matmul_vmem": _wide_matmul_in_vmem,
    "tpus.q5_corner_transfer": _corner_to_corner,
    "tpus.q6_pcie": _hosts_to_chips,
    "tpus.q6_ici": _to_the_corner,
    "tpus.q6_total": _end_to_end,
}
