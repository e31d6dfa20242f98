"""The block pool and its prefix cache: LRU, sharing, salts."""

import pytest

from rooflight.batching.pool import BlockPool
from rooflight.batching.prefix import KeyChain
from rooflight.batching.request import Limits, Request
from rooflight.batching.scheduler import Scheduler

from .invariants import check


def run(scheduler: Scheduler) -> None:
    while scheduler.num_requests:
        scheduler.schedule()
        scheduler.commit()
        check(scheduler)


def prompt_keys(tokens: list[int], salt: bytes = b"") -> list[bytes]:
    return KeyChain(block_tokens=4, salt=salt).extend(tokens)


def test_the_block_free_longest_is_taken_and_forgotten_first() -> None:
    pool = BlockPool(3)
    first = pool.take(3)
    pool.name(first, "abc")
    pool.give(first, named=3)  # the end goes first, so that a prefix outlives what follows
    assert pool.take(1) == [first[2]]
    assert pool.match("abc") == first[:2]
    assert pool.num_cached == 2


def test_a_block_in_use_by_two_is_free_after_both() -> None:
    pool = BlockPool(2)
    mine = pool.take(1)
    pool.name(mine, "a")
    for _ in range(2):
        pool.share(pool.match("a"))
    assert pool.owners() == {mine[0]: 3}
    for left in (1, 1, 2):
        pool.give(mine, named=1)
        assert pool.num_free == left


def test_a_hit_saves_all_but_the_last_block() -> None:
    scheduler = Scheduler(Limits(2, 100, 50, 4, 10))
    keys = prompt_keys(list(range(12)))
    for id in range(2):
        scheduler.add(Request(id, 12, 3, keys))
        batch = scheduler.schedule()
        scheduler.commit()
        assert [c.start for c in batch.chunks] == [8 * id]
    run(scheduler)
    assert scheduler.room.cached_tokens == 8


def test_blocks_of_generated_tokens_are_found_by_the_next_turn() -> None:
    scheduler = Scheduler(Limits(2, 100, 50, 4, 10))
    chain = KeyChain(block_tokens=4, salt=b"")
    scheduler.add(Request(0, 6, 7, chain.extend(range(6))))
    scheduler.schedule()
    scheduler.commit()
    for token in range(6, 12):
        scheduler.extend_keys(0, chain.extend([token]))
        scheduler.schedule()
        scheduler.commit()
    scheduler.add(Request(1, 14, 1, prompt_keys(list(range(14)))))
    assert scheduler.schedule().chunks[0].start == 12  # token 11 was computed in the last step


def test_tenants_with_different_salts_share_nothing() -> None:
    tokens = list(range(8))
    assert not set(prompt_keys(tokens, b"alice")) & set(prompt_keys(tokens, b"bob"))
    assert prompt_keys(tokens, b"alice") == prompt_keys(tokens, b"alice")


def test_a_key_names_everything_before_it() -> None:
    one, other = prompt_keys([1, 2, 3, 4, 5, 6, 7, 8]), prompt_keys([0, 2, 3, 4, 5, 6, 7, 8])
    assert one[1] != other[1]


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_chain_does_not_depend_on_how_the_tokens_come(cut: int) -> None:
    chain = KeyChain(block_tokens=4, salt=b"x")
    tokens = list(range(9))
    assert chain.extend(tokens[:cut]) + chain.extend(tokens[cut:]) == prompt_keys(tokens, b"x")


def test_a_hot_prefix_survives_what_passes_through() -> None:
    scheduler = Scheduler(Limits(1, 100, 20, 4, 10))
    hot = prompt_keys(list(range(16)))
    for id in range(30):
        keys = hot if id % 2 else ()
        scheduler.add(Request(id, 20, 2, keys))
        run(scheduler)
    assert scheduler.room.cached_tokens == 14 * 16
