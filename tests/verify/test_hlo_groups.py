"""Replica groups in every notation, held to numpy, and back to the axes of the mesh."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.compile.hlo.groups import GroupAxes, MeshAxes, axes_of, read_groups

AXES = {"X": 4, "Y": 4}


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", ("Y",)),
        ("{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}", ("X",)),
        ("[4,4]<=[16]", ("Y",)),
        ("[4,4]<=[4,4]T(1,0)", ("X",)),
        ("[1,16]<=[16]", ("X", "Y")),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=4] {'axis_2'}", ("Y",)),
        ("mesh['axis_0'=4,'axis_1'=4], device_ids=([4,4]T(1,0)) {'axis_1'}", ("X",)),
        ("mesh['axis_0'=1,'axis_1'=16] {'axis_1'}", ("X", "Y")),
        ("mesh['a'=16] {'a':(4)4}", ("Y",)),
        ("mesh['a'=16] {'a':(1)4}", ("X",)),
    ],
)
def test_every_notation_is_read(text: str, axes: tuple[str, ...]) -> None:
    groups = read_groups(f"channel_id=1, replica_groups={text}, dimensions={{0}}")
    assert groups is not None and axes_of(groups, AXES) == GroupAxes(axes, is_whole=True)


def test_a_group_that_covers_part_of_an_axis_says_so() -> None:
    groups = read_groups("replica_groups=[8,2]<=[16]")
    assert groups and axes_of(groups, AXES) == GroupAxes(("Y",), is_whole=False)


def test_the_pairs_of_a_permute_run_along_the_axes_they_change() -> None:
    groups = read_groups("source_target_pairs={{0,4},{4,8},{8,12},{12,0}}")
    assert groups and axes_of(groups, AXES, pairs=True) == GroupAxes(("X",), is_whole=True)


def test_ids_outside_the_mesh_have_no_axes() -> None:
    assert axes_of(((0, 16),), AXES) is None


@pytest.mark.parametrize(
    "text",
    [
        "[4,4]<=[4,5]T(1,0)",
        "[4,4]<=[4,4]T(1,1)",
        "[4,4]<=[999999999,999999999]",
        "[0,4]<=[0]",
        "mesh['a'=4] {'b'}",
        "mesh['a'=4] {'a':(3)2}",
    ],
)
def test_groups_that_cannot_be_are_none(text: str) -> None:
    assert not read_groups(f"replica_groups={text}")


_meshes = st.dictionaries(st.sampled_from("ABCDE"), st.integers(1, 5), min_size=1, max_size=4)


@given(_meshes, st.data())
def test_the_axes_of_any_groups_are_found_again(mesh: dict[str, int], data: st.DataObject) -> None:
    names = list(mesh)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    sizes = tuple(mesh.values())
    inner = [names.index(a) for a in chosen]
    outer = [at for at in range(len(names)) if at not in inner]
    order = [*outer, *inner]
    ways = int(np.prod([sizes[at] for at in inner]))
    wanted = np.arange(np.prod(sizes)).reshape(sizes).transpose(order).reshape(-1, ways)
    shape, turned = ",".join(map(str, sizes)), ",".join(map(str, order))
    texts = (
        f"[{len(wanted)},{ways}]<=[{shape}]T({turned})",
        "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in wanted.tolist()) + "}",
    )
    for text in texts:
        groups = read_groups(f"replica_groups={text}")
        assert groups is not None and groups == tuple(map(tuple, wanted.tolist()))
        found = axes_of(groups, mesh)
        assert found and found.is_whole
        assert found.axes == tuple(a for a in names if a in chosen and mesh[a] > 1)


def test_several_slices_have_one_program_each_and_ids_inside_it() -> None:
    axes = MeshAxes({"X": 8, "Y": 4}, {"X": 2})
    assert axes.inside == {"X": 4, "Y": 4}
    groups = read_groups("replica_groups=[4,4]<=[4,4]T(1,0)")
    assert groups
    part = axes.of_groups(groups, devices=16, pairs=False)
    assert part == GroupAxes(("X",), is_whole=False)
    groups = read_groups("replica_groups=[4,4]<=[16]")
    assert groups
    assert axes.of_groups(groups, devices=16, pairs=False) == GroupAxes(("Y",), is_whole=True)
