"""Which device holds which block of a sharded tensor, and who must send to whom in a permute.

A device is its position along mesh axes; a block is its index along each dim of the tensor.
"""

from collections.abc import Mapping
from itertools import product

from rooflight.algebra.notation import Axes, Tensor
from rooflight.algebra.steps import Step

Block = tuple[int, ...]


def block_of(tensor: Tensor, position: Mapping[str, int], axis_sizes: Mapping[str, int]) -> Block:
    """The block of the device at `position`; the first axis of a dim is the outermost.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> block_of(parse_tensor("A[I_XY,J]"), {"X": 1, "Y": 2}, {"X": 2, "Y": 4})
    (6, 0)
    """
    block: list[int] = []
    for axes in tensor.axes:
        index = 0
        for axis in axes:
            index = index * axis_sizes[axis] + position[axis]
        block.append(index)
    return tuple(block)


def positions(axes: Axes, axis_sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Every device of a group, numbered row-major over `axes`."""
    places = product(*(range(axis_sizes[a]) for a in axes))
    return [dict(zip(axes, place, strict=True)) for place in places]


def holders(tensor: Tensor, axis_sizes: Mapping[str, int]) -> dict[Block, tuple[int, ...]]:
    """The devices that hold each block, numbered row-major over the whole mesh.

    >>> from rooflight.algebra.notation import parse_tensor
    >>> holders(parse_tensor("A[I_Y,J]"), {"X": 2, "Y": 2})
    {(0, 0): (0, 2), (1, 0): (1, 3)}
    """
    found: dict[Block, list[int]] = {}
    for device, position in enumerate(positions(tuple(axis_sizes), axis_sizes)):
        found.setdefault(block_of(tensor, position, axis_sizes), []).append(device)
    return {block: tuple(devices) for block, devices in sorted(found.items())}


def block_moves(step: Step, group: Axes, axis_sizes: Mapping[str, int]) -> list[tuple[int, int]]:
    """Who sends its block to whom in a permute: a one-to-one map of the group's devices.

    Devices are numbered row-major over `group`, which must name all axes of the step. A device
    that already holds what it needs keeps it; the others are paired in order.
    """
    others = {a: 0 for t in (step.inputs[0], step.output) for a in t.sharded_over if a not in group}
    places = [others | place for place in positions(group, axis_sizes)]
    holds = [block_of(step.inputs[0], place, axis_sizes) for place in places]
    needs = [block_of(step.output, place, axis_sizes) for place in places]
    pairs = [(i, i) for i in range(len(places)) if holds[i] == needs[i]]
    kept = {i for i, _ in pairs}
    senders: dict[Block, list[int]] = {}
    for i, block in enumerate(holds):
        if i not in kept:
            senders.setdefault(block, []).append(i)
    pairs += [(senders[needs[i]].pop(0), i) for i in range(len(places)) if i not in kept]
    return pairs
