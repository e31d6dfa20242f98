"""What one collective of a schedule is made of: the arrays that go in, before tiles and padding.

In: a scheduled module and a collective. Out: a `Piece` for each array, or None where the text does
not say. The compiler joins arrays of one group, fills their tiles and pads them to even parts.
"""

from dataclasses import dataclass

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.instruction import Computation, Instruction, Module

_REDUCES = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Piece:
    """One array: its own bytes, those of its whole tiles, and those that travel."""

    nbytes: int
    tiled_bytes: int
    sent_bytes: int


def pieces_of(module: Module, found: Collective) -> tuple[Piece, ...] | None:
    """The arrays of a sum, a scatter or a gather that is written out in one place."""
    place = module.find(found.name)
    if place is None or found.form not in ("sync", "fusion"):
        return None
    home, instruction = place
    if instruction.opcode == "all-gather":
        made = tuple(Piece(s.nbytes, s.nbytes, s.nbytes) for s in instruction.shapes)
    elif instruction.opcode in _REDUCES:
        made = tuple(Piece(i.nbytes, i.nbytes, i.nbytes) for i in home.inputs(instruction))
    else:
        made = _of_fusion(module, instruction)
    return made if sum(piece.sent_bytes for piece in made) == found.nbytes else None


def _of_fusion(module: Module, fusion: Instruction) -> tuple[Piece, ...]:
    inside = module.computations.get(fusion.calls("calls") or "")
    sums = [i for i in inside.instructions if i.opcode in _REDUCES] if inside else []
    if inside is None or len(sums) != 1:
        return ()
    return tuple(_piece(inside, sent) for sent in inside.inputs(sums[0]))


def _piece(inside: Computation, sent: Instruction) -> Piece:
    """Back through what changes no value: padding at the end, then another view of the array."""
    tiled = inside.inputs(sent)[0] if sent.opcode == "pad" else sent
    given = tiled
    while given.opcode in ("bitcast", "copy", "reshape") and given.operands:
        given = inside.inputs(given)[0]
    return Piece(given.nbytes, tiled.nbytes, sent.nbytes)


def shifts(part: int, padded: int, ways: int) -> list[int]:
    """Bytes that devices pass on so that each has its own part again after a padded scatter.

    Device i has bytes padded * i and on, and wants those from part * i. What it lacks lies s
    devices before it; for each s one permute of all bytes that some device takes at that distance.

    >>> shifts(112, 128, 64)
    [128, 128, 128, 128, 128, 128, 128, 112]
    >>> shifts(896, 900, 16)  # what was added, 4 * 15
    [60]
    """
    found: list[int] = []
    for shift in range(1, ways):
        first, last = padded, 0
        for device in range(shift, ways):
            start = padded * (device - shift)
            low = max(part * device, start) - start
            high = min(part * device + part - start, padded)
            if low < high:
                first, last = min(first, low), max(last, high)
        if first >= last:
            break
        found.append(last - first)
    return found
