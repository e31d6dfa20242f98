"""Loops and how often things run: trip counts, and executions a step of every computation.

A TPU dump does not say how often a loop goes round. It follows from the loop itself: the counter
starts at a constant, the body adds a constant, the condition compares with a constant. Where one
of the three is not a constant the count is unknown, and so is every count inside the loop.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.compile.hlo.instruction import CONTROL, Computation, Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d{1,18})"')
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
_FARTHEST = 64  # instructions to follow from a value to its constant


@dataclass(frozen=True, slots=True)
class Loop:
    """A while loop: its name, body, how often it goes round each time it is entered."""

    name: str
    body: str
    trips: int | None
    op_name: str
    source: str


@dataclass(frozen=True, slots=True)
class Execution:
    """How often a computation runs a step, and the loops around it, outermost first."""

    count: int | None
    loops: tuple[Loop, ...]


def executions(module: Module) -> dict[str, Execution]:
    """Every computation that the entry runs as such; those inside fusions are not among them.

    A computation with several callers runs as often as all of them together; its loops are those
    of the first.
    """
    found = {module.entry: Execution(1, ())}
    for name in _outermost_first(module):
        here = found.get(name)
        if here is None:
            continue
        computation = module.computations[name]
        for instruction in computation.instructions:
            if instruction.opcode in CONTROL:
                for callee, execution in _called(module, computation, instruction, here):
                    found[callee] = _joined(found.get(callee), execution)
    return found


def _outermost_first(module: Module) -> list[str]:
    """Computations with every caller before what it calls; the calls have no cycle."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [(module.entry, False)]
    while stack:
        name, is_done = stack.pop()
        if is_done:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            for instruction in module.computations[name].instructions:
                if instruction.opcode in CONTROL:
                    stack.extend((callee, False) for callee in instruction.called)
    return order[::-1]


def _called(
    module: Module, caller: Computation, instruction: Instruction, here: Execution
) -> list[tuple[str, Execution]]:
    if instruction.opcode != "while":
        return [(callee, here) for callee in instruction.called]
    loop = read_loop(module, caller, instruction)
    inside = Execution(_times(here.count, loop.trips), (*here.loops, loop))
    return [(callee, inside) for callee in instruction.called]


def _times(count: int | None, trips: int | None) -> int | None:
    return None if count is None or trips is None else count * trips


def _joined(before: Execution | None, now: Execution) -> Execution:
    if before is None:
        return now
    known = before.count is not None and now.count is not None
    return Execution((before.count or 0) + (now.count or 0) if known else None, before.loops)


def read_loop(module: Module, caller: Computation, loop: Instruction) -> Loop:
    """The loop of a while instruction."""
    body = loop.calls("body") or ""
    trips = _trips(module, caller, loop)
    return Loop(loop.name, body, trips, loop.op_name, module.source(loop))


def _trips(module: Module, caller: Computation, loop: Instruction) -> int | None:
    if known := _KNOWN.search(loop.attributes):
        return int(known[1])
    condition = module.computations.get(loop.calls("condition") or "")
    body = module.computations.get(loop.calls("body") or "")
    if condition is None or body is None or condition.root.opcode != "compare":
        return None
    state = _LoopCarry(module, caller, loop, body)
    compare = condition.root
    sides = [_follow(condition, i) for i in condition.inputs(compare)]
    direction = compare.attribute("direction")
    if len(sides) != 2 or direction not in _MIRRORED:
        return None
    steps = [state.step(side) for side in sides]
    if steps[0] == 0 and steps[1] is not None:
        sides, steps, direction = sides[::-1], steps[::-1], _MIRRORED[direction]
    if not steps[0] or steps[1] != 0:
        return None
    start, limit = (state.start(side) for side in sides)
    return None if start is None or limit is None else _count(start, limit, steps[0], direction)


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    """Values of start, start + step ... until the comparison with the limit fails."""
    if direction == "NE":
        trips, rest = divmod(limit - start, step)
        return trips if rest == 0 and trips >= 0 else None
    upwards = direction in ("LT", "LE")
    if upwards != (step > 0):
        return None
    distance = (limit - start) if upwards else (start - limit)
    reached = distance + (direction in ("LE", "GE"))
    return max(0, math.ceil(reached / abs(step)) if reached < 2**50 else -(-reached // abs(step)))


@dataclass(frozen=True, slots=True)
class _LoopCarry:
    """What a loop carries: the value of an element at the start, and what the body adds to it."""

    module: Module
    caller: Computation
    loop: Instruction
    body: Computation

    def start(self, side: Instruction) -> int | None:
        """The value of one side of the comparison when the loop is entered."""
        if side.integer is not None:
            return side.integer
        index = side.element
        initial = _follow(self.caller, self.caller.inputs(self.loop)[0])
        if index is None or initial.opcode != "tuple" or index >= len(initial.operands):
            return None
        return _follow(self.caller, self.caller.inputs(initial)[index]).integer

    def step(self, side: Instruction) -> int | None:
        """What a round adds to it: 0 for a constant or an element that the body hands on."""
        if side.integer is not None:
            return 0
        index = side.element
        root = self.body.root
        if index is None or root.opcode != "tuple" or index >= len(root.operands):
            return None
        return self._added(self.body.inputs(root)[index], index)

    def _added(self, value: Instruction, index: int) -> int | None:
        total = 0
        for _ in range(_FARTHEST):
            value = _follow(self.body, value)
            if value.opcode == "get-tuple-element":
                return total if value.element == index else None
            if value.opcode != "add":
                added = _fused_add(self.module, value)
                rest = self.body.inputs(value)
            else:
                inputs = [_follow(self.body, i) for i in self.body.inputs(value)]
                added = sum(i.integer for i in inputs if i.integer is not None)
                rest = [i for i in inputs if i.integer is None]
            if added is None or len(rest) != 1:
                return None
            total += added
            value = rest[0]
        return None


def _fused_add(module: Module, fusion: Instruction) -> int | None:
    """A scalar fusion of one parameter plus a constant."""
    inner = module.computations.get(fusion.calls("calls") or "")
    if inner is None or inner.root.opcode != "add":
        return None
    values = [_follow(inner, i) for i in inner.inputs(inner.root)]
    constants = [i.integer for i in values if i.integer is not None]
    parameters = [i for i in values if i.opcode == "parameter"]
    return constants[0] if len(constants) == len(parameters) == 1 else None


def _follow(computation: Computation, value: Instruction) -> Instruction:
    """Through copies and the like to where a value is made."""
    for _ in range(_FARTHEST):
        if value.opcode not in _SAME_VALUE or not value.operands:
            return value
        value = computation.inputs(value)[0]
    return value


def loops(found: Mapping[str, Execution]) -> dict[str, tuple[Loop, int | None]]:
    """Every loop with how often its body runs a step, outer loops first."""
    unique: dict[str, tuple[Loop, int | None]] = {}
    for name, execution in found.items():
        if execution.loops and execution.loops[-1].body == name:
            unique[execution.loops[-1].name] = (execution.loops[-1], execution.count)
    return unique
