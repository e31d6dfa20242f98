"""What one instruction of a compiled step takes, and which unit of the chip it keeps busy.

In: an instruction and the chip. Out: an `HloOpTime`. The compiler's own estimate counts where there
is one (after code generation); of an op without matmuls it is known to be too long, by 1.2 to 5
times where that was measured, so there it counts up to the time that the op's bytes take. Without
an estimate, matmuls and kernels of known FLOPs are held to the peak of the matrix unit, moves to
the bandwidth of the memory, and other kernels are unknown. Of a GPU every figure is ours (`gpu`).

Work of Pallas kernels that do not say theirs: the attention kernels that ship with jax. A kernel is
opaque to the compiler: no cycle estimate, and FLOPs only if its author gave a cost estimate. Those
of splash attention, and the bytes that paged attention reads, follow from its name and its
operands.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rooflight.compile.hlo.instruction import Computation, Instruction, Module
from rooflight.compile.hlo.sites import is_work
from rooflight.compile.hlo.work import FlopCounter, MatmulSizes, is_matmul, matmul_sizes
from rooflight.compile.time.gpu import (
    attention_s,
    attention_sizes,
    gpu_rates,
    is_known_call,
    kernel_traffic,
    matmul_s,
    memory_s,
)
from rooflight.errors import UsageError
from rooflight.hardware.chip import Chip

_COST = re.compile(r'"cost_estimate":\{[^{}]*?"flops":"?(\d{1,18})')
# Matmuls of queries by keys in each kernel, 2 * N * T * S * H FLOPs each: scores and output; or
# scores, both gradients that scores take part in, and the gradients of keys and values.
_MATMULS = {
    "splash_mha_fwd": 2,
    "splash_mha_dkv": 4,
    "splash_mha_dq": 3,
    "splash_mqa_fwd": 2,
    "splash_mqa_dkv": 4,
    "splash_mqa_dq": 3,
}
_PAGED = "ragged_paged_attention"

Unit = Literal["matrix", "kernels", "memory"]
Basis = Literal["compiler", "capped", "bound", "roofline", "unknown"]
BASES: tuple[Basis, ...] = ("compiler", "capped", "bound", "roofline", "unknown")
PRICED = ("compiler", "capped", "roofline")
UNITS: tuple[Unit, ...] = ("matrix", "kernels", "memory")
_DTYPE = "bf16"  # what matmuls are done in
_IN_PLACE = ("dynamic-update-slice", "scatter")


@dataclass(frozen=True, slots=True)
class HloOpTime:
    """Seconds of one execution on one unit, and whose figure that is."""

    unit: Unit
    seconds: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class OpPricer:
    """Prices the instructions of a module on a chip."""

    module: Module
    chip: Chip
    flops: FlopCounter

    @classmethod
    def of(cls, module: Module, chip: Chip) -> "OpPricer":
        if chip.matrix_unit is None or chip.hbm_bytes_per_s is None:
            raise UsageError(
                f"the catalog has no clock or no memory bandwidth of {chip.title}",
                hint="ask for the time of a TPU or a GPU of the catalog",
            )
        return cls(module, chip, FlopCounter(module))

    @property
    def clock_hz(self) -> float:
        """The clock that the compiler counts cycles of; the peak may be quoted at another."""
        unit = self.chip.matrix_unit
        assert unit is not None, "checked when made"
        return self.chip.detail.get("clock_compiler_hz", unit.clock_hz)

    def price(self, computation: Computation, instruction: Instruction) -> HloOpTime | None:
        """None for what keeps no unit busy: bookkeeping, starts and ends."""
        if self.chip.kind == "gpu":
            return self._on_gpu(computation, instruction) if is_work(instruction) else None
        cycles = instruction.estimated_cycles
        if cycles is not None:
            return self._estimated(computation, instruction, cycles / self.clock_hz)
        if not is_work(instruction):
            return None
        if instruction.opcode == "custom-call":
            return self._kernel(computation, instruction)
        return self._bound(computation, instruction)

    def _on_gpu(self, computation: Computation, at: Instruction) -> HloOpTime:
        """A kernel as long as its longest matmul and its bytes take; of two matmuls, both."""
        moved, rates = kernel_traffic(self.module, computation, at), gpu_rates()
        if attention := attention_sizes(computation, at):
            seconds = attention_s(self.chip, attention, moved, rates)
            return HloOpTime("kernels", seconds, "roofline")
        sizes = [*self._matmuls(computation, at)]
        if sizes and all(sizes):
            each = (matmul_s(self.chip, one, moved, rates) for one in sizes if one)
            return HloOpTime("matrix", math.fsum(each), "roofline")
        is_opaque = at.opcode == "custom-call" and not is_known_call(at)
        if sizes or is_opaque:
            return HloOpTime("kernels", 0.0, "unknown")
        return HloOpTime("memory", memory_s(self.chip, moved, rates), "roofline")

    def _matmuls(self, computation: Computation, at: Instruction) -> Iterator[MatmulSizes | None]:
        """Of a call of cuBLAS, a dot, or every dot in a fusion."""
        if is_matmul(at):
            yield matmul_sizes(computation, at)
        for name in at.called if at.opcode == "fusion" else ():
            body = self.module.computations[name]
            for inner in body.instructions:
                yield from self._matmuls(body, inner)

    def copy_s(self, start: Instruction) -> float:
        """An asynchronous copy: one end of it through the main memory."""
        sizes = [s.nbytes for s in start.shapes if s.dims]
        return max(sizes, default=0) / self._hbm

    @property
    def _hbm(self) -> float:
        rate = self.chip.hbm_bytes_per_s
        assert rate is not None, "checked when made"
        return rate

    def _unit(self, computation: Computation, instruction: Instruction) -> Unit:
        return "matrix" if self.flops.of(computation, instruction) else "memory"

    def _estimated(self, computation: Computation, at: Instruction, seconds: float) -> HloOpTime:
        """The compiler's estimate; an op without matmuls takes no longer than its bytes do."""
        unit = self._unit(computation, at)
        roof = self._traffic_s(computation, at) if unit == "memory" else None
        if roof is None or roof >= seconds:
            return HloOpTime(unit, seconds, "compiler")
        return HloOpTime(unit, roof, "capped")

    def _traffic_s(self, computation: Computation, at: Instruction) -> float | None:
        """All operands and results once through their memories; None if a rate is not known.

        A slice of an operand counts as all of it, so this may be too long and never too short.
        """
        values = [at.shapes, *(i.shapes for i in computation.inputs(at))]
        arrays = [shape for shapes in values for shape in shapes]
        near = sum(a.nbytes for a in arrays if a.memory != "HBM")
        far = sum(a.nbytes for a in arrays if a.memory == "HBM")
        if near == 0:
            return far / self._hbm
        rate = self.chip.vmem_bytes_per_s
        return max(far / self._hbm, (near + far) / rate) if rate else None

    def _kernel(self, computation: Computation, kernel: Instruction) -> HloOpTime:
        flops, read = kernel_flops(computation, kernel), kernel_bytes(computation, kernel)
        if read is not None:
            return HloOpTime("kernels", read / self._hbm, "bound")
        if flops is None:
            return HloOpTime("kernels", 0.0, "unknown")
        return HloOpTime("kernels", flops / self.chip.peak_flops(_DTYPE), "bound")

    def _bound(self, computation: Computation, instruction: Instruction) -> HloOpTime:
        """Matmuls at the peak; else what is written, read and written once."""
        flops = self.flops.of(computation, instruction)
        if flops:
            return HloOpTime("matrix", flops / self.chip.peak_flops(_DTYPE), "bound")
        written = instruction.nbytes
        body = self.module.computations.get(instruction.calls("calls") or "")
        if (body.root if body else instruction).opcode in _IN_PLACE:  # only the update moves
            others = [i.nbytes for i in computation.inputs(instruction)]
            written = sum(n for n in others if n != instruction.nbytes)
        return HloOpTime("memory", 2 * written / self._hbm, "bound")


