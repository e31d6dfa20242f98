"""`CompiledStep`: what a compiled program does in one step, read from its dump."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rooflight.compile.hlo.collectives import Collective, read_collectives
from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.instruction import Module
from rooflight.compile.hlo.loops import Execution, Loop, executions, loops
from rooflight.compile.hlo.memory import HloMemory, LiveBytes
from rooflight.compile.hlo.work import HloWork, read_work

_WARNING = re.compile(r"W\d{4} [\d:.]+ +\d+ (?P<file>[\w.]+):\d+\] (?P<text>.*)")
_ADVICE = " As the last resort, SPMD will replicate"  # the same words after every such warning
# Talk of the compiler to its own authors, in every compile.
_TALK = ("llo_module.h", "shardy_xla_pass.cc", "tpu_spmd_partitioner.cc")


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """A module with everything read off it. Counts are None where a loop's trips are unknown."""

    module: Module
    runs: Mapping[str, Execution]
    collectives: tuple[Collective, ...]
    work: tuple[HloWork, ...]
    memory: HloMemory | None
    warnings: tuple[str, ...]
    live: LiveBytes | None = None

    @property
    def loops(self) -> dict[str, tuple[Loop, int | None]]:
        """Every loop with how often its body runs a step."""
        return loops(self.runs)

    @property
    def flops(self) -> int | None:
        """FLOPs of all matmuls in a step; None if a loop or a kernel keeps its own to itself."""
        return None if self.of_unknown_flops else self.known_flops

    @property
    def known_flops(self) -> int:
        """FLOPs of the matmuls that can be counted."""
        return sum(w.flops_per_step or 0 for w in self.work)

    @property
    def of_unknown_flops(self) -> list[HloWork]:
        """Kernels that do not say, and what is in loops of unknown length."""
        return [w for w in self.work if w.flops_per_step is None and w.flops != 0]

    @property
    def recomputed_flops(self) -> int:
        """FLOPs that are there a second time, for want of memory."""
        return sum(w.flops_per_step or 0 for w in self.work if w.recomputed)

    @property
    def moves(self) -> list[HloWork]:
        """Copies and transposes."""
        return [w for w in self.work if w.moves]


def step_document(step: CompiledStep, stage: str) -> dict[str, object]:
    """Everything that is shown of it, in full, as plain data."""
    memory = step.memory
    return {
        "module": step.module.name,
        "stage": stage,
        "num_partitions": step.module.num_partitions,
        "is_scheduled": step.module.is_scheduled,
        "flops": step.flops,
        "known_flops": step.known_flops,
        "recomputed_flops": step.recomputed_flops,
        "collectives": [
            asdict(c) | {"nbytes": c.nbytes, "bytes_per_step": c.bytes_per_step}
            for c in step.collectives
        ],
        "loops": [
            {"name": loop.name, "trips": loop.trips, "rounds_per_step": total}
            for loop, total in step.loops.values()
        ],
        "work": [asdict(w) for w in step.work],
        "memory": None if memory is None else asdict(memory) | {"total_bytes": memory.total_bytes},
        "warnings": list(step.warnings),
    }


def read_step(
    module: Module,
    *,
    axes: MeshAxes | None = None,
    memory: HloMemory | None = None,
    live: LiveBytes | None = None,
    log: str = "",
) -> CompiledStep:
    """Reads a module; `axes` are the names and sizes of the jax mesh, in its order."""
    runs = executions(module)
    return CompiledStep(
        module=module,
        runs=runs,
        collectives=tuple(read_collectives(module, runs, axes)),
        work=tuple(read_work(module, runs)),
        memory=memory,
        warnings=tuple(read_warnings(log)),
        live=live,
    )


def read_warnings(log: str) -> list[str]:
    """The compiler's warnings, each once.

    >>> read_warnings("W0101 10:00:00.1 7 spmd.cc:1] [SPMD] Involuntary full rematerialization\\n")
    ['[SPMD] Involuntary full rematerialization']
    """
    matches = (_WARNING.match(line) for line in log.splitlines())
    texts = (m["text"] for m in matches if m and m["file"] not in _TALK)
    return list(dict.fromkeys(text.partition(_ADVICE)[0] for text in texts))
