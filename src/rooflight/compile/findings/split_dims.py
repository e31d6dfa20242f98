"""Work along a dim that an axis splits, where another dim could be split and nothing be moved.

In: a partitioned step and the mesh. Out: findings for matmuls whose sum over devices is far larger
than all that they are made of (scores of heads whose numbers are split), and for transforms.
"""

import math
from collections.abc import Iterator

from rooflight.compile.expected.flow import Flow, source_of
from rooflight.compile.findings.finding import Finding, collective_seconds
from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.instruction import Instruction
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.mesh import Mesh

_ENOUGH = 4  # times the bytes of both operands
_TRANSFORM = "/jit(fft)"


def find_split_dims(step: CompiledStep, mesh: Mesh) -> Iterator[Finding]:
    """One finding a collective; sums of gradients are as large as their weights, and none."""
    flow = Flow(step.module)
    for found in step.collectives:
        over, place = "+".join(found.axes or ()), step.module.find(found.name)
        if place is None or not over:
            continue
        if found.op_name.endswith(_TRANSFORM):
            yield Finding(
                "split_dim",
                f"a Fourier transform runs along a dim that {over} splits"
                f" ({found.kind.replace('_', '-')})",
                f"split another dim over {over} before the transform: each device then has all of"
                " what it transforms",
                seconds=collective_seconds(found, mesh),
                where=found.source,
            )
        operands = place[0].inputs(place[1])
        made = source_of(place[0], operands[0]) if operands else place[1]
        if made.opcode == "dot" and not flow.is_backward(place):
            yield from _sum(found, made, place[0].inputs(made), mesh, over)


def _sum(
    found: Collective, made: Instruction, operands: list[Instruction], mesh: Mesh, over: str
) -> Iterator[Finding]:
    whole = sum(o.nbytes for o in operands) * math.prod(
        mesh.axes.get(a, 1) for a in found.axes or ()
    )
    if found.kind not in ("all_reduce", "reduce_scatter") or found.nbytes < _ENOUGH * whole:
        return
    yield Finding(
        "split_dim",
        f"{made.shapes[0]} is summed over {over}, which splits the dim that this matmul sums over;"
        f" it has {found.nbytes / whole:.0f} times the bytes of what it is made of",
        f"split another dim of both operands over {over}, such as heads: nothing is summed then",
        seconds=collective_seconds(found, mesh),
        where=found.source,
    )
