"""`HostBlocks`: what evicted blocks held, in host memory, until a prompt begins with it again.

`batching.CpuKvOffload` decides which blocks these are; here its moves are followed, before the
step that writes to the blocks. Reading a block does not wait: what was read is taken off the device
when the next moves are followed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from rooflight.batching.kv_offload import TierMove, TierOp
from rooflight.batching.request import Key
from rooflight.program.decode.pages import Values
from rooflight.serve.engine.device import Device

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")
Content = list[dict[str, Array]]  # of one block, by group of layers: [G,S,...]


class _BlockRead(NamedTuple):
    """One of the blocks that were read together, and may still be on their way."""

    groups: Sequence[Values]
    at: int

    def content(self) -> Content:
        """A copy; waits for the device."""
        return [
            {name: np.asarray(x)[:, self.at].copy() for name, x in values.items()}
            for values in self.groups
        ]


class HostBlocks:
    """The content of blocks, by key."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._content: dict[Key, Content | _BlockRead] = {}
        self._fresh: list[Key] = []  # saved since the last moves

    def __len__(self) -> int:
        return len(self._content)

    def follow(self, moves: Sequence[TierMove]) -> None:
        """All saves are dispatched before anything is restored: they may be of one block."""
        self._settle()
        saves = [move.block for move in moves if move.kind is TierOp.SAVE]
        slots = iter([slot for some in self._cut(saves) for slot in self._read(some)])
        restores: list[tuple[int, Content | _BlockRead]] = []
        for move in moves:
            if move.kind is TierOp.SAVE:
                self._content[move.key] = next(slots)
                self._fresh.append(move.key)
            else:
                found = self._content.pop(move.key)
                if move.kind is TierOp.RESTORE:
                    restores.append((move.block, found))
        for some in self._cut(restores):
            self._write(some)

    def clear(self) -> None:
        self._content.clear()
        self._fresh.clear()

    def _cut(self, given: Sequence[T]) -> list[Sequence[T]]:
        """As many at once as a table has blocks."""
        most = self._device.config.max_blocks
        return [given[at : at + most] for at in range(0, len(given), most)]

    def _read(self, blocks: Sequence[int]) -> list[_BlockRead]:
        groups = [self._device.read(blocks, group) for group in self._device.pages.groups]
        for values in groups:
            for x in values.values():
                x.copy_to_host_async()
        return [_BlockRead(groups, at) for at in range(len(blocks))]

    def _settle(self) -> None:
        """Takes what was read off the device, a copy for each block."""
        for key in self._fresh:
            found = self._content.get(key)
            if isinstance(found, _BlockRead):
                self._content[key] = found.content()
        self._fresh.clear()

    def _write(self, restores: Sequence[tuple[int, Content | _BlockRead]]) -> None:
        blocks, pages = [block for block, _ in restores], self._device.pages
        contents = [x.content() if isinstance(x, _BlockRead) else x for _, x in restores]
        for at, group in enumerate(pages.groups):
            values: Values = {}
            for name, like in pages.like(len(blocks), group).items():
                whole = np.zeros(like.shape, like.dtype)
                for column, content in enumerate(contents):
                    whole[:, column] = content[at][name]
                values[name] = jax.device_put(whole, like.sharding)
            self._device.insert(blocks, group, values)
