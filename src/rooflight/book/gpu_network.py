"""Recipes of chapter 12: collectives behind switches, in a node and across nodes."""

from collections.abc import Mapping

from rooflight.algebra.notation import parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.book.chapter2 import flops_per_cycle, neighbours
from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    chip_of,
    dims_of,
    fan_lines,
    mesh_of,
    on_axes,
    one_step,
    roof_lines,
    rule_seconds,
    slice_of,
    step_line,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.network import NetworkTime, collective_time, ragged_share, ragged_share_bound
from rooflight.costs.roofline import (
    OpTime,
    matmul_time,
    ridge_point,
    vector_ridge_point,
    vector_time,
)
from rooflight.hardware.mesh import Group, Mesh


def _in_node(e: Entry) -> Derivation:
    gather, reduce = on_axes(e, "all_gather"), on_axes(e, "all_reduce")
    exchange = on_axes(e, "all_to_all")
    sharp = on_axes(e, "all_reduce", in_network_reduction=True)
    values = {
        "all_gather": gather.bandwidth_s,
        "all_reduce": reduce.bandwidth_s,
        "all_to_all": exchange.bandwidth_s,
        "all_reduce_sharp": sharp.bandwidth_s,
    }
    return Derivation(values, fan_lines(mesh_of(e), e.text("axes")))


