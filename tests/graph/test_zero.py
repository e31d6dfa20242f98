"""Optimizer state split over data axes: nothing is lost, nothing is split unevenly."""

from hypothesis import given
from hypothesis import strategies as st

from rooflight.algebra.notation import Tensor
from rooflight.algebra.shapes import local_shape, ways
from rooflight.models.layout.rules import parse_layout
from rooflight.models.layout.zero import data_axes, split_state

AXES = {"X": 4, "Y": 2, "Z": 3, "W": 8}


@given(st.integers(1, 96), st.integers(1, 96), st.permutations(("Y", "Z", "W")))
def test_every_axis_is_used_once_on_a_dim_that_it_divides_or_not_at_all(
    rows: int, columns: int, extra: tuple[str, ...]
) -> None:
    sizes = {"D": 4 * rows, "F": columns}
    stored = Tensor("W", ("D", "F"), (("X",), ()))
    found = split_state(stored, tuple(extra), sizes=sizes, axes=AXES)
    used = found.sharded_over
    assert len(set(used)) == len(used) and used[0] == "X"
    assert all(sizes[d] % ways(axes, AXES) == 0 for d, axes in zip("DF", found.axes, strict=True))
    rest = dict(zip("DF", local_shape(found, sizes, AXES), strict=True))
    unused = [axis for axis in extra if axis not in used]
    assert all(size % AXES[axis] for axis in unused for size in rest.values())


def test_an_axis_that_splits_the_weight_already_is_not_used_again() -> None:
    stored = Tensor("W", ("D", "F"), (("X",), ()))
    assert split_state(stored, ("X",), sizes={"D": 8, "F": 8}, axes=AXES) == stored


def test_data_axes_are_those_of_sequences_and_positions() -> None:
    assert data_axes(parse_layout("dp=Z,fsdp=X,cp=W,tp=Y")) == ("Z", "X", "W")
    assert data_axes(parse_layout("fsdp=X,sp=Y")) == ("X",)
