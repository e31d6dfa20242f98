"""`CpuKvOffload`: which blocks are kept in host memory after the pool has let go of them.

Below it an SSD may keep what host memory lets go; it comes back by way of host memory.

Bookkeeping only, as the pool: keys, least recently used first. A key is in the tier or goes back to
a block of the pool, so the two add up. Who has the content follows the moves in their order.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from rooflight.batching.request import Key


class TierOp(StrEnum):
    """What happens to the content of a block."""

    SAVE = "save"  # from the block to the host, before anything is written to the block
    DROP = "drop"  # from the host
    RESTORE = "restore"  # from the host to the block, before anything is read of the block


class TierMove(NamedTuple):
    """One of these; a drop has no block."""

    kind: TierOp
    key: Key
    block: int = -1


class CpuKvOffload:
    """Room for so many blocks."""

    __slots__ = (
        *("_keys", "_ssd", "moves", "num_blocks", "num_restored"),
        *("num_read", "num_written", "ssd_blocks"),
    )

    def __init__(self, num_blocks: int, ssd_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.ssd_blocks = ssd_blocks
        self.num_read = self.num_written = 0  # blocks of the SSD
        self._ssd: OrderedDict[Key, None] = OrderedDict()  # what is read of it stays there
        self.num_restored = 0
        self.moves: list[TierMove] = []  # since they were last taken
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def save(self, block: int, key: Key) -> None:
        """The pool lets go of a block: what it holds is kept, and what is kept longest is not."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        self.moves.append(TierMove(TierOp.SAVE, key, block))
        self._drop()

    def prefetch(self, keys: Sequence[Key]) -> int:
        """Brings here what the SSD has of these, from the first on: so many blocks are read."""
        here, ssd = self._keys, self._ssd
        found = [*takewhile(lambda key: key in here or key in ssd, keys[: self.num_blocks])]
        read = [key for key in found if key not in here]
        for key in reversed(found):  # the end goes first, as in the pool
            here[key] = None
            here.move_to_end(key)
        for key in read:
            ssd.move_to_end(key)
        self.num_read += len(read)
        self._drop()
        return len(read)

    def _drop(self) -> None:
        """What was used least recently goes to the SSD, unless it is there still, and off it."""
        while len(self._keys) > self.num_blocks:
            key = self._keys.popitem(last=False)[0]
            self.moves.append(TierMove(TierOp.DROP, key))
            if self.ssd_blocks:
                self.num_written += key not in self._ssd
                self._ssd[key] = None
                self._ssd.move_to_end(key)
        while len(self._ssd) > self.ssd_blocks:
            self._ssd.popitem(last=False)

    def match(self, keys: Sequence[Key]) -> int:
        """How many of these, from the first on, are here."""
        return next((at for at, key in enumerate(keys) if key not in self._keys), len(keys))

    def claim(self, keys: Sequence[Key]) -> None:
        """Takes keys out, for blocks that are to be taken: so none of them is dropped for these."""
        for key in keys:
            del self._keys[key]

    def restore(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """What was claimed goes to these blocks."""
        self.num_restored += len(keys)
        self.moves += [TierMove(TierOp.RESTORE, k, b) for b, k in zip(blocks, keys, strict=True)]

    def forget(self) -> None:
        self._keys.clear()
        self.moves.clear()
        self._ssd.clear()

    def take_moves(self) -> list[TierMove]:
        moves, self.moves = self.moves, []
        return moves
