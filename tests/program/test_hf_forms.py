"""How tensors of a file hold ours: any block of ours, read from any form, is that block."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from rooflight.program.checkpoint.forms import Form, Sizes, Span, parse_form
from rooflight.program.checkpoint.names import FRAME, LAYERS

DIMS = ("D", "E", "F", "Fe", "Fs", "G", "H", "Hv", "K", "N", "P", "Q", "R", "V")
TEXTS = sorted({t for table in (FRAME, *LAYERS.values()) for ts in table.values() for t in ts})
SIZES = st.fixed_dictionaries({d: st.integers(1, 5) for d in DIMS})


def ours_of(text: str) -> list[set[str]]:
    """The dims of each weight that a form may stand for: one part of every sum."""
    dims = text.partition("[")[2].rstrip("]").split(",")
    mine = (next((p for p in d.split("|") if p[0] == "*"), d).lstrip("*") for d in dims)
    words = " ".join(mine).split()
    found: list[set[str]] = [set()]
    for word in words:
        if "/" not in word:
            found = [{*dims, part} for dims in found for part in word.split("+")]
    return found


def written(form: Form, sizes: Sizes, ours: np.ndarray) -> np.ndarray:
    """The file's tensor with our weight in its place and zeros elsewhere."""
    whole = np.zeros(form.shape(sizes), ours.dtype)
    window = form.window(sizes, {d: (0, sizes[d]) for d in form.ours})
    window.view(whole[window.slices])[...] = ours
    return whole


@pytest.mark.parametrize("text", TEXTS)
@given(data=st.data())
def test_any_block_read_from_a_form_is_that_block_of_ours(text: str, data: st.DataObject) -> None:
    dims = sorted(data.draw(st.sampled_from(ours_of(text))))
    form = parse_form(text, data.draw(st.permutations(dims)))
    assert form is not None
    sizes = data.draw(SIZES)
    ours = 1 + np.arange(math.prod(sizes[d] for d in form.ours)).reshape(
        [sizes[d] for d in form.ours]
    )
    file = written(form, sizes, ours)
    assert np.count_nonzero(file) == ours.size  # nothing is written twice
    wanted: dict[str, Span] = {}
    for dim in form.ours:
        low = data.draw(st.integers(0, sizes[dim] - 1))
        wanted[dim] = low, data.draw(st.integers(low + 1, sizes[dim]))
    window = form.window(sizes, wanted)
    block = ours[tuple(slice(*wanted[d]) for d in form.ours)]
    assert np.array_equal(window.view(file[window.slices]), block)


def test_a_head_of_queries_is_read_alone() -> None:
    form = parse_form("self_attn.q_proj.weight[K G H,D]", ("D", "K", "G", "H"))
    assert form is not None
    sizes = {"K": 4, "G": 2, "H": 8, "D": 32}
    window = form.window(sizes, {"K": (3, 4), "G": (0, 2), "H": (0, 8), "D": (16, 32)})
    assert window.slices == (slice(48, 64), slice(16, 32))


def test_rows_in_turn_and_halves_are_told_apart() -> None:
    sizes, wanted = {"Fe": 3}, {"Fe": (0, 3)}
    file = np.arange(6)
    found: list[list[int]] = []
    for text in ("x[Fe 1/2]", "x[1/2 Fe]"):
        form = parse_form(text, ("Fe",))
        assert form is not None
        window = form.window(sizes, wanted)
        found.append(window.view(file[window.slices]).tolist())
    assert found == [[1, 3, 5], [3, 4, 5]]


def test_a_form_of_other_dims_is_not_ours() -> None:
    assert parse_form("self_attn.q_b_proj.weight[N H+P,Q]", ("D", "N", "H")) is None
    assert parse_form("mlp.experts.{E}.w1.weight[Fe,D]", ("E", "D", "Fe")) is not None
