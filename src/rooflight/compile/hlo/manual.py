"""Manual regions (`jax.shard_map`) of the module that the compiler was given.

Inside one, shapes are those of a device; all others of the module are whole. A region is a call,
and what cuts its operands says over which axes it is manual and which of them split an operand.
"""

import math
import re
from collections.abc import Mapping

from rooflight.compile.hlo.instruction import CONTROL, Computation, Instruction, Module
from rooflight.compile.hlo.step import CompiledStep

_BODY = "xla.sdy.manual_computation_body"
_CUT = "xla.sdy.GlobalToLocalShape"
_MANUAL = re.compile(r"manual_axes\{([^{}]*)\}")
_DIMS = re.compile(r"(?<![\w=])\{([^{}]*)\}")  # a list with a word before it is of other axes
_AXIS = re.compile(r'"(\w+)')
# By these alone a device may come to do something else than one that was given the same.
_OWN = (
    *("partition-id", "replica-id", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "send", "recv", "infeed"),
)
_SAME = ("Sharding", _CUT, "xla.sdy.LocalToGlobalShape")  # other FFI custom calls may ask who I am


def manual_parts(step: CompiledStep, axes: Mapping[str, int]) -> dict[str, int]:
    """Of every instruction inside a region, how many parts of its work the devices do together.

    Devices along an axis do the same part if no operand of the region is split over it, unless
    something in the region may tell them apart.
    """
    inside: dict[str, int] = {}
    for name in step.runs:
        computation = step.module.computations[name]
        for call in computation.instructions:
            if call.opcode not in CONTROL:
                continue
            parts = _parts(step.module, computation, call, axes)
            if parts is None and name not in inside:
                continue
            for callee in call.called:
                total = inside.get(name, 1) * (parts or 1)
                inside[callee] = max(inside.get(callee, 1), total)
    module = step.module
    return {i.name: n for name, n in inside.items() for i in module.computations[name].instructions}


def _parts(
    module: Module, computation: Computation, call: Instruction, axes: Mapping[str, int]
) -> int | None:
    """The parts that a region is cut into; None if a call is no region."""
    if not any(name.startswith(_BODY) for name in call.called):
        return None
    cut = _cut(computation, call)
    text = cut.attributes.replace("\\", "") if cut else ""
    listed = _MANUAL.search(text)
    manual = set(_AXIS.findall(listed[1])) if listed else set(axes)
    if not _tells_apart(module, call):
        manual &= split_axes(text)
    return math.prod(size for axis, size in axes.items() if axis in manual)


def split_axes(attributes: str) -> set[str]:
    """The mesh axes that split a dim in any sharding of an instruction's attributes."""
    dims = _DIMS.findall(attributes.replace("\\", ""))
    return {axis for dim in dims for axis in _AXIS.findall(dim)}


def _cut(computation: Computation, call: Instruction) -> Instruction | None:
    """What cuts the operands of a region; None if it has none."""
    for value in computation.inputs(call):
        if value.opcode == "get-tuple-element":
            value = computation.inputs(value)[0]
        if value.attribute("custom_call_target") == _CUT:
            return value
    return None


def _tells_apart(module: Module, call: Instruction) -> bool:
    waiting, seen = list(call.called), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for instruction in module.computations[name].instructions:
            if _is_own(instruction):
                return True
            waiting.extend(instruction.called)
    return False


def _is_own(instruction: Instruction) -> bool:
    if instruction.opcode == "custom-call":
        return instruction.attribute("custom_call_target") not in _SAME
    return instruction.opcode in _OWN
