"""Whether two values are the same: what they are computed from, names left out."""

from rooflight.compile.hlo.instruction import Computation, Instruction

_SAME_VALUE = ("copy", "bitcast", "reshape", "convert")
_FARTHEST = 12  # instructions back; what differs only beyond that counts as the same


def origin(computation: Computation, found: Instruction) -> tuple[object, ...]:
    """How the operands of an instruction came about, equal for equal values of a computation."""
    return tuple(_value(computation, i, _FARTHEST) for i in computation.inputs(found))


def _value(computation: Computation, value: Instruction, depth: int) -> object:
    inputs = computation.inputs(value)
    if value.opcode in _SAME_VALUE and inputs:
        return _value(computation, inputs[0], depth)
    if depth == 0 or not inputs:
        return value.opcode, value.type_text, value.body
    index = value.attribute("index") if value.opcode == "get-tuple-element" else None
    made = tuple(_value(computation, i, depth - 1) for i in inputs)
    return value.opcode, value.type_text, index, made
