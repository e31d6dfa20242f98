"""Moments of a run: what chips hold is what a replay by hand says, and all of it at the end."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.netsim.watch import WATCHED, Watched, watch
from rooflight.errors import UnknownNameError
from rooflight.hardware.mesh import Mesh, parse_mesh

LINE = parse_mesh("X=4", on="v5e:4x1")
MESHES = (
    LINE,
    parse_mesh("X=16", on="v5e:16x1"),
    parse_mesh("X=2,Y=3", on="v5e:2x3"),
    parse_mesh("X=4", on="h100:4"),
    parse_mesh("X=4", on="h100:2x2"),
)


def last(seen: Watched) -> tuple[tuple[float, ...], ...]:
    return seen.moments[-1].cells


@settings(max_examples=25)
@given(kind=st.sampled_from(WATCHED), mesh=st.sampled_from(MESHES), nbytes=st.floats(10, 1e8))
def test_a_run_starts_with_its_own_and_ends_with_all(kind: str, mesh: Mesh, nbytes: float) -> None:
    seen = watch(kind, nbytes, mesh, list(mesh.axes))
    chips = len(seen.groups)
    for chip, members in enumerate(seen.groups):
        own = tuple(float(m == chip) for m in members)
        share = (1 / len(members),) * len(members)
        first, whole = seen.moments[0].cells[chip], (1.0,) * len(members)
        assert first == pytest.approx(share if "reduce" in kind else own)
        assert last(seen)[chip] == pytest.approx(own if kind == "reduce_scatter" else whole)
    assert len(last(seen)) == chips
    assert seen.moments[-1].end_s == pytest.approx(seen.result.seconds)


@settings(max_examples=15)
@given(kind=st.sampled_from(WATCHED), mesh=st.sampled_from(MESHES), nbytes=st.floats(10, 1e8))
def test_the_bytes_of_all_moments_are_the_bytes_of_all_hops(
    kind: str, mesh: Mesh, nbytes: float
) -> None:
    seen = watch(kind, nbytes, mesh, list(mesh.axes), most=9)
    moved = math.fsum(m.nbytes for moment in seen.moments for m in moment.moves)
    assert moved == pytest.approx(math.fsum(h.nbytes for h in seen.result.hops), rel=1e-6)
    assert len(seen.moments) <= 10


def test_what_is_watched_is_what_is_simulated() -> None:
    mesh = parse_mesh("X=4,Y=2", on="v5e:4x2")
    assert watch("all_gather", 1e6, mesh, "XY").result == simulate("all_gather", 1e6, mesh, "XY")


def test_a_ring_of_sixteen_takes_eight_steps_of_its_neighbours() -> None:
    seen = watch("all_gather", 16e6, parse_mesh("X=16", on="v5e:16x1"), "X")
    held = [sum(moment.cells[0]) for moment in seen.moments]
    assert held == pytest.approx([1, 3, 5, 7, 9, 11, 13, 15, 16])
    assert all(len(moment.moves) == 32 for moment in seen.moments[1:])


def test_terms_of_a_sum_come_together_at_their_owner() -> None:
    seen = watch("reduce_scatter", 4e6, LINE, "X")
    owned = [moment.cells[0][0] for moment in seen.moments]
    assert owned == pytest.approx([0.25, 0.25, 0.25, 1.0])
    assert [sum(moment.cells[3]) for moment in seen.moments][-1] == pytest.approx(1.0)


def test_fewer_messages_are_at_most_a_little_slower() -> None:
    mesh = parse_mesh("X=4,Y=2", on="v5e:4x2")
    few = watch("all_gather", 1e8, mesh, "XY", messages=100).result
    many = watch("all_gather", 1e8, mesh, "XY").result
    assert len(few.hops) < len(many.hops)
    assert many.seconds <= few.seconds < 2 * many.seconds


def test_a_permute_is_not_watched() -> None:
    with pytest.raises(UnknownNameError):
        watch("permute", 1e6, LINE, "X")
