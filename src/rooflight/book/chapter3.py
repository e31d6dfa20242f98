"""Recipes of chapter 3: rules for collectives on rings and lines, and where latency takes over."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.algebra.steps import Op
from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    dims_of,
    mesh_of,
    on_axes,
    one_step,
    ring_lines,
    rule_seconds,
    slice_of,
    step_line,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.choose import Price, price
from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.netsim.torus import Cargo, LinkSchedule, torus_of
from rooflight.costs.network import collective_time, permute_time
from rooflight.costs.roofline import contraction_time, critical_contracting_dim, hiding_intensity
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice


def hop_break_even(on: Slice) -> float:
    """Bytes whose time on one link equals the latency of the hop."""
    hop = permute_time(1.0, on, source=(0, 0), target=(0, 1))
    return hop.nbytes * hop.latency_s / hop.bandwidth_s


def _rules_of_thumb(e: Entry) -> Derivation:
    times = {
        "all_gather": on_axes(e, "all_gather"),
        "reduce_scatter": on_axes(e, "reduce_scatter"),
        "all_reduce": on_axes(e, "all_reduce"),
        "all_to_all": on_axes(e, "all_to_all"),
    }
    values = {name: time.rule_s for name, time in times.items()}
    return Derivation(values, ring_lines(mesh_of(e), e.text("axes")))


def _steps_of_a_ring(e: Entry) -> Derivation:
    on = slice_of(e)
    both_ways = parse_mesh(f"X={on.num_chips}", on=on).group("X").rings[0]
    one_way = replace(both_ways, wraps=False)  # goes as far as the other end of a line
    values = {"unidirectional": one_way.hops, "bidirectional": both_ways.hops}
    return Derivation(values, tuple(Line(f"{k} hops", v, "hops") for k, v in values.items()))


def _chunks(e: Entry) -> Derivation:
    mesh, nbytes = mesh_of(e), e.number("nbytes")
    run = simulate("all_to_all", nbytes, mesh, e.text("axes"))
    chips = mesh.slice.num_chips
    chunk = nbytes / chips**2
    sent = sum(hop.nbytes for hop in run.hops if hop.source == 0)
    lines = (
        Line("bytes of a chunk", chunk, "B"),
        Line("bytes that chip 0 sends, simulated", sent, "B"),
    )
    return Derivation({"chunks": sent / chunk}, lines)


def _exchange_on_torus(e: Entry) -> Derivation:
    time = on_axes(e, "all_to_all")
    lines = (*ring_lines(mesh_of(e), e.text("axes")), *time_lines(time))
    return Derivation({"t": time.rule_s}, lines)


def _hop_break_even(e: Entry) -> Derivation:
    on = slice_of(e)
    time = permute_time(hop_break_even(on), on, source=(0, 0), target=(0, 1))
    return Derivation({"bytes": time.nbytes}, time_lines(time)[::2])


def _gather_of_little(e: Entry) -> Derivation:
    time = on_axes(e, "all_gather")
    return Derivation({"t": time.lower_s}, time_lines(time))


def _one_way_gather(e: Entry) -> Derivation:
    # A line carries in each direction what a one-way ring carries in its only one.
    time = on_axes(e, "all_gather")
    return Derivation({"t": time.bandwidth_s}, time_lines(time)[:1])


def _gather_as_ring(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    shard = _shard_bytes(e)
    values = {"bytes": step.nbytes, "shard_bytes": shard, "t": time.rule_s}
    lines = (
        step_line(step),
        Line("bytes of a shard", shard, "B"),
        *ring_lines(mesh, "Y"),
        Line("rule V / W", time.rule_s, "s"),
    )
    return Derivation(values, lines)


def _shard_bytes(e: Entry) -> int:
    tensor = parse_tensor(e.text("tensor"))
    return device_bytes(tensor, dims_of(e, tensor), mesh_of(e).axes, e.dtype())


def _gather_on_line(e: Entry) -> Derivation:
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    hops = mesh.group("Y").rings[0].hops
    lines = (
        step_line(step),
        *ring_lines(mesh, "Y"),
        Line("hops from end to end", hops, "hops"),
        *time_lines(time)[::2],
    )
    return Derivation({"hops": hops, "t": time.bandwidth_s}, lines)


def _small_gather_on_line(e: Entry) -> Derivation:
    step, time = one_step(e, mesh_of(e))
    shard = _shard_bytes(e)
    hop = permute_time(shard, slice_of(e), source=(0, 0), target=(0, 1))
    values = {"shard_bytes": shard, "hop_bw_time": hop.bandwidth_s, "t": time.lower_s}
    lines = (
        step_line(step),
        Line("a shard over one link", hop.bandwidth_s, "s"),
        *time_lines(time)[::2],
        Line(f"bound by {time.binds}", time.lower_s, "s"),
    )
    return Derivation(values, lines)


def _one_collective(e: Entry) -> Derivation:
    """One derived step by the rule for large groups."""
    mesh = mesh_of(e)
    step, time = one_step(e, mesh)
    passes = "2 V / W" if time.kind == "all_reduce" else "V / W"
    lines = (
        step_line(step),
        *ring_lines(mesh, "".join(step.step.axes)),
        Line(f"{passes}, the rule for large groups", time.rule_s, "s"),
        Line("for this group, latency included", time.expected_s, "s"),
    )
    return Derivation({"t": time.rule_s}, lines)


def _gather_together(e: Entry, to: str, axes: str) -> tuple[float, float, tuple[Line, ...]]:
    """Seconds, latency and lines of one all-gather over several axes that leaves tensor `to`."""
    mesh, target = mesh_of(e), parse_tensor(e.text(to))
    nbytes = device_bytes(target, dims_of(e, target), mesh.axes, e.dtype())
    names = e.text(axes)
    time = collective_time("all_gather", nbytes, mesh.group(names))
    lines = (
        Line(f"AllGather_{{{names}}} leaves {target} on each chip", nbytes, "B"),
        Line(f"{names} together", sum(r.bytes_per_s for r in mesh.group(names).rings), "B/s"),
        Line("V / W, the rule for large groups", time.rule_s, "s"),
        Line("for this group, latency included", time.expected_s, "s"),
    )
    return time.rule_s, time.latency_s, lines


def _gather_both_dims(e: Entry) -> Derivation:
    seconds, latency_s, lines = _gather_together(e, "to", "axes")
    latency = Line("latency, half way round each ring", latency_s, "s")
    return Derivation({"t": seconds, "latency_bound": latency_s}, (*lines, latency))


def _gather_with_idle_axis(e: Entry) -> Derivation:
    one, _, first = _gather_together(e, "to_one", "axes_one")
    both, _, second = _gather_together(e, "to_both", "axes_both")
    return Derivation({"part1": one, "part2": both}, (*first, *second))


def _tiny_gather(e: Entry) -> Derivation:
    step, time = one_step(e, mesh_of(e))
    values = {"bytes": step.nbytes, "per_device": _shard_bytes(e), "t": time.lower_s}
    bound = Line(f"bound by {time.binds}", time.lower_s, "s")
    return Derivation(values, (step_line(step), *time_lines(time)[::2], bound))


def _gather_or_sum(e: Entry) -> Derivation:
    mesh, dtype = mesh_of(e), e.dtype()
    chip, rate = mesh.slice.chip, mesh.group("X").rings[0].bytes_per_s
    alpha = hiding_intensity(chip, dtype.name, bytes_per_s=rate)
    per_shard = critical_contracting_dim(
        chip, chips=1, partial=dtype, compute=dtype.name, bytes_per_s=rate, passes=2
    )
    lines = (
        *(Line(f"{p.summary}: bytes", p.network_bytes, "B") for p in _prices(e)),
        Line("FLOPs that hide a byte on a ring, C / W", alpha, "FLOP/B"),
        Line("gathering is hidden from this batch on", alpha, "token"),
        Line("summing is hidden from this D a shard on", per_shard, "elements"),
        Line("so D allows this many shards", e.whole("D") / per_shard, "chips"),
    )
    values = {"x_max": e.whole("D") / per_shard, "b_thresh": alpha, "D_thresh": per_shard}
    return Derivation(values, lines)


def _prices(e: Entry, name: str = "product") -> list[Price]:
    """Every strategy of a contraction on the mesh."""
    product, mesh = parse_contraction(e.text(name)), mesh_of(e)
    dims = dims_of(e, *product.operands)
    found = strategies(product, mesh.axes)
    return [price(s, dims=dims, mesh=mesh, dtype=e.dtype()) for s in found]


def _block_under_cap(e: Entry) -> Derivation:
    mesh, dtype = mesh_of(e), e.dtype()
    prices = [*_prices(e, "up"), *_prices(e, "down")]
    weights = [p.strategy.contraction.operands[1] for p in prices]
    nbytes = sum(device_bytes(w, dims_of(e, w), mesh.axes, dtype) for w in weights)
    flops = sum(s.flops for p in prices for s in p.steps)
    op = contraction_time(mesh.slice.chip, flops=flops, bytes_moved=nbytes, compute=dtype.name)
    math_s, hbm_s = (roof.seconds for roof in op.roofs)
    lines = (
        *(step_line(s) for p in prices for s in p.steps),
        Line("weights of one chip", nbytes, "B"),
        Line("FLOPs", math_s, "s"),
        Line("reading the weights", hbm_s, "s"),
    )
    return Derivation({"t_math": math_s, "t_hbm": hbm_s, "weights_per_chip": nbytes}, lines)


def _gather_over_scatter(e: Entry) -> Derivation:
    gather = _only(_prices(e, "gathered"), "all_gather")
    scatter = _only(_prices(e, "scattered"), "reduce_scatter")
    lines = tuple(Line(f"{p.summary}: bytes", p.network_bytes, "B") for p in (gather, scatter))
    return Derivation({"ratio": gather.network_bytes / scatter.network_bytes}, lines)


def _only(prices: list[Price], op: Op) -> Price:
    """The strategy whose only collective is `op`."""
    return next(p for p in prices if [s.op for s in p.strategy.collectives] == [op])


def _one_way_traffic(e: Entry) -> Derivation:
    on, tensor = slice_of(e), parse_tensor(e.text("tensor"))
    scalars = e.whole(tensor.dims[0]) * e.whole(tensor.dims[1])
    gather = all_gather_on_one_way_ring(scalars, on)
    exchange = all_to_all_on_one_way_ring(scalars, on)
    values = {"all_gather": gather, "all_to_all": exchange, "ratio": exchange / gather}
    lines = (
        Line("all-gather: numbers over one link, simulated", gather, "scalar"),
        Line("all-to-all: numbers over one link, simulated", exchange, "scalar"),
    )
    return Derivation(values, lines)


def _both_ways_ratio(e: Entry) -> Derivation:
    nbytes, ring = e.number("nbytes"), slice_of(e, "ring")
    gather = rule_seconds("all_gather", nbytes, ring, "X")
    exchange = rule_seconds("all_to_all", nbytes, ring, "X")
    # A line carries in each direction what a one-way ring carries in its only one.
    one_way_gather = rule_seconds("all_gather", nbytes, slice_of(e, "line"), "X")
    on = slice_of(e, "one_way")
    share = all_to_all_on_one_way_ring(nbytes, on) / all_gather_on_one_way_ring(nbytes, on)
    one_way_exchange = one_way_gather * share
    lines = (
        Line("all-gather, one way", one_way_gather, "s"),
        Line("all-gather, both ways", gather, "s"),
        Line("all-to-all over all-gather one way, simulated", share, "x"),
        Line("all-to-all, one way", one_way_exchange, "s"),
        Line("all-to-all, both ways", exchange, "s"),
    )
    values = {
        "ratio": exchange / gather,
        "ag_gain": one_way_gather / gather,
        "a2a_gain": one_way_exchange / exchange,
    }
    return Derivation(values, lines)


# Collectives on a ring whose links go one way, laid out message by message on simulated links.


def all_gather_on_one_way_ring(size: float, ring: Slice) -> float:
    """What crosses the busiest link when every shard goes all the way round."""
    chips = ring.num_chips
    schedule = LinkSchedule(torus_of(ring))
    for chip in range(chips):
        _send(schedule, chip, size / chips, links=chips - 1)
    return _busiest_link(schedule)


def all_to_all_on_one_way_ring(size: float, ring: Slice) -> float:
    """What crosses the busiest link when every chip has a chunk for every other."""
    chips = ring.num_chips
    schedule = LinkSchedule(torus_of(ring))
    for chip in range(chips):
        for distance in range(1, chips):
            _send(schedule, chip, size / chips**2, links=distance)
    return _busiest_link(schedule)


def _send(schedule: LinkSchedule, source: int, size: float, *, links: int) -> None:
    cargo = Cargo(size, piece=0, units=1, rank=0)
    schedule.send(cargo, source=source, dim=0, step=1, links=links, after=())


def _busiest_link(schedule: LinkSchedule) -> float:
    loads: defaultdict[int, float] = defaultdict(float)
    for message in schedule.messages:
        loads[message.link] += message.nbytes
    return max(loads.values())


RECIPES: Mapping[str, Recipe] = {
    "sharding.ag_formula": _rules_of_thumb,
    "sharding.ag_hops": _steps_of_a_ring,
    "sharding.a2a_chunk_count": _chunks,
    "sharding.a2a_nd": _exchange_on_torus,
    "sharding.latency_threshold_v5e": _hop_break_even,
    "sharding.latency_multi_axis": _gather_of_little,
    "sharding.unidirectional_ag": _one_way_gather,
    "sharding.pq2_ag_ring": _gather_as_ring,
    "sharding.pq2_ag_nowrap": _gather_on_line,
    "sharding.pq2_ag_small": _small_gather_on_line,
    "sharding.q2_1": _one_collective,
    "sharding.q2_2": _gather_both_dims,
    "sharding.q2_3": _one_collective,
    "sharding.q2_replicated_axis": _gather_with_idle_axis,
    "sharding.q3_latency_ag": _tiny_gather,
    "sharding.q4_strategies": _gather_or_sum,
    "sharding.q7_solution": _block_under_cap,
    "sharding.q9_ratio": _gather_over_scatter,
    "sharding.q10_unidir": _one_way_traffic,
    "sharding.q10_bidir_ratio": _both_ways_ratio,
}
