"""Keys of blocks: a chain of hashes, so a key names a block's tokens and all before them.

The chain starts at a tenant's salt: tenants with different salts never share a block, and cannot
learn from timing what others have asked. SHA-256, because equal keys mean shared content: with
a weaker hash a crafted prompt could read another's cache.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256


class KeyChain:
    """Hashes the tokens of one sequence as they come, a key for each full block.

    >>> chain = KeyChain(block_tokens=2, salt=b"alice")
    >>> len(chain.extend([1, 2, 3])), len(chain.extend([4]))
    (1, 1)
    """

    __slots__ = ("_block_tokens", "_last", "_rest")

    def __init__(self, *, block_tokens: int, salt: bytes) -> None:
        self._block_tokens = block_tokens
        self._last = sha256(salt).digest()
        self._rest: list[int] = []

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """The keys of the blocks that these tokens fill."""
        self._rest += tokens
        size = self._block_tokens
        full = len(self._rest) // size * size
        keys = [self._next(self._rest[at : at + size]) for at in range(0, full, size)]
        del self._rest[:full]
        return keys

    def _next(self, block: list[int]) -> bytes:
        self._last = sha256(self._last + array("q", block).tobytes()).digest()
        return self._last