def kernel_bytes(computation: Computation, kernel: Instruction) -> int | None:
    """Bytes of the pages that paged attention reads if every row fills its table; else None."""
    shapes = [i.shapes[0] for i in computation.inputs(kernel) if i.shapes]
    tables = next((s for s in shapes if s.dtype == "s32" and len(s.dims) == 2), None)
    pages = next((s for s in shapes if s.dtype != "s32" and len(s.dims) == 4), None)
    if not kernel.name.startswith(_PAGED) or tables is None or pages is None:
        return None
    return tables.elements * pages.nbytes // pages.dims[0]


def kernel_flops(computation: Computation, kernel: Instruction) -> int | None:
    """FLOPs of one execution of a kernel; None if neither its author nor its name says.

    Splash attention is taken to be causal, as training is: of n x n blocks it visits n (n + 1) / 2,
    and the same part of m x n where a device has an early and a late piece of the queries.
    """
    if cost := _COST.search(kernel.attributes):
        return int(cost[1])
    matmuls = next((n for name, n in _MATMULS.items() if kernel.name.startswith(name)), None)
    shapes = [i.shapes[0] for i in computation.inputs(kernel) if i.shapes]
    blocks = next((s.dims for s in shapes if s.dtype == "s8" and len(s.dims) == 3), None)
    arrays = [s for s in shapes if s.dtype in ("bf16", "f32") and len(s.dims) >= 3]
    if matmuls is None or blocks is None or len(arrays) < 2:
        return None
    queries, keys = arrays[0], arrays[1]
    pairs = queries.elements * keys.dims[-2]
    is_whole = queries.dims[-2] * blocks[2] == keys.dims[-2] * blocks[1]  # and no window of them
    visited = (blocks[2] + 1) / (2 * blocks[2]) if is_whole else 1.0
    return int(2 * matmuls * pairs * visited)
