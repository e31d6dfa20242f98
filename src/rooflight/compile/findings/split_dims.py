"""Work along a dim that an axis splits, where another dim could be split and less be moved.

In: a partitioned step and the mesh. Out: findings for sums over devices far larger than what they
are made of (scores of heads whose numbers are split, a recurrent weight, rows of a table), for
transforms, and for rows gathered to be looked up by a number of the device's own.
"""

import math
from collections.abc import Iterator, Mapping

from rooflight.compile.expected.flow import Flow, Place, source_of
from rooflight.compile.findings.finding import Finding, collective_seconds
from rooflight.compile.hlo.collectives import Collective, varying_axes
from rooflight.compile.hlo.step import CompiledStep
from rooflight.hardware.mesh import Mesh

_ENOUGH = 4  # times the bytes of what a sum is made of
_SUMS = ("all_reduce", "reduce_scatter")
_TRANSFORM = "/jit(fft)"
Said = tuple[str, str]  # the words, and the fix


def find_split_dims(step: CompiledStep, mesh: Mesh, axes: Mapping[str, int]) -> Iterator[Finding]:
    """One finding a collective; sums of gradients are as large as their weights, and none."""
    flow = Flow(step.module)
    for found in step.collectives:
        place = step.module.find(found.name)
        said = _said(flow, found, place, axes) if place and found.axes else None
        if said:
            seconds = collective_seconds(found, mesh)
            yield Finding("split_dim", *said, seconds=seconds, where=found.source)


def _said(flow: Flow, found: Collective, place: Place, axes: Mapping[str, int]) -> Said | None:
    over = "+".join(found.axes or ())
    if found.op_name.endswith(_TRANSFORM):
        return (
            f"a Fourier transform runs along a dim that {over} splits"
            f" ({found.kind.replace('_', '-')})",
            f"split another dim over {over} before the transform: each device then has all of"
            " what it transforms",
        )
    if flow.is_backward(place):
        return None
    if found.kind == "all_gather":
        return _own_rows(flow, found, place, axes)
    return _sum(flow, found, place, axes) if found.kind in _SUMS else None


def _own_rows(flow: Flow, found: Collective, place: Place, axes: Mapping[str, int]) -> Said | None:
    """Rows are gathered, and each device then counts to its own: an index into all of them."""
    uses = flow.uses(place)
    numbers = [
        varying_axes((at, value), axes)
        for computation, use in uses
        if use.opcode == "gather"
        for at, value in flow.computed_from((computation, computation.inputs(use)[1]), "broadcast")
        if value.shapes and not value.shapes[0].dims
    ]
    if len(uses) != 1 or {*(found.axes or ())} not in numbers:
        return None
    over = "+".join(found.axes or ())
    return (
        f"{place[1].shapes[0]} is gathered over {over} only to look up rows that each device"
        " numbers from its own place",
        "look up inside the rows that a device has, by their own numbers: jax.vmap(lambda rows, at:"
        f" rows[at]) over the dim that {over} splits, or jnp.take_along_axis",
    )


def _sum(flow: Flow, found: Collective, place: Place, axes: Mapping[str, int]) -> Said | None:
    """A matmul summed over devices, or rows that each device looked up in its part of a table."""
    over, computation = "+".join(found.axes or ()), place[0]
    made = source_of(computation, computation.inputs(place[1])[0])
    if made.opcode == "select" and found.op_name.endswith("/gather"):
        made = next((i for i in computation.inputs(made) if i.opcode == "gather"), made)
    inputs = computation.inputs(made)[: 1 if made.opcode == "gather" else None]
    given = {i.name: flow.argument_of((computation, i)) for i in inputs}
    weights = [(name, a.op_name.replace("\\", "")) for name, a in given.items() if a]
    name, weight = weights[0] if len(weights) == 1 < len(inputs) and found.loops else ("", "")
    size = math.prod(axes[axis] for axis in found.axes or ())
    moved = sum(i.nbytes for i in inputs if i.name != name) * size
    if made.opcode not in ("dot", "gather") or found.nbytes < _ENOUGH * moved:
        return None
    times = f"it has {found.nbytes / moved:.0f} times the bytes of"
    if made.opcode == "gather":
        return (
            f"{made.shapes[0]} is looked up along a dim that {over} splits and summed over it;"
            f" {times} all that it is looked up in",
            f"split another dim of what it is looked up in over {over}, or make that whole before"
            " the lookup",
        )
    return (
        f"{made.shapes[0]} is summed over {over}, which splits the dim that this matmul sums over;"
        f" {times} {f'what {weight} is multiplied with' if weight else 'what it is made of'}",
        f"split another dim of {weight or 'both operands'} over {over}"
        + (
            ": what it meets is gathered instead"
            if weight
            else ", such as heads: nothing is summed"
        ),
    )
