"""Blocks that the pool evicts and the host keeps: what comes back is what was there."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.batching.kv_offload import CpuKvOffload, TierOp
from rooflight.batching.request import Key, Limits, Request
from rooflight.batching.room import Room
from rooflight.batching.scheduler import Scheduler
from rooflight.batching.sequence import Sequence

from .invariants import check

SIZE = 4  # tokens of a block


class Memory:
    """What device and host hold, if moves and chunks are followed to the letter."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.device: dict[int, Key] = {}
        self.host: set[Key] = set()

    def follow(self) -> None:
        tier = self.scheduler.room.tier
        assert tier is not None
        moves = tier.take_moves()
        for move in moves:
            if move.kind is TierOp.SAVE:
                assert self.device[move.block] == move.key
        for kind, key, block in moves:
            if kind is TierOp.SAVE:
                self.host.add(key)
            else:
                self.host.remove(key)  # it is there
            if kind is TierOp.RESTORE:
                self.device[block] = key
        assert len(self.host) == len(tier) <= tier.num_blocks


def keys_of(text: int, tokens: int) -> list[Key]:
    """Texts of one number begin alike."""
    return [(text, at) for at in range(tokens // SIZE)]


def step(scheduler: Scheduler, memory: Memory, prompts: dict[int, list[Key]]) -> None:
    batch = scheduler.schedule()
    memory.follow()
    tables = scheduler.tables()
    for chunk in batch.chunks:
        keys, blocks = prompts[chunk.id], tables[chunk.row]
        for at in range(min(len(keys), -(-(chunk.start + chunk.tokens) // SIZE))):
            if at < chunk.start // SIZE:  # of the cache, or of a chunk before
                assert memory.device[blocks[at]] == keys[at]
            elif (at + 1) * SIZE <= chunk.start + chunk.tokens:
                memory.device[blocks[at]] = keys[at]
    scheduler.commit()
    check(scheduler)


@settings(max_examples=120)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_what_is_restored_is_what_was_evicted(seed: int, host_blocks: int) -> None:
    draw = random.Random(seed)
    limits = Limits(3, 16, 14, SIZE, 50, chunk_tokens=SIZE, host_blocks=host_blocks)
    scheduler = Scheduler(limits)
    memory, prompts = Memory(scheduler), dict[int, list[Key]]()
    to_come = 25
    while to_come or scheduler.num_requests:
        if to_come and draw.random() < 0.3:
            to_come -= 1
            id, tokens = len(prompts), draw.randint(1, 40)
            prompts[id] = keys_of(draw.randrange(4), tokens)
            scheduler.add(Request(id, tokens, draw.randint(1, 6), prompts[id]))
        elif prompts and draw.random() < 0.02:
            scheduler.cancel(draw.randrange(len(prompts)))
        elif draw.random() < 0.01:
            scheduler.abort()
            memory.device.clear()
            memory.host.clear()
        else:
            step(scheduler, memory, prompts)
        check(scheduler)
    assert scheduler.room.pool.num_free == limits.num_blocks


def test_a_prefix_that_was_evicted_comes_back_from_the_host() -> None:
    limits = Limits(1, 64, 10, SIZE, 50, chunk_tokens=SIZE, host_blocks=8)
    scheduler = Scheduler(limits)
    memory, prompts = Memory(scheduler), {at: keys_of(at % 2, 33) for at in range(3)}
    for id, keys in prompts.items():
        scheduler.add(Request(id, 33, 1, keys))
        while scheduler.num_requests:
            step(scheduler, memory, prompts)
    tier = scheduler.room.tier
    assert tier is not None and tier.num_restored > 0
    assert scheduler.room.cached_tokens >= tier.num_restored * SIZE


def test_a_key_that_a_block_has_as_well_is_not_restored_over_its_own_eviction() -> None:
    room, keys = Room(Limits(1, 16, 3, SIZE, 50, host_blocks=4)), keys_of(0, 2 * SIZE)
    room.remember(keys)
    room.pool.give(room.pool.take(3), named=0)  # both are on the host
    room.remember(keys[1:])  # and the second was computed once more
    assert room.hold(Sequence(Request(0, 3 * SIZE, 1, keys), 1, has_kv=False), [])
    host: set[Key] = set()
    assert room.tier is not None
    for kind, key, _ in room.tier.moves:
        (host.add if kind is TierOp.SAVE else host.remove)(key)
    assert len(host) == len(room.tier) == 1


def test_without_a_host_nothing_is_kept() -> None:
    scheduler = Scheduler(Limits(1, 64, 10, SIZE, 50))
    assert scheduler.room.tier is None


class TwoLevels:
    """Host memory over an SSD, by when each key was last used there; every use is a search."""

    def __init__(self, host_blocks: int, ssd_blocks: int) -> None:
        self.sizes = host_blocks, ssd_blocks
        self.used: tuple[dict[Key, int], dict[Key, int]] = {}, {}
        self.now = self.written = 0

    def use(self, level: int, key: Key) -> None:
        self.now += 1
        self.used[level][key] = self.now

    def make_room(self) -> None:
        host, ssd = self.used
        while len(host) > self.sizes[0]:
            key = min(host, key=host.__getitem__)
            del host[key]
            self.written += key not in ssd
            self.use(1, key)
        while len(ssd) > self.sizes[1]:
            del ssd[min(ssd, key=ssd.__getitem__)]

    def prefetch(self, keys: list[Key]) -> int:
        host, ssd = self.used
        least = 0
        while least < min(len(keys), self.sizes[0]) and keys[least] in {*host, *ssd}:
            least += 1
        read = [key for key in keys[:least] if key not in host]
        for key in keys[:least][::-1]:
            self.use(0, key)
        for key in read:
            self.use(1, key)
        self.make_room()
        return len(read)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 30))
def test_an_ssd_has_what_two_caches_by_hand_have(seed: int, host: int, ssd: int) -> None:
    draw = random.Random(seed)
    tier, by_hand, read = CpuKvOffload(host, ssd), TwoLevels(host, ssd), 0
    for _ in range(200):
        keys = keys_of(draw.randrange(4), SIZE * draw.randint(1, 14))
        if draw.random() < 0.5:
            for key in reversed(keys):
                tier.save(0, key)
                by_hand.use(0, key)
                by_hand.make_room()
        else:
            count = tier.prefetch(keys)
            assert count == by_hand.prefetch(keys)
            read += count
        here = tier.match(keys)
        assert here == next(
            (at for at, k in enumerate(keys) if k not in by_hand.used[0]), len(keys)
        )
        if draw.random() < 0.3:
            tier.claim(keys[:here])
            for key in keys[:here]:
                del by_hand.used[0][key]
        assert len(tier) == len(by_hand.used[0])
    assert (tier.num_read, tier.num_written) == (read, by_hand.written)
