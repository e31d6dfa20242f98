"""Unions, turns and cuts of spans, against counting every instant."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from rooflight.measure.trace.record import Segments, cut, gaps, inside, turns, union

END = 40
_spans = st.lists(
    st.tuples(st.integers(0, END - 1), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
)
I64 = npt.NDArray[np.int64]


def _columns(spans: list[tuple[int, int]]) -> tuple[I64, I64]:
    pairs = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _instants(start: I64, stop: I64) -> set[int]:
    return {t for a, b in zip(start.tolist(), stop.tolist(), strict=True) for t in range(a, b)}


@given(_spans)
def test_a_union_holds_every_instant_once(spans: list[tuple[int, int]]) -> None:
    start, stop = union(*_columns(spans))
    assert _instants(start, stop) == _instants(*_columns(spans))
    assert (stop[:-1] < start[1:]).all()


@given(_spans)
def test_every_instant_is_the_turn_of_the_one_that_began_last(
    spans: list[tuple[int, int]],
) -> None:
    start, stop = _columns(spans)
    found = turns(np.arange(len(spans)), start, stop)
    owners = {
        t: who
        for who, a, b in zip(
            found.owner.tolist(), found.start.tolist(), found.stop.tolist(), strict=True
        )
        for t in range(a, b)
    }
    assert set(owners) == _instants(start, stop)
    assert sum((found.stop - found.start).tolist()) == len(owners)
    for t, who in owners.items():
        running = [s for s in spans if s[0] <= t < s[1]]
        assert spans[who][0] == max(a for a, _ in running)


@given(_spans, _spans)
def test_what_lies_inside_a_cover_is_counted_by_instant(
    spans: list[tuple[int, int]], cover: list[tuple[int, int]]
) -> None:
    covered = _instants(*_columns(cover))
    found = inside(*_columns(spans), union(*_columns(cover))).tolist()
    assert found == [len(set(range(a, b)) & covered) for a, b in spans]


@given(_spans, st.lists(st.integers(0, END), unique=True, min_size=1).map(sorted))
def test_cut_spans_hold_the_same_instants_and_cross_no_cut(
    spans: list[tuple[int, int]], at: list[int]
) -> None:
    start, stop = union(*_columns(spans))
    found = cut(Segments(start, start, stop), np.array(at))
    assert _instants(found.start, found.stop) == _instants(start, stop)
    for a, b in zip(found.start.tolist(), found.stop.tolist(), strict=True):
        assert a < b
        assert not any(a < t < b for t in at)


@given(_spans, st.integers(0, END), st.integers(1, END))
def test_gaps_are_what_a_cover_leaves_of_a_window(
    spans: list[tuple[int, int]], start: int, size: int
) -> None:
    found = gaps(union(*_columns(spans)), start, start + size)
    assert _instants(*found) == set(range(start, start + size)) - _instants(*_columns(spans))
