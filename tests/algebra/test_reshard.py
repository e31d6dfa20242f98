"""Reshards: every path is a chain, none is longer than the naive one, patterns carry over."""

import random
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.algebra.notation import Tensor, parse_tensor
from rooflight.algebra.reshard import reshard
from rooflight.algebra.steps import Step
from rooflight.errors import ShardingError

AXES: tuple[str, ...] = ("X", "Y", "Z")


def sent(steps: tuple[Step, ...], sizes: Mapping[str, int]) -> float:
    """Bytes one device sends, as a fraction of the whole tensor."""
    total = 0.0
    for step in steps:
        ways = 1
        for axis in step.axes:
            ways *= sizes[axis]
        whole = step.elements(dict.fromkeys(step.inputs[0].dims, 1), sizes)
        part = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1 / ways}
        total += whole * (ways - 1) / ways * part.get(step.op, 0)
        total += whole if step.op == "permute" else 0
    return total


@st.composite
def tensors(draw: st.DrawFn, *, pending: bool) -> Tensor:
    rng = random.Random(draw(st.integers(0, 10**9)))
    held: list[list[str]] = [[], [], []]
    unreduced: list[str] = []
    for axis in rng.sample(AXES, 3):
        place = rng.randrange(5 if pending else 4)
        if place < 3:
            held[place].append(axis)
        elif place == 4:
            unreduced.append(axis)
    return Tensor("A", ("I", "J", "K"), tuple(map(tuple, held)), tuple(sorted(unreduced)))


@settings(max_examples=300)
@given(tensors(pending=True), tensors(pending=False))
def test_the_steps_are_a_chain_from_source_to_target(source: Tensor, target: Tensor) -> None:
    at = source
    for step in reshard(source, target):
        assert step.inputs == (at,)
        at = step.output
    assert at == target


@settings(max_examples=300)
@given(tensors(pending=True), tensors(pending=False))
def test_no_path_sends_more_than_reducing_gathering_and_slicing(
    source: Tensor, target: Tensor
) -> None:
    sizes = {"X": 2, "Y": 4, "Z": 3}
    reduced = source.with_unreduced(())
    naive = 0.0
    if source.unreduced:
        naive += sent((Step("all_reduce", (source,), reduced, source.unreduced),), sizes)
    for dim in source.dims:
        if reduced.axes_of(dim):
            after = reduced.with_axes(dim, ())
            step = Step("all_gather", (reduced,), after, reduced.axes_of(dim), dim)
            naive, reduced = naive + sent((step,), sizes), after
    assert sent(reshard(source, target, sizes), sizes) <= naive + 1e-12


@settings(max_examples=200)
@given(tensors(pending=True), tensors(pending=False), st.lists(st.integers(2, 16), min_size=3))
def test_a_path_found_for_the_pattern_is_near_the_best_for_any_sizes(
    source: Tensor, target: Tensor, ways: list[int]
) -> None:
    sizes = dict(zip(AXES, ways, strict=False))
    pattern, exact = reshard(source, target), reshard(source, target, sizes)
    assert sent(exact, sizes) <= sent(pattern, sizes) + 1e-12
    # a swap of equal axes is one permute once the sizes are known, else three exchanges
    assert sent(pattern, sizes) <= 3 * sent(exact, sizes) + 1e-12


@settings(max_examples=150)
@given(tensors(pending=True), tensors(pending=False))
def test_leaving_right_axes_alone_costs_no_bytes(source: Tensor, target: Tensor) -> None:
    """The search never disturbs the outer axes that are already right; a search that may agrees."""
    sizes = {"X": 4, "Y": 2, "Z": 3}
    start, goal = (source.axes, source.unreduced), (target.axes, target.unreduced)
    module = sys.modules["rooflight.algebra.reshard"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "right_prefix", lambda axes, wanted: 0)  # pyright: ignore
        patch.setattr(module, "_least_sent", lambda *_: 0.0)  # pyright: ignore
        free = module._search.__wrapped__(start, goal, tuple(sizes.items()), exact=True)
    least = sum(move.sent for move in free)
    assert sent(reshard(source, target, sizes), sizes) <= least + 1e-12


@settings(max_examples=150)
@given(tensors(pending=True), tensors(pending=True), st.booleans())
def test_what_must_still_be_sent_hides_no_shorter_path(
    source: Tensor, target: Tensor, is_known: bool
) -> None:
    """A search that looks at every state up to the goal finds no path that sends less."""
    sizes = {"X": 4, "Y": 2, "Z": 3} if is_known else dict.fromkeys(AXES, 4)
    kept = tuple(a for a in target.unreduced if a in source.unreduced)
    start, goal = (source.axes, source.unreduced), (target.axes, kept)
    module = sys.modules["rooflight.algebra.reshard"]
    found = module._search.__wrapped__(start, goal, tuple(sizes.items()), is_known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_least_sent", lambda *_: 0.0)  # pyright: ignore
        blind = module._search.__wrapped__(start, goal, tuple(sizes.items()), is_known)
    shorter = [(sum(m.sent for m in moves), len(moves)) for moves in (found, blind)]
    assert shorter[0] == pytest.approx(shorter[1], rel=1e-12)


def test_the_sum_of_four_axes_is_found_after_few_states() -> None:
    """Gradients of layers with experts pend over four axes: thousands of states without a bound."""
    module = sys.modules["rooflight.algebra.reshard"]
    looked_at: list[object] = []
    honest = module._moves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_moves", lambda *at: looked_at.append(at) or honest(*at))  # pyright: ignore
        start, goal = (((), (), (), ()), tuple("abcd")), ((("b", "a"), ("c",), (), ()), ())
        module._search.__wrapped__(start, goal, tuple(dict.fromkeys("abcd", 4).items()), False)
    assert len(looked_at) < 100


@pytest.mark.parametrize(
    ("source", "target", "ops"),
    [
        ("A[I_X,J]", "A[I,J]", ["all_gather"]),
        ("A[I_XY,J]", "A[I_X,J]", ["all_gather"]),
        ("A[I,J]{U_X}", "A[I,J]", ["all_reduce"]),
        ("A[I,J]{U_X}", "A[I,J_X]", ["reduce_scatter"]),
        ("A[I_X,J]", "A[I,J_X]", ["all_to_all"]),
        ("A[I,J]", "A[I_X,J]", ["slice"]),
        ("A[I_XY,J]", "A[I_YX,J]", ["permute"]),
        ("A[I_XY,J]", "A[I_Y,J]", ["permute", "all_gather"]),
        ("A[I,J]{U_XY}", "A[I_X,J]{U_Y}", ["reduce_scatter"]),
    ],
)
def test_the_textbook_reshards(source: str, target: str, ops: list[str]) -> None:
    assert [s.op for s in reshard(parse_tensor(source), parse_tensor(target))] == ops


def test_known_equal_sizes_make_a_swap_one_permute() -> None:
    swap = reshard(parse_tensor("A[I_X,J_Y]"), parse_tensor("A[I_Y,J_X]"), {"X": 4, "Y": 4})
    assert [s.op for s in swap] == ["permute"]


def test_a_pending_sum_cannot_appear_from_nothing() -> None:
    with pytest.raises(ShardingError, match="nothing is pending over X"):
        reshard(parse_tensor("A[I]"), parse_tensor("A[I]{U_X}"))


def test_other_dims_are_refused() -> None:
    with pytest.raises(ShardingError, match="the dims differ"):
        reshard(parse_tensor("A[I]"), parse_tensor("A[J]"))
