"""Recipes of the worked problems of chapter 2: pods, PCIe, VMEM, and bytes across a slice."""

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
    slice_of,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.network import collective_time, permute_time
from rooflight.costs.roofline import (
    Memory,
    OpTime,
    contraction_time,
    critical_batch,
    matmul_time,
    memory_bytes_per_s,
)
from rooflight.hardware.chip import Chip


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
