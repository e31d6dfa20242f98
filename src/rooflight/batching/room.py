"""`Room`: the rows and blocks of one replica, handed to sequences and taken back."""

from collections.abc import Sequence as Seq
from itertools import takewhile

from rooflight.batching.kv_offload import CpuKvOffload
from rooflight.batching.pool import BlockPool
from rooflight.batching.request import Key, Limits, Request
from rooflight.batching.sequence import Sequence
from rooflight.batching.step_batch import TableWrite


class Room:
    """Rows of the batch, blocks of the pool, and what of a prompt is cached already."""

    __slots__ = (
        "_block_tokens",
        "_free_rows",
        "_spare",
        "cached_tokens",
        "limits",
        "pool",
        "pool_tokens",
        "tier",
    )

    def __init__(self, limits: Limits, pool: type[BlockPool] = BlockPool) -> None:
        self.limits = limits
        tiers = limits.host_blocks, limits.ssd_blocks
        self.tier = CpuKvOffload(*tiers) if any(tiers) else None
        self.pool = pool(limits.num_blocks, self.tier)
        self.pool_tokens = limits.pool_tokens
        self._block_tokens = limits.block_tokens
        self._spare = limits.spare_blocks
        self.cached_tokens = 0  # prompt tokens that the prefix cache saved
        self._free_rows = list(range(limits.max_rows))[::-1]

    @property
    def num_rows(self) -> int:
        """Rows that somebody holds."""
        return self.limits.max_rows - len(self._free_rows)

    @property
    def has_row(self) -> bool:
        return bool(self._free_rows)

    def hold(self, sequence: Sequence, writes: list[TableWrite]) -> bool:
        """A row and blocks for the whole prompt, or nothing.

        At least the last token of a prompt is computed anew: it makes the first new token.
        """
        if not self._free_rows:
            return False
        block_tokens, pool, hits = self._block_tokens, self.pool, list[int]()
        kept: Seq[Key] = ()
        if sequence.keys and not sequence.has_kv:
            keys = sequence.keys[: (sequence.prompt - 1) // block_tokens]
            hits = pool.match(keys)
            if self.tier is not None and len(hits) < len(keys):
                kept = self._kept(keys[len(hits) :])
        need = -(-sequence.prompt // block_tokens) - len(hits)
        spare = self._spare if self.num_rows else 0
        if need + spare > pool.num_free - (pool.count_free(hits) if hits else 0):
            return False
        if hits or kept:
            pool.share(hits)
            sequence.named = len(hits) + len(kept)
            sequence.computed = sequence.named * block_tokens
            self.cached_tokens += sequence.computed
        sequence.blocks = hits + (self._restore(kept, need) if kept else pool.take(need))
        sequence.row = self._free_rows.pop()
        writes.append(TableWrite(sequence.row, 0, sequence.blocks))
        return True

    def resume(self, sequence: Sequence, cached: int) -> bool:
        """The same for one that is under way, and fits; true if some of its prompt is left."""
        if is_done := cached >= sequence.prompt:
            sequence.left += sequence.prompt - cached
            sequence.prompt = cached
        assert self.hold(sequence, [])
        sequence.computed = cached
        return not is_done

    def _restore(self, keys: Seq[Key], count: int) -> list[int]:
        """Blocks, the first of which get what the host has kept."""
        assert self.tier is not None
        self.tier.claim(keys)
        blocks = self.pool.take(count)
        self.tier.restore(blocks[: len(keys)], keys)
        self.pool.name(blocks[: len(keys)], keys)
        return blocks

    def num_cached(self, keys: Seq[Key]) -> int:
        """Tokens of a prompt of these keys that need not be computed."""
        hits = len(self.pool.match(keys))
        return (hits + len(self._kept(keys[hits:]))) * self._block_tokens

    def _kept(self, keys: Seq[Key]) -> list[Key]:
        """Those that come back from host memory, up to one that a block has as well.

        Room for the others might evict that block, and the host would have its key twice.
        """
        kept = keys[: self.tier.match(keys)] if self.tier is not None else ()
        return list(takewhile(lambda key: key not in self.pool, kept))

    def prefetch(self, request: Request) -> int:
        """What an SSD has of a prompt that will wait comes to host memory: so many blocks."""
        keys = request.keys[: (request.prompt_tokens - 1) // self._block_tokens]
        assert self.tier is not None
        return self.tier.prefetch(keys[len(self.pool.match(keys)) :])

    def remember(self, keys: Seq[Key]) -> None:
        """Blocks of these keys are cached, as far as there is room, and nobody holds them."""
        known = keys[: self.pool.num_free]
        blocks = self.pool.take(len(known))
        self.pool.name(blocks, known)
        self.pool.give(blocks, named=len(blocks))

    def forget(self) -> None:
        """Nothing is cached any more, in the pool or in host memory."""
        self.pool.forget()
        if self.tier is not None:
            self.tier.forget()

    def grow(self, sequence: Sequence) -> TableWrite:
        """One more block, which the caller knows to be free."""
        start = len(sequence.blocks)
        blocks = self.pool.take(1)
        sequence.blocks += blocks
        return TableWrite(sequence.row, start, blocks)

    def name_blocks(self, sequence: Sequence, tokens: int) -> None:
        """Offers the blocks that the first `tokens` tokens fill to others with the same keys."""
        full = min(tokens // self._block_tokens, len(sequence.keys))
        if full > (named := sequence.named):
            self.pool.name(sequence.blocks[named:full], sequence.keys[named:full])
            sequence.named = full

    def release(self, sequence: Sequence) -> None:
        self.pool.give(sequence.blocks, named=sequence.named)
        self._free_rows.append(sequence.row)
        sequence.blocks = []
        sequence.row, sequence.named, sequence.computed = -1, 0, 0