def _gather_in_node(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    values = {"bytes": step.nbytes, "exact_t": time.bandwidth_s, "approx_t": time.rule_s}
    lines = (step_line(step), *fan_lines(mesh, "X"), *time_lines(time)[:2])
    return Derivation({name: values[name] for name in e.expected}, lines)


def _switch_against_ring(e: Entry) -> Derivation:
    shares: dict[str, float] = {}
    for name in ("on", "ring"):
        on, nbytes = slice_of(e, name), e.number("nbytes")
        gather = rule_seconds("all_gather", nbytes, on, "X")
        shares[name] = rule_seconds("all_to_all", nbytes, on, "X") / gather
    lines = tuple(
        Line(f"all-to-all over all-gather on {e.text(n)}", s, "x") for n, s in shares.items()
    )
    return Derivation({"speedup": shares["ring"] / shares["on"]}, lines)


def _ragged(e: Entry) -> Derivation:
    share = ragged_share_bound(e.whole("choices"), e.whole("shards"))
    return Derivation({"fraction": share}, (Line("part of the shards reached", share, ""),))


def _ragged_exact(e: Entry) -> Derivation:
    exchange, shards = on_axes(e, "all_to_all"), mesh_of(e).group(e.text("axes")).size
    leaves = exchange.bandwidth_s / exchange.rule_s
    exact = ragged_share(e.whole("choices"), shards)
    bound = ragged_share_bound(e.whole("choices"), shards)
    lines = (
        Line("part of the array that leaves its GPU", leaves, ""),
        Line("part of the shards reached, repeats counted", exact, ""),
        Line("part of the shards reached, at most", bound, ""),
    )
    return Derivation({"exact": exact * leaves, "approx": bound * leaves}, lines)


def _gain_of_adding_in_switches(e: Entry) -> Derivation:
    plain = on_axes(e, "all_reduce").bandwidth_s
    sharp = on_axes(e, "all_reduce", in_network_reduction=True).bandwidth_s
    lines = Line("plain all-reduce", plain, "s"), Line("switches add", sharp, "s")
    return Derivation({"predicted": plain / sharp - 1}, lines)


def _bandwidth_of_levels(e: Entry) -> Derivation:
    """Each level by itself, as the outermost of a group; the book's lowest is of one unit of 32."""
    mesh, axes, nbytes = mesh_of(e), e.text("axes"), e.number("nbytes")
    fans = mesh.group(axes).fans
    times = [
        collective_time("all_gather", nbytes, Group((), fans[: level + 1]))
        for level in range(len(fans))
    ]
    values = {t.tiers[-1].name: nbytes / t.tiers[-1].bandwidth_s for t in times}
    return Derivation({**values, "min": min(values.values())}, fan_lines(mesh, axes))


def _bandwidth_of_two_nodes(e: Entry) -> Derivation:
    time = on_axes(e, "all_gather")
    rates = {tier.name: time.nbytes / tier.bandwidth_s for tier in time.tiers}
    values = {"node_level": rates["node"], "leaf_level": rates["leaf"]}
    return Derivation(values, fan_lines(mesh_of(e), e.text("axes")))


def _across_nodes(e: Entry) -> Derivation:
    gather, reduce = on_axes(e, "all_gather"), on_axes(e, "all_reduce")
    lines = fan_lines(mesh_of(e), e.text("axes"))
    return Derivation({"all_gather": gather.rule_s, "all_reduce": reduce.rule_s}, lines)


def _second_node(e: Entry) -> Derivation:
    nbytes = e.number("nbytes")
    one = rule_seconds("all_to_all", nbytes, slice_of(e, "one"), "X")
    two = rule_seconds("all_to_all", nbytes, slice_of(e, "two"), "XY")
    lines = Line("all-to-all in one node", one, "s"), Line("across two nodes", two, "s")
    return Derivation({"degradation": two / one}, lines)


def _gather_beside_another_axis(e: Entry) -> Derivation:
    inside, across = mesh_of(e, "mesh_inside"), mesh_of(e, "mesh_across")
    in_step, in_time = one_step(e, inside)
    out_step, out_time = one_step(e, across)
    lines = (
        Line(f"{in_step.step}, mesh {inside}", in_step.nbytes, "B"),
        *fan_lines(inside, "X"),
        Line(f"{out_step.step}, mesh {across}", out_step.nbytes, "B"),
        *fan_lines(across, "X"),
    )
    return Derivation({"t_Y_le_8": in_time.bandwidth_s, "t_Y16": out_time.rule_s}, lines)


def _tier_bytes(mesh: Mesh, axes: str, time: NetworkTime) -> dict[str, float]:
    """Bytes that cross each tier, for one unit."""
    rates = {fan.dim: fan.bytes_per_s for fan in mesh.group(axes).fans}
    return {tier.name: tier.bandwidth_s * rates[tier.name] for tier in time.tiers}


def _traffic_of_gather(e: Entry) -> Derivation:
    mesh, tensor = mesh_of(e), parse_tensor(e.text("tensor"))
    nodes, gpus = mesh.size("X"), mesh.size("Y")
    shard = device_bytes(tensor, dims_of(e, tensor), mesh.axes, e.dtype())
    step, time = one_step(e, mesh)
    whole, into_node = step.nbytes, _tier_bytes(mesh, "XY", time)["leaf"]
    own, missing = gpus * shard, gpus * (whole - shard)
    lines = (
        step_line(step),
        Line("shards of the GPUs of a node", own, "B"),
        Line("what a node takes in from the leaf", into_node, "B"),
        Line("what the GPUs of a node lack", missing, "B"),
    )
    values = {
        "node_ingress": (own + into_node) / whole,
        "node_egress": (own + missing) / whole,
        "spine_egress": nodes * into_node / whole,
    }
    return Derivation(values, lines)


def _traffic_of_adding_switch(e: Entry) -> Derivation:
    mesh, axes = mesh_of(e), e.text("axes")
    time = on_axes(e, "all_reduce", in_network_reduction=True)
    one = _tier_bytes(mesh, axes, time)["node"] / time.nbytes
    through = one * mesh.group(axes).size
    line = Line("arrays each GPU sends up, and takes back", one, "")
    return Derivation({"ingress": through, "egress": through}, (line,))


def _sum_in_spine(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    step, _ = one_step(e, mesh)
    time = collective_time("all_reduce", step.nbytes, mesh.group("X"), in_network_reduction=True)
    lines = (step_line(step), *fan_lines(mesh, "X"), Line("V / W", time.bandwidth_s, "s"))
    return Derivation({"t": time.bandwidth_s}, lines)


def _reduce_beside_another_axis(e: Entry) -> Derivation:
    inside, across = mesh_of(e, "mesh_inside"), mesh_of(e, "mesh_across")
    nbytes = e.number("nbytes")

    def tiers(mesh: Mesh) -> dict[str, float]:
        time = collective_time("reduce_scatter", nbytes / mesh.size("Y"), mesh.group("X"))
        return {tier.name: tier.rule_s for tier in time.tiers}

    # Across nodes X leaves NVLink idle; the rule still counts each GPU's slab through its egress.
    node = slice_of(e, "node")
    slab = rule_seconds("permute", nbytes / node.num_chips, node, "X")
    values = {
        "node_Y4": tiers(inside)["node"],
        "scaleout_Y4": tiers(inside)["leaf"],
        "node_Y32": slab,
        "scaleout_Y32": tiers(across)["leaf"],
    }
    return Derivation(values, (*fan_lines(inside, "X"), *fan_lines(across, "X")))


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
    "gpus.quiz2_q3_ag": _gather_in_node,
    "gpus.ag_rule": _in_node,
    "gpus.pq1_ag": _gather_in_node,
    "gpus.a2a_vs_tpu": _switch_against_ring,
    "gpus.ragged_a2a": _ragged,
    "gpus.ragged_exact": _ragged_exact,
    "gpus.sharp_gain": _gain_of_adding_in_switches,
    "gpus.tree_bandwidths": _bandwidth_of_levels,
    "gpus.cross_node_rule": _across_nodes,
    "gpus.a2a_cross_node": _second_node,
    "gpus.pq3_sharded_ag": _gather_beside_another_axis,
    "gpus.quiz4_q1_bytes": _traffic_of_gather,
    "gpus.quiz4_q2_sharp_bytes": _traffic_of_adding_switch,
    "gpus.quiz4_q4_spine_ar": _sum_in_spine,
    "gpus.quiz4_q5_2node": _bandwidth_of_two_nodes,
    "gpus.sharded_axis_reduction": _reduce_beside_another_axis,
    "gpus.tc_flops_per_cycle": _tensor_cores,
    "gpus.quiz1_q3_intensity": _ridge_points,
    "gpus.quiz1_q4_small": _small_matmul,
    "gpus.quiz1_q4_big": _large_matmul,
    "gpus.quiz1_q7_add": _add_vectors,
    "gpus.v5p_egress": _all_links,
}
