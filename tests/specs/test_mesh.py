"""Meshes: where axes land on a slice, and the groups they make."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import ParseError, PlacementError, UnknownNameError
from rooflight.hardware.mesh import Mesh, Segment, parse_mesh
from rooflight.hardware.slice import TorusDim, parse_slice

SLICES = ("v5e:16x16", "v5e:4x8", "v5p:4x4x8", "v5p:2x2x4", "2*v5e:8x16", "h100:8x64", "gb200:72x4")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Two to four axes whose sizes come from factors of the slice's own dims, in any order."""
    on = parse_slice(draw(st.sampled_from(SLICES)))
    sizes = [1] * draw(st.integers(2, 4))
    for dim in on.dims:
        inner = draw(st.sampled_from([d for d in range(1, dim.size + 1) if dim.size % d == 0]))
        for factor in (inner, dim.size // inner):
            sizes[draw(st.integers(0, len(sizes) - 1))] *= factor
    text = ",".join(f"{name}={size}" for name, size in zip("XYZW", sizes, strict=False))
    return parse_mesh(text, on=on)


@given(meshes())
def test_parse_undoes_print(mesh: Mesh) -> None:
    assert parse_mesh(str(mesh), on=mesh.slice) == mesh


@given(meshes())
def test_the_segments_of_a_dim_count_every_chip_once(mesh: Mesh) -> None:
    for dim in mesh.slice.dims:
        parts = [s for axis in mesh.axes for s in mesh.segments[axis] if s.dim == dim.name]
        inside = 1
        for part in sorted(parts, key=lambda s: s.stride):
            assert part.stride == inside
            inside *= part.size
        assert inside == dim.size


@given(meshes())
def test_a_group_has_the_size_of_its_axes(mesh: Mesh) -> None:
    names = list(mesh.axes)
    for count in range(1, len(names) + 1):
        assert mesh.group(names[:count]).size == math.prod(mesh.size(n) for n in names[:count])


@given(meshes())
def test_the_group_of_all_axes_is_the_slice_itself(mesh: Mesh) -> None:
    group = mesh.group(list(mesh.axes))
    torus = {d.name: d for d in mesh.slice.dims if isinstance(d, TorusDim) and d.size > 1}
    assert {r.dim: (r.size, r.stride, r.wraps) for r in group.rings} == {
        name: (d.size, 1, d.wraps) for name, d in torus.items()
    }


def test_whole_dims_are_preferred_over_order() -> None:
    mesh = parse_mesh("X=4,Y=8", on="v5e:8x4")
    assert mesh.segments == {"X": (Segment("y", 4, 1),), "Y": (Segment("x", 8, 1),)}


def test_an_axis_may_take_several_whole_dims() -> None:
    assert str(parse_mesh("X=16,Y=8", on="v5p:4x4x8")) == "X=16@x+y,Y=8@z"


def test_axes_split_a_dim_from_the_outside_in() -> None:
    mesh = parse_mesh("X=4,Y=4,Z=16", on="v5e:16x16")
    assert mesh.segments["X"] == (Segment("x", 4, 4),)
    assert mesh.segments["Y"] == (Segment("x", 4, 1),)
    assert mesh.segments["Z"] == (Segment("y", 16, 1),)


def test_an_axis_goes_where_it_is_told() -> None:
    assert parse_mesh("X=16@y,Y=16", on="v5e:16x16").segments["Y"] == (Segment("x", 16, 1),)
    assert parse_mesh("X=32@y+x,Y=8", on="v5e:16x16").segments["X"] == (
        Segment("y", 16, 1),
        Segment("x", 2, 8),
    )


def test_a_ring_inside_an_axis_does_not_wrap_and_the_outer_one_does() -> None:
    mesh = parse_mesh("X=4,Y=4,Z=16", on="v5e:16x16")
    (outer,), (inner,), (whole,) = (mesh.group(axis).rings for axis in "XYZ")
    link = whole.link_bytes_per_s
    assert (inner.size, inner.stride, inner.wraps) == (4, 1, False)
    assert (outer.size, outer.stride, outer.wraps) == (4, 4, True)
    # Four sibling rings share each link of the outer one; a line sends one way only.
    assert whole.bytes_per_s == 2 * link
    assert outer.bytes_per_s == 2 * link / 4
    assert inner.bytes_per_s == link
    assert (whole.hops, outer.hops, inner.hops) == (8, 2, 3)


def test_parts_of_one_dim_merge_into_the_ring_they_make() -> None:
    mesh = parse_mesh("X=4,Y=4,Z=16", on="v5e:16x16")
    (ring,) = mesh.group("XY").rings
    assert (ring.dim, ring.size, ring.stride, ring.wraps) == ("x", 16, 1, True)
    assert mesh.group("YX") == mesh.group("XY")


def test_parts_of_one_dim_that_do_not_touch_share_its_links() -> None:
    mesh = parse_mesh("X=2,Y=4,Z=2,W=16", on="v5e:16x16")
    outer, inner = mesh.group("XZ").rings
    assert (outer.stride, inner.stride) == (8, 1)
    assert outer.link_bytes_per_s == inner.link_bytes_per_s
    assert outer.link_bytes_per_s == mesh.group("W").rings[0].link_bytes_per_s / 2


def test_a_group_gets_the_share_of_a_unit_that_its_members_are() -> None:
    mesh = parse_mesh("X=64,Y=8", on="h100:8x64")
    assert str(mesh) == "X=64@spine+leaf,Y=8@node"
    across = {f.dim: f for f in mesh.group("X").fans}
    assert {n: (f.members, f.unit_chips) for n, f in across.items()} == {
        "leaf": (1, 8),
        "spine": (32, 256),
    }
    assert across["leaf"].bytes_per_s == across["leaf"].egress_bytes_per_s / 8
    everything = mesh.group("XY").fans
    assert [f.dim for f in everything] == ["node", "leaf", "spine"]
    assert [f.members for f in everything] == [1, 8, 256]
    assert all(f.bytes_per_s == f.egress_bytes_per_s for f in everything)


def test_slices_over_dcn_are_one_more_fan() -> None:
    mesh = parse_mesh("X=2,Y=8,Z=16", on="2*v5e:8x16")
    (fan,) = mesh.group("X").fans
    assert (fan.dim, fan.members, fan.unit_chips) == ("dcn", 1, 128)
    assert mesh.group("XYZ").fans[0].members == 128


@given(st.sampled_from(SLICES), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_the_hint_of_a_wrong_product_works_when_typed_back(on: str, sizes: list[int]) -> None:
    text = ",".join(f"{name}={size}" for name, size in zip("XYZ", sizes, strict=False))
    chips = parse_slice(on).num_chips
    if math.prod(sizes) == chips:
        return
    with pytest.raises(PlacementError, match=f"has {chips}") as caught:
        parse_mesh(text, on=on)
    typed = caught.value.hint.split()[-1]
    assert math.prod(parse_mesh(typed, on=on).axes.values()) == chips


def test_the_added_axis_of_a_hint_places() -> None:
    with pytest.raises(PlacementError) as caught:
        parse_mesh("X=4", on="v5e:4x4")
    assert parse_mesh(caught.value.hint.split()[-1], on="v5e:4x4").size("X") == 4


def test_sizes_that_do_not_divide_a_dim_are_refused() -> None:
    with pytest.raises(PlacementError, match="does not divide"):
        parse_mesh("X=8@y,Y=2", on="v5e:4x4")


@pytest.mark.parametrize("text", ["", "X", "X=", "X=0,Y=16", "X=4;Y=4", "X=4,X=4", "X=-4", "X=4@"])
def test_text_that_is_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_mesh(text, on="v5e:4x4")
    assert caught.value.hint


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="'q'") as caught:
        parse_mesh("X=4@q,Y=4", on="v5e:4x4")
    assert "x, y" in caught.value.hint
    with pytest.raises(UnknownNameError, match="mesh axis 'Q'"):
        parse_mesh("X=4,Y=4", on="v5e:4x4").group("Q")
