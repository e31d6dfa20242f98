"""Recipes of profiles: what the book measured beside what the library predicts.

A measured value is compared, never reproduced: nothing of ours is fitted to it.
"""

import math
from collections.abc import Mapping

from rooflight.algebra.notation import parse_contraction
from rooflight.algebra.shapes import local_shape
from rooflight.book import gpu_network
from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    asked,
    chip_of,
    dims_of,
    fan_lines,
    mesh_of,
    on_axes,
    one_step,
    ring_lines,
    roof_lines,
    step_line,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.network import collective_time
from rooflight.costs.roofline import OpTime, matmul_time


def _gather(e: Entry) -> Derivation:
    """Predicted with latency, and the part of the bandwidth that this reaches."""
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    found = {"t": time.expected_s, "fraction_of_bw": time.bandwidth_s / time.expected_s}
    return asked(e, found, (step_line(step), *ring_lines(mesh, "Y"), *time_lines(time)))


def _saturation(e: Entry) -> Derivation:
    time = on_axes(e, "all_gather")
    ways = mesh_of(e).size(e.text("axes"))
    found = {
        "fraction_of_peak": time.bandwidth_s / time.expected_s,
        "bytes_per_device": e.number("nbytes") / ways,
    }
    return asked(e, found, time_lines(time))


def _local_matmul(e: Entry) -> OpTime:
    """The product on one device, no collective."""
    product, axes = parse_contraction(e.text("product")), mesh_of(e).axes
    left, right = product.operands
    dims = dims_of(e, left, right)
    rows, cols = local_shape(left, dims, axes), local_shape(right, dims, axes)
    chip, dtype = mesh_of(e).slice.chip, e.dtype()
    m, k = math.prod(rows[:-1]), dims[left.dims[-1]]
    return matmul_time(chip, m=m, k=k, n=cols[-1], lhs=dtype, rhs=dtype, out=dtype)


def _projection(e: Entry) -> Derivation:
    op = _local_matmul(e)
    tokens = e.whole("B") * e.whole("T") // mesh_of(e).size("X")
    found = {"t": op.lower_s, "tokens_per_dp_shard": tokens}
    return asked(e, found, roof_lines(op))


def _scatter(e: Entry) -> Derivation:
    """By the rule for rings, as the book does it."""
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    lines = (step_line(step), *ring_lines(mesh, "Y"), *time_lines(time))
    return asked(e, {"bytes": step.nbytes, "t": time.rule_s}, lines)


def _free_memory(e: Entry) -> Derivation:
    chip, params = chip_of(e), e.number("params")
    assert chip.hbm_bytes
    lines = (Line("HBM of the chip", chip.hbm_bytes, "B"), Line("parameters", params, "B"))
    return Derivation({"free": chip.hbm_bytes - params}, lines)


def _shapes(e: Entry) -> Derivation:
    """Local and global shapes of both operands."""
    product, axes = parse_contraction(e.text("product")), mesh_of(e).axes
    x, w = product.operands
    dims = dims_of(e, x, w)
    found = {
        "local_w": local_shape(w, dims, axes),
        "global_w": tuple(dims[d] for d in w.dims),
        "global_x": tuple(dims[d] for d in x.dims),
    }
    return asked(e, found, (Line(f"{w} on a device", found["local_w"], "elem"),))


def _collective_matmul(e: Entry) -> Derivation:
    """Gather, then multiply; or block by block, the longer of both; or nothing to gather."""
    mesh, op = mesh_of(e), _local_matmul(e)
    nbytes = e.dtype().nbytes(e.whole("B") // mesh.size("X") * e.whole("D"))
    gather = collective_time("all_gather", nbytes, mesh.group("Y"))
    naive, hidden = gather.expected_s + op.lower_s, max(gather.expected_s, op.lower_s)
    found = {
        "naive": naive,
        "collective": hidden,
        "unsharded": op.lower_s,
        "speedup": naive / hidden,
        "overhead_vs_unsharded": hidden / op.lower_s - 1,
    }
    return asked(e, found, (*roof_lines(op), *time_lines(gather)))


def _slice_and_average(e: Entry) -> Derivation:
    """The first elements of each device's block of 0, 1, 2 ..., averaged over devices."""
    ways = math.prod(mesh_of(e).axes.values())
    block = e.whole("n") // ways
    mean = sum(block * device for device in range(ways)) / ways
    lines = (Line("elements of a device", block, "elem"), Line("mean of first ones", mean, "1"))
    out = tuple(mean + offset for offset in range(e.whole("take")))
    return Derivation({"local_len": block, "out": out}, lines)


def _gather_in_node(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    lines = (step_line(step), *fan_lines(mesh, "X"), *time_lines(time))
    return asked(e, {"t": time.expected_s}, lines)


def _sum_bandwidth(e: Entry) -> Derivation:
    """2 (n - 1)/n V / t, as benchmarks of collectives count it, for large V and for a shard."""
    group = mesh_of(e).group("X")
    ways = e.whole("ways")
    shard = e.dtype().nbytes(e.whole("D") * e.whole("F")) / ways

    def rate(nbytes: float, *, in_network: bool = False) -> float:
        time = collective_time("all_reduce", nbytes, group, in_network_reduction=in_network)
        return 2 * (ways - 1) / ways * nbytes / time.expected_s

    large = e.number("large")
    found = {
        "max": rate(large),
        "at_58MB": rate(shard),
        "mlp_shard": shard,
        "sharp": rate(large, in_network=True),
    }
    return asked(e, found, time_lines(collective_time("all_reduce", shard, group)))


RECIPES: Mapping[str, Recipe] = {
    "sharding.pq2_ag_measured": _gather,
    "sharding.pq2_ag_small_measured": _gather,
    "sharding.ag_empirical_v5e": _saturation,
    "profiling.ffw_up_time": _projection,
    "profiling.ffw_up_measured": _projection,
    "profiling.rs_time": _scatter,
    "profiling.rs_measured": _scatter,
    "profiling.q_proj_time": _projection,
    "profiling.memory_profile": _free_memory,
    "profiling.q1_shapes": _shapes,
    "jax.collective_matmul": _collective_matmul,
    "jax.slice_and_average": _slice_and_average,
    "gpus.quiz1_q7_measured": gpu_network.RECIPES["gpus.quiz1_q7_add"],
    "gpus.quiz2_q3_measured": _gather_in_node,
    "gpus.empirical_ar": _sum_bandwidth,
}
