"""Recipes of chapter 3: rules for collectives on rings and lines, and where latency takes over."""

from collections.abc import Mapping
from dataclasses import replace

from rooflight.book.derivation import (
    Derivation,
    Line,
    Recipe,
    mesh_of,
    on_axes,
    ring_lines,
    slice_of,
    time_lines,
)
from rooflight.book.entry import Entry
from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.network import permute_time
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


RECIPES: Mapping[str, Recipe] = {
    "sharding.ag_formula": _rules_of_thumb,
    "sharding.ag_hops": _steps_of_a_ring,
    "sharding.a2a_chunk_count": _chunks,
    "sharding.a2a_nd": _exchange_on_torus,
    "sharding.latency_threshold_v5e": _hop_break_even,
    "sharding.latency_multi_axis": _gather_of_little,
    "sharding.unidirectional_ag": _one_way_gather,
}
