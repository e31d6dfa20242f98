"""`CpuKvOffload`: which blocks are kept in host memory after the pool has let go of them.

Bookkeeping only, as the pool: keys, least recently used first. A key is in the tier or goes back to
a block of the pool, so the two add up. Who has the content follows the moves in their order.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
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

    __slots__ = ("_keys", "moves", "num_blocks", "num_restored")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
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
        if len(self._keys) > self.num_blocks:
            self.moves.append(TierMove(TierOp.DROP, self._keys.popitem(last=False)[0]))

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

    def take_moves(self) -> list[TierMove]:
        moves, self.moves = self.moves, []
        return moves
