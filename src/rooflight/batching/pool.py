"""`BlockPool`: KV blocks, free, in use or cached under a key. O(1) for each block.

A free block keeps its content and its key until it is taken: the queue of free blocks, oldest
first, *is* the LRU of the prefix cache. A block belongs to one sequence unless it was found by
its key, so owners are counted only beyond the first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from rooflight.batching.kv_offload import CpuKvOffload
from rooflight.batching.request import Key


class BlockPool:
    """The blocks of one replica, by number."""

    __slots__ = (
        "_block_of",
        "_extra_owners",
        "_free",
        "_key_of",
        "_num_fresh",
        "num_blocks",
        "tier",
    )

    def __init__(self, num_blocks: int, tier: CpuKvOffload | None = None) -> None:
        self.num_blocks = num_blocks
        self.tier = tier  # takes what is evicted
        self._num_fresh = num_blocks  # the last numbers, never used yet and not in the queue
        self._free: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}
        self._extra_owners: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._free) + self._num_fresh

    @property
    def num_cached(self) -> int:
        return len(self._block_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._block_of

    def take(self, count: int) -> list[int]:
        """The blocks that were free longest; what they cached is forgotten.

        While nothing is cached, those freed last: any will do, and a pool that is larger than its
        traffic takes no memory.
        """
        pop = self._free.popitem
        if not self._block_of:
            taken = [pop()[0] for _ in range(min(count, len(self._free)))]
            return taken + self._take_fresh(count - len(taken)) if len(taken) < count else taken
        taken = self._take_fresh(min(count, self._num_fresh)) if self._num_fresh else []
        again = [pop(last=False)[0] for _ in range(count - len(taken))]
        for block in filter(self._key_of.__contains__, again):
            key = self._key_of.pop(block)
            del self._block_of[key]
            if self.tier is not None:
                self.tier.save(block, key)
        return taken + again

    def _take_fresh(self, count: int) -> list[int]:
        first = self.num_blocks - self._num_fresh
        self._num_fresh -= count
        return list(range(first, first + count))

    def match(self, keys: Sequence[Key]) -> list[int]:
        """The blocks that hold the longest cached prefix; nothing is taken yet."""
        block_of = self._block_of
        return [*map(block_of.__getitem__, takewhile(block_of.__contains__, keys))]

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of these have no owner."""
        return sum(map(self._free.__contains__, blocks))

    def share(self, blocks: Sequence[int]) -> None:
        """Another owner for blocks that `match` found."""
        free, extra = self._free, self._extra_owners
        for block in blocks:
            if block in free:
                del free[block]
            else:
                extra[block] = extra.get(block, 0) + 1

    def name(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Offers computed blocks under their keys; the first block of a key stays."""
        block_of = self._block_of
        for block, key in zip(blocks, keys, strict=True):
            if key not in block_of:
                block_of[key] = block
                self._key_of[block] = key

    def give(self, blocks: Sequence[int], *, named: int) -> None:
        """One owner less; the ends go first, so that a prefix outlives what follows it.

        Only the first `named` blocks can have a key, and so another owner.
        """
        free, owners = self._free, self._extra_owners
        named = named if owners else 0
        for block in reversed(blocks[named:] if named else blocks):
            free[block] = None
        for block in reversed(blocks[:named]):
            if block not in owners:
                free[block] = None
            elif owners[block] == 1:
                del owners[block]
            else:
                owners[block] -= 1

    def forget(self) -> None:
        """Nothing is cached any more; blocks keep their owners."""
        self._key_of.clear()
        self._block_of.clear()

    def owners(self) -> dict[int, int]:
        """Block in use -> how many own it."""
        used = set(range(self.num_blocks - self._num_fresh)).difference(self._free)
        return {block: 1 + self._extra_owners.get(block, 0) for block in used}
