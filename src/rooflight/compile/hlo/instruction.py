"""`Instruction`, `Computation` and `Module`: HLO as records, references still by name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.compile.hlo.shape import Shape, nbytes_of, parse_type

_CALLED = re.compile(r"\b(calls|to_apply|body|condition|\w+_computation)=%?([^\s,{}()]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^{}]*)\}")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d{1,9})\b")
_SOURCE = re.compile(r'\bsource_file="([^"]*)"(?:[^{}"]*?\bsource_line=(\d{1,9}))?')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d{1,18})')
_INTEGER = re.compile(r"\s*(-?\d{1,18})\s*")
CONTROL = ("while", "conditional", "call")  # what they call runs as if it stood there


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
        match = _FRAME.search(instruction.attributes)
        return self.lines.get(int(match[1]), "") if match else ""

    def caller(self, instruction: Instruction) -> str:
        """`file:line` that called the function `source` is in; empty if the dump does not say."""
        match = _FRAME.search(instruction.attributes)
        return self.callers.get(int(match[1]), "") if match else ""

    def find(self, name: str) -> tuple[Computation, Instruction] | None:
        """An instruction by name, and where it stands; names are unique in a module."""
        for computation in self.computations.values():
            if found := computation.get(name.lstrip("%")):
                return computation, found
        return None
