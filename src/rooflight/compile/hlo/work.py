"""Matmuls, copies and recomputation: what a device does between collectives, with FLOPs.

FLOPs are those of matmuls alone, 2 for each multiply and add; a TPU writes matmuls as
convolutions, batch dims as windows that slide over the one matching position.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflight.compile.hlo.instruction import Computation, Instruction, Module, Shape
from rooflight.compile.hlo.loops import Execution

_DOT_DIMS = re.compile(
    r'"?\b([lr]hs)_(contracting|batch)_dim(?:ension)?s"?[=:] *[{[]([\d," ]*)[]}]'
)
_CUBLAS = "__cublas$"
_LABELS = re.compile(r"\bdim_labels=([a-z0-9?]+)_([a-z0-9?]+)->([a-z0-9?]+)")
_WINDOW = re.compile(r"\bwindow=\{([^{}]*)\}")
_RECOMPUTED = re.compile(r"\.remat\d*\b|\.remat_")
_MOVES = ("copy", "transpose", "copy-start", "copy_", "transpose_")
_CALLERS = ("fusion", "async-start", "call")
_LARGEST_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class HloWork:
    """One instruction that keeps the device busy, with how often it runs a step."""

    name: str
    opcode: str
    shape: str
    flops: int | None
    nbytes: int
    count: int | None
    estimated_cycles: int | None
    op_name: str
    source: str
    moves: bool
    recomputed: str  # "" or who asked for it: "program" (checkpoint) or "compiler"

    @property
    def flops_per_step(self) -> int | None:
        return None if self.flops is None or self.count is None else self.flops * self.count


def read_work(module: Module, runs: Mapping[str, Execution]) -> list[HloWork]:
    """Matmuls, fusions, kernels, copies and transposes that the entry runs, in order."""
    counter = FlopCounter(module)
    found: list[HloWork] = []
    for name, execution in runs.items():
        computation = module.computations[name]
        for instruction in computation.instructions:
            if instruction.opcode in _OPCODES or _moves(instruction):
                found.append(_work(module, computation, instruction, execution, counter))
    return found


_OPCODES = (
    "fusion",
    "dot",
    "convolution",
    "custom-call",
    "ragged-dot",
    "sort",
    "gather",
    "scatter",
)


def _work(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    execution: Execution,
    counter: "FlopCounter",
) -> HloWork:
    shapes = instruction.shapes
    return HloWork(
        name=instruction.name,
        opcode=instruction.opcode,
        shape=str(shapes[0]) if shapes else "()",
        flops=counter.of(computation, instruction),
        # The start of a copy returns both ends of it; only one is new.
        nbytes=(shapes[0] if instruction.opcode == "copy-start" and shapes else instruction).nbytes,
        count=execution.count,
        estimated_cycles=instruction.estimated_cycles,
        op_name=instruction.op_name,
        source=module.source(instruction),
        moves=_moves(instruction),
        recomputed=recomputed_by(instruction),
    )


def _moves(instruction: Instruction) -> bool:
    """Whether it only moves an array: a copy or a transpose, alone or as a fusion named so."""
    if not any(s.dims for s in instruction.shapes):
        return False
    named = instruction.opcode == "fusion" and instruction.name.startswith(_MOVES)
    return instruction.opcode in _MOVES or named


def recomputed_by(instruction: Instruction) -> str:
    """Who asked to compute it again: the program (checkpoint), the compiler, or nobody ("")."""
    if "rematted_computation" in instruction.op_name:
        return "program"
    return "compiler" if _RECOMPUTED.search(instruction.name) else ""


@dataclass(slots=True)
class FlopCounter:
    """FLOPs of instructions, fusions included; remembers every computation it has seen."""

    module: Module
    known: dict[str, int | None] = field(default_factory=dict[str, "int | None"])

    def of(self, computation: Computation, instruction: Instruction) -> int | None:
        """FLOPs of the matmuls in one execution; None where they do not follow from the text."""
        if is_matmul(instruction):
            sizes = matmul_sizes(computation, instruction)
            return sizes.flops if sizes else None
        if instruction.opcode == "convolution":
            return _convolution(computation, instruction)
        if instruction.opcode in ("custom-call", "ragged-dot"):
            target = instruction.attribute("custom_call_target")
            is_kernel = instruction.opcode == "ragged-dot" or target == "tpu_custom_call"
            return None if is_kernel else 0
        if instruction.opcode not in _CALLERS:
            return 0
        parts = [self._computation(name) for name in instruction.called]
        known = [p for p in parts if p is not None]
        return sum(known) if len(known) == len(parts) else None

    def _computation(self, name: str) -> int | None:
        """A called computation, those it calls first; the calls are no cycle."""
        stack = [name]
        while stack:
            here = self.module.computations[stack[-1]]
            callers = [i for i in here.instructions if i.opcode in _CALLERS]
            waiting = [c for i in callers for c in i.called if c not in self.known]
            if here.name in self.known or not waiting:
                stack.pop()
                self.known.setdefault(here.name, self._sum(here))
            else:
                stack.extend(waiting)
        return self.known[name]

    def _sum(self, computation: Computation) -> int | None:
        parts = [self.of(computation, i) for i in computation.instructions]
        known = [p for p in parts if p is not None]
        return sum(known) if len(known) == len(parts) else None


def is_matmul(instruction: Instruction) -> bool:
    """A dot, or the call of cuBLAS that became of one."""
    if instruction.opcode != "custom-call":
        return instruction.opcode == "dot"
    return (instruction.attribute("custom_call_target") or "").startswith(_CUBLAS)


@dataclass(frozen=True, slots=True)
class MatmulSizes:
    """`batch` matmuls of m x k by k x n, and what the left side is made of."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def matmul_sizes(computation: Computation, instruction: Instruction) -> MatmulSizes | None:
    """Of a dot, or of a call of cuBLAS, which names its dims in its configuration."""
    left, right = (_shape(computation, instruction, at) for at in (0, 1))
    dims = {f"{s}_{role}": text for s, role, text in _DOT_DIMS.findall(instruction.attributes)}
    if left is None or right is None or "lhs_contracting" not in dims or not instruction.shapes:
        return None
    summed, shared = (
        [int(n) for n in re.findall(r"\d{1,4}", dims.get(f"lhs_{role}", ""))]
        for role in ("contracting", "batch")
    )
    if any(at >= len(left.dims) for at in (*summed, *shared)):
        return None
    k, batch = (math.prod(left.dims[at] for at in dims) for dims in (summed, shared))
    result = instruction.shapes[0].elements
    m = left.elements // max(1, batch * k)
    return MatmulSizes(batch, m, result // max(1, batch * m), k, left.dtype)


def _shape(computation: Computation, instruction: Instruction, operand: int) -> Shape | None:
    inputs = computation.inputs(instruction)
    if operand >= len(inputs) or not inputs[operand].shapes:
        return None
    return inputs[operand].shapes[0]


def _convolution(computation: Computation, instruction: Instruction) -> int | None:
    """2 * batch * output features * input features of a group * positions that really meet."""
    labels = _LABELS.search(instruction.attributes)
    left, right = (_shape(computation, instruction, at) for at in (0, 1))
    if labels is None or left is None or right is None or not instruction.shapes:
        return None
    result = instruction.shapes[0]
    sides = ((left, labels[1]), (right, labels[2]), (result, labels[3]))
    if any(len(shape.dims) != len(text) for shape, text in sides):
        return None
    sizes = [dict(zip(text, shape.dims, strict=True)) for shape, text in sides]
    named = [side.get(label) for side, label in zip(sizes, "bio", strict=True)]
    features = sizes[2].get("f")
    if features is None or named[0] is None or named[1] is None:
        return None
    window = _Window.parse(instruction.attributes)
    meetings = [
        window.meetings(int(label), sizes[0].get(label, 1), size)
        for label, size in sizes[2].items()
        if label.isdecimal()
    ]
    known = [m for m in meetings if m is not None]
    if len(known) < len(meetings):
        return None
    return 2 * sizes[2].get("b", 1) * features * named[1] * math.prod(known)


@dataclass(frozen=True, slots=True)
class _Window:
    """The sliding window of a convolution, one entry a spatial dim."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    lhs_dilate: tuple[int, ...]
    rhs_dilate: tuple[int, ...]

    @classmethod
    def parse(cls, attributes: str) -> "_Window":
        match = _WINDOW.search(attributes)
        words = dict(re.findall(r"(\w+)=([\dx_-]+)", match[1])) if match else {}

        def read(name: str) -> tuple[int, ...]:
            parts = words.get(name, "").split("x")
            lows = (part.split("_")[0] for part in parts if part)
            return tuple(int(low) for low in lows if re.fullmatch(r"-?\d{1,12}", low))

        names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")
        return cls(*(read(name) for name in names))

    def meetings(self, at: int, inputs: int, outputs: int) -> int | None:
        """Pairs of output and window position that meet an input, not padding or a gap.

        Output o and window position k look at o * stride + k * rhs_dilate - pad; an input is there
        if that is a multiple of lhs_dilate inside the array.
        """

        def one(values: tuple[int, ...], default: int) -> int:
            return values[at] if at < len(values) else default

        size, stride, gap = one(self.size, 1), one(self.stride, 1), one(self.lhs_dilate, 1)
        pad, spread = one(self.pad, 0), one(self.rhs_dilate, 1)
        if not 0 < size <= _LARGEST_WINDOW or stride < 1 or gap < 1:
            return None
        last = (inputs - 1) * gap
        total = 0
        for k in range(size):
            total += _multiples(k * spread - pad, stride, gap, last, outputs)
        return total


def _multiples(offset: int, stride: int, gap: int, last: int, outputs: int) -> int:
    """How many o in 0 .. outputs-1 have offset + o * stride a multiple of gap in 0 .. last."""
    low = max(0, -(offset // stride) if offset < 0 else 0)
    high = min(outputs - 1, (last - offset) // stride)
    if high < low:
        return 0
    common = math.gcd(stride, gap)
    if offset % common:
        return 0
    period = gap // common
    first = (-offset // common) * pow(stride // common, -1, period) % period if period > 1 else 0
    return (high - first) // period - (low - 1 - first) // period
