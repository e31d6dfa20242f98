"""`Shape`: an array of HLO as text says it, `bf16[1024,4096]{1,0:T(8,128)(2,1)S(1)}`.

In: the type of an instruction. Out: its arrays, with the bytes of their elements, the bytes they
take when their tiles are padded, and the memory they live in.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=? ]*)\](?:\{([^{}]*)\})?")
_BITS = re.compile(r"[a-z]+?(\d+)")
_TILE = re.compile(r"T\(([0-9,]+)\)")
_SPACE = re.compile(r"S\((\d{1,9})\)")
_WITHOUT_BYTES = ("token", "opaque")
_SPACES = {0: "HBM", 1: "VMEM", 2: "semaphores", 4: "scalar memory", 5: "host memory", 6: "SMEM"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One array: element type, dims, and the layout as written.

    >>> shape = parse_type("bf16[6,100]{1,0:T(8,128)(2,1)S(1)}")[0]
    >>> shape.nbytes, shape.padded_bytes, shape.memory
    (1200, 2048, 'VMEM')
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def bits(self) -> int:
        """Bits of one element; 0 of what is no array of numbers."""
        if self.dtype in _WITHOUT_BYTES:
            return 0
        match = _BITS.match(self.dtype)
        return min(int(match[1]), 1024) if match else 8  # pred

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements alone."""
        return -(-self.elements * self.bits // 8)

    @property
    def tile(self) -> tuple[int, ...]:
        """The outer tile of the layout; empty where arrays are not tiled."""
        match = _TILE.search(self.layout)
        return _numbers(match[1]) if match else ()

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """The dims from outermost to innermost in memory, the tiled ones rounded up to tiles."""
        order = _numbers(self.layout.partition(":")[0])
        known = sorted(order) == list(range(len(self.dims)))
        dims = [self.dims[at] for at in reversed(order)] if known else list(self.dims)
        tile = self.tile
        if len(dims) < len(tile):
            dims = [1] * (len(tile) - len(dims)) + dims
        start = len(dims) - len(tile)
        tiled = [-(-n // t) * t if t else n for n, t in zip(dims[start:], tile, strict=True)]
        return (*dims[:start], *tiled)

    @property
    def padded_bytes(self) -> int:
        """Bytes it takes in memory, whole tiles included."""
        return -(-math.prod(self.padded_dims) * self.bits // 8)

    @property
    def memory(self) -> str:
        """The memory it lives in; HBM unless the layout says otherwise."""
        match = _SPACE.search(self.layout)
        space = int(match[1]) if match else 0
        return _SPACES.get(space, f"memory space {space}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.isdecimal() and len(n) < 19)


@lru_cache(maxsize=65536)
def parse_type(text: str) -> tuple[Shape, ...]:
    """The arrays of a type, tuples flattened, in order.

    >>> [str(s) for s in parse_type("(s32[]{:T(128)}, (bf16[4,<=8]{1,0}), token[])")]
    ['s32[]', 'bf16[4,8]', 'token[]']
    """
    return tuple(
        Shape(m[1], _numbers(re.sub("[<=? ]", "", m[2])), m[3] or "") for m in _ARRAY.finditer(text)
    )


def nbytes_of(shapes: tuple[Shape, ...]) -> int:
    """Bytes of several arrays."""
    return sum(s.nbytes for s in shapes)
