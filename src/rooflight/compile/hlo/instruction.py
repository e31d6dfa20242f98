"""`Instruction`, `Computation` and `Module`: HLO as records, references still by name."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=? ]*)\](?:\{([^{}]*)\})?")
_BITS = re.compile(r"[a-z]+?(\d+)")
_TILE = re.compile(r"T\(([0-9,]+)\)")
_SPACE = re.compile(r"S\((\d{1,9})\)")
_WITHOUT_BYTES = ("token", "opaque")
_SPACES = {0: "HBM", 1: "VMEM", 2: "semaphores", 4: "scalar memory", 5: "host memory", 6: "SMEM"}

_CALLED = re.compile(r"\b(calls|to_apply|body|condition|\w+_computation)=%?([^\s,{}()]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^{}]*)\}")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
FRAME = re.compile(r"\bstack_frame_id=(\d{1,9})\b")
_SOURCE = re.compile(r'\bsource_file="([^"]*)"(?:[^{}"]*?\bsource_line=(\d{1,9}))?')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d{1,18})')
_INTEGER = re.compile(r"\s*(-?\d{1,18})\s*")
CONTROL = ("while", "conditional", "call")  # what they call runs as if it stood there


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


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `body` is what stands in its parentheses, `attributes` what follows."""

    name: str
    opcode: str
    type_text: str
    body: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool
    line: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result."""
        return parse_type(self.type_text)

    @property
    def nbytes(self) -> int:
        """Bytes of its result."""
        return nbytes_of(self.shapes)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations it calls."""
        single = [m[2] for m in _CALLED.finditer(self.attributes)]
        lists = [m[1] for m in _BRANCHES.finditer(self.attributes)]
        return (*single, *(n.strip().lstrip("%") for text in lists for n in text.split(",")))

    def calls(self, role: str) -> str | None:
        """The computation it calls as `body`, `condition`, `calls` or `to_apply`."""
        return next((m[2] for m in _CALLED.finditer(self.attributes) if m[1] == role), None)

    def attribute(self, name: str) -> str | None:
        """A plain word or number: `index`, `direction`, `channel_id`, `custom_call_target`."""
        match = re.search(rf'\b{name}="?([^\s,"{{}}]+)', self.attributes)
        return match[1] if match else None

    @property
    def op_name(self) -> str:
        """Where the program made it: `jit(step)/jvp()/while/body/dot_general`; may be empty."""
        match = _OP_NAME.search(self.attributes)
        return match[1] if match else ""

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate of one execution; there after code generation only."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None

    @property
    def integer(self) -> int | None:
        """The value of a scalar integer constant."""
        match = _INTEGER.fullmatch(self.body) if self.opcode == "constant" else None
        return int(match[1]) if match else None

    @property
    def element(self) -> int | None:
        """Which element of a tuple it is."""
        index = self.attribute("index") if self.opcode == "get-tuple-element" else None
        return int(index) if index and index.isdecimal() and len(index) < 10 else None


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in the order of the text, which is the schedule if the module has one."""

    name: str
    instructions: Sequence[Instruction]
    position: Mapping[str, int]

    def __contains__(self, name: object) -> bool:
        return name in self.position

    def get(self, name: str) -> Instruction | None:
        at = self.position.get(name)
        return None if at is None else self.instructions[at]

    @property
    def root(self) -> Instruction:
        """What it returns."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    def inputs(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that feed one of it."""
        return [self.instructions[self.position[o]] for o in instruction.operands]


@dataclass(frozen=True, slots=True)
class Module:
    """A whole program for one device of `num_partitions`."""

    name: str
    entry: str
    computations: Mapping[str, Computation]
    is_scheduled: bool
    num_partitions: int
    donated: frozenset[int] = frozenset()  # numbers of parameters whose memory a result may take
    lines: Mapping[int, str] = field(default_factory=dict[int, str])  # of stack frames
    callers: Mapping[int, str] = field(default_factory=dict[int, str])

    def source(self, instruction: Instruction) -> str:
        """`file:line` of what made an instruction, or an empty text if the dump does not say."""
        if match := _SOURCE.search(instruction.attributes):
            return f"{match[1]}:{match[2]}" if match[2] else match[1]
        match = FRAME.search(instruction.attributes)
        return self.lines.get(int(match[1]), "") if match else ""

    def caller(self, instruction: Instruction) -> str:
        """`file:line` that called the function `source` is in; empty if the dump does not say."""
        match = FRAME.search(instruction.attributes)
        return self.callers.get(int(match[1]), "") if match else ""

    def find(self, name: str) -> tuple[Computation, Instruction] | None:
        """An instruction by name, and where it stands; names are unique in a module."""
        for computation in self.computations.values():
            if found := computation.get(name.lstrip("%")):
                return computation, found
        return None


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
