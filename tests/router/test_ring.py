"""Consistent hashing with bounded loads, by its properties."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.ring import HashRing, load_bound

_names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
_key = st.binary(max_size=16)


@given(_names, _key)
def test_every_replica_is_on_the_way_of_a_key_once(names: list[str], key: bytes) -> None:
    assert sorted(HashRing(names).order(key)) == sorted(names)


@settings(max_examples=40)
@given(_names, st.lists(_key, max_size=20), st.data())
def test_when_a_replica_leaves_only_its_own_keys_move_and_to_the_next(
    names: list[str], keys: list[bytes], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    before, after = HashRing(names), HashRing(left)
    for key in keys:
        assert list(after.order(key)) == [name for name in before.order(key) if name != gone]


@given(_names, _key)
def test_the_order_of_names_does_not_matter(names: list[str], key: bytes) -> None:
    assert list(HashRing(names).order(key)) == list(HashRing(names[::-1]).order(key))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 50])
def test_shares_are_fair_and_are_those_of_drawn_keys(count: int) -> None:
    names = [f"http://10.0.0.{at}:8000" for at in range(count)]
    ring = HashRing(names)
    shares = ring.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0.6 / count < share < 1.5 / count for share in shares.values())
    drawn = Counter(next(ring.order(str(key).encode())) for key in range(4000))
    for name in names:
        assert drawn[name] / 4000 == pytest.approx(shares[name], abs=0.03)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), min_size=1), st.integers(1, 100))
def test_one_replica_is_always_below_the_bound_and_none_far_above_the_mean(
    loads: dict[str, int], least: int
) -> None:
    bound = load_bound(loads, least=least)
    assert min(loads.values()) < bound
    assert bound <= max(least, 1.25 * (sum(loads.values()) + 1) / len(loads) + 1)


@settings(max_examples=40)
@given(st.integers(1, 8), st.lists(_key, max_size=200))
def test_requests_that_stay_never_load_a_replica_above_the_bound(
    count: int, keys: list[bytes]
) -> None:
    loads = {f"r{at}": 0 for at in range(count)}
    ring = HashRing(list(loads))
    for key in keys:
        bound = load_bound(loads, least=2)
        chosen = next(name for name in ring.order(key) if loads[name] < bound)
        loads[chosen] += 1
    assert max(loads.values()) <= load_bound(loads, least=2)
