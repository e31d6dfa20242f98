"""Where values of a module come from and where they go, through loops and calls.

In: a `Module`. Out: the argument a value is a part of, the instructions that use it, the loop
that only adds it up. Followed by name, so one pass over the module is enough.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rooflight.compile.hlo.instruction import Computation, Instruction, Module

_CUTS = ("dynamic-slice", "slice", "copy", "bitcast", "reshape", "transpose")
UNKNOWN_BITS = 64  # more than any element has

Place = tuple[Computation, Instruction]

SAME_ELEMENTS = ("copy", "bitcast", "reshape", "transpose", "convert", "opt-barrier")
_PARTS = ("dynamic-slice", "slice")
ELEMENTWISE = (
    *("add", "subtract", "multiply", "divide", "select", "maximum", "minimum", "clamp", "negate"),
    *("power", "sqrt", "rsqrt", "exponential", "logistic", "tanh", "erf"),
)
WORKED = (*SAME_ELEMENTS, *ELEMENTWISE)
_HANDED_ON = (*SAME_ELEMENTS, *_PARTS, "tuple", "negate", "multiply", "divide", "pad")
_TO_LOOP = (*_HANDED_ON, "dynamic-update-slice", "get-tuple-element")
_COMPUTED_ON = (
    *(*WORKED, *_PARTS),
    *("concatenate", "pad", "call", "get-tuple-element", "compare", "and"),
    *("all-gather", "all-to-all", "collective-permute"),
)
_MOST = 4096  # values to look at from one start


@dataclass(slots=True)
class Flow:
    """The users and callers of a module, by name."""

    module: Module
    users: dict[str, dict[str, list[Instruction]]] = field(init=False)
    callers: dict[str, Place] = field(init=False)

    def __post_init__(self) -> None:
        self.users, self.callers = {}, {}
        for computation in self.module.computations.values():
            users = self.users.setdefault(computation.name, {})
            for instruction in computation.instructions:
                for operand in instruction.operands:
                    users.setdefault(operand, []).append(instruction)
                for name in instruction.called:
                    self.callers.setdefault(name, (computation, instruction))

    def argument_of(self, place: Place) -> Instruction | None:
        """The argument of the program that a value is, or is a part of; None if it was computed.

        What a loop carries is what it began with if every round hands it on.
        """
        for _ in range(_MOST):
            computation, value = place
            if value.opcode == "parameter" and computation.name == self.module.entry:
                return value
            if value.opcode not in (*SAME_ELEMENTS, *_PARTS, "get-tuple-element", "parameter"):
                return None
            before = self.made_from(place)
            index = value.element
            rounds = [source_of(*last) for last in before[1:]] if index is not None else []
            if not before or any(last.element != index for last in rounds):
                return None
            place = before[0]
        return None

    def is_backward(self, place: Place) -> bool:
        """Whether the backward pass makes a value: it, or a call around it, is named so."""
        computation, value = place
        for _ in range(_MOST):
            if "transpose(" in value.op_name:
                return True
            if computation.name not in self.callers:
                return False
            computation, value = self.callers[computation.name]
        return False

    def is_conditional(self, name: str) -> bool:
        """Whether a computation runs only if a condition holds."""
        while name in self.callers:
            computation, call = self.callers[name]
            if call.opcode == "conditional":
                return True
            name = computation.name
        return False

    def _given(self, computation: Computation, value: Instruction) -> Place | None:
        """What a call hands to a parameter."""
        place = self.callers.get(computation.name)
        if place is None or place[1].opcode != "call" or not value.body.isdecimal():
            return None
        operands = place[0].inputs(place[1])
        at = int(value.body)
        return (place[0], operands[at]) if at < len(operands) else None

    def made_from(self, place: Place) -> list[Place]:
        """The values that one is made from, in loops and calls and out of them; all that may be."""
        computation, value = place
        if value.opcode == "parameter":
            given = self._given(computation, value)
            return [given] if given else []
        if value.opcode == "call":
            return [(c, c.root) for n in value.called if (c := self.module.computations.get(n))]
        index = value.element
        if index is None:
            return [(computation, before) for before in computation.inputs(value)]
        whole = computation.inputs(value)[0]
        while whole.opcode == "opt-barrier":
            whole = computation.inputs(whole)[0]
        caller = self.callers.get(computation.name)
        if whole.opcode == "parameter" and caller and caller[1].opcode == "while":
            computation, whole = caller
        ends = [(computation, whole)]
        if whole.opcode == "while":
            body = self.module.computations[whole.calls("body") or ""]
            ends = [(computation, computation.inputs(whole)[0]), (body, body.root)]
        elif whole.opcode == "call":
            ends = self.made_from((computation, whole))
        tuples = [end for end in ends if end[1].opcode == "tuple"]
        return [before for end in tuples if (before := _operand(*end, index))]

    def cast_up(self, place: Place) -> Place | None:
        """The cast that made a value wide, if all of it was cast up and no more than computed on.

        What is broadcast, such as a scale or the sums of a norm, is no part of it.
        """
        waiting, seen, found = [place], {place[1].name}, None
        while waiting and len(seen) < _MOST:
            computation, value = waiting.pop()
            if value.opcode in ("broadcast", "constant", "iota"):
                continue
            if value.opcode == "convert" and _float_bits(computation.inputs(value)[0]) < 32:
                found = (computation, value)
                continue
            if value.opcode not in _COMPUTED_ON:
                return None
            before = [p for p in self.made_from((computation, value)) if p[1].name not in seen]
            seen |= {p[1].name for p in before}
            waiting += before
        return found

    def computed_from(self, place: Place, also: str = "all-reduce") -> Iterator[Place]:
        """What a value is made from element by element, or by a sum over devices."""
        waiting, seen = [place], {place[1].name}
        while waiting and len(seen) < _MOST:
            at = waiting.pop()
            yield at
            if at is place or at[1].opcode in (*WORKED, also):
                before = [p for p in self.made_from(at) if p[1].name not in seen]
                seen |= {p[1].name for p in before}
                waiting += before

    def uses(self, place: Place, through: tuple[str, ...] = SAME_ELEMENTS) -> list[Place]:
        """The instructions that use the elements of a value, whatever their shape and dtype."""
        walk = self._walk(place, lambda user: user.opcode in through)
        return [(c, user) for c, user in walk if user.opcode not in through]

    def hands_on(self, place: Place, through: tuple[str, ...] = SAME_ELEMENTS) -> list[Place]:
        """The instructions that only give the elements of a value another shape or dtype.

        With `WORKED`, also those that work on it element by element, and what they hand on.
        """
        walk = self._walk(place, lambda user: user.opcode in through)
        return [(c, user) for c, user in walk if user.opcode in through]

    def handed_on(self, place: Place) -> Instruction:
        """What becomes of a value before it is used: the last to give it a shape or a dtype."""
        return (self.hands_on(place) or [place])[-1][1]

    def accumulated_in(self, place: Place) -> Instruction | None:
        """The loop around a value whose rounds only add it to what they carry."""
        for computation, user in self._walk(place, lambda user: user.opcode in _TO_LOOP):
            if user.opcode == "add" and (loop := self._accumulates(computation, user)):
                return loop
        return None

    def _accumulates(self, computation: Computation, add: Instruction) -> Instruction | None:
        caller = self.callers.get(computation.name)
        if caller is None or caller[1].opcode != "while" or computation.root.opcode != "tuple":
            return None
        for side in computation.inputs(add):
            carried = source_of(computation, side)
            index = carried.element
            if index is None or len(self.users[computation.name].get(carried.name, ())) != 1:
                continue
            last = _operand(computation, computation.root, index)
            if last and source_of(*last) is add:
                return caller[1]
        return None

    def _walk(self, place: Place, goes_on: Callable[[Instruction], bool]) -> Iterator[Place]:
        """Users of a value, and of those that `goes_on` names, out of loops and calls too."""
        waiting, seen = [place], {place[1].name}
        while waiting and len(seen) < _MOST:
            computation, value = waiting.pop()
            following = [(computation, u) for u in self.users[computation.name].get(value.name, ())]
            if value.opcode == "tuple" or value is computation.root:
                following = self._outside(computation, value, seen)
            for user in following:
                if user[1].name in seen:
                    continue
                seen.add(user[1].name)
                yield user
                if goes_on(user[1]) or user[1] is user[0].root:
                    waiting.append(user)

    def _outside(self, computation: Computation, value: Instruction, seen: set[str]) -> list[Place]:
        """Where the caller takes elements of a root that were reached."""
        caller = self.callers.get(computation.name)
        if value is not computation.root or caller is None:
            users = self.users[computation.name].get(value.name, ())
            return [(computation, u) for u in users if u.opcode != "while"]
        outer, call = caller
        taken = self.users[outer.name].get(call.name, ())
        if value.opcode != "tuple":
            return [(outer, u) for u in taken]
        reached = {at for at, name in enumerate(value.operands) if name in seen}
        return [(outer, u) for u in taken if u.element in reached]


def _operand(computation: Computation, whole: Instruction, index: int) -> Place | None:
    inputs = computation.inputs(whole)
    return (computation, inputs[index]) if index < len(inputs) else None


def source_of(computation: Computation, value: Instruction) -> Instruction:
    """Through copies and the like to where a value is made."""
    while value.opcode in SAME_ELEMENTS and value.operands:
        value = computation.inputs(value)[0]
    return value


def _float_bits(value: Instruction) -> int:
    kinds = [s for s in value.shapes[:1] if s.dtype.startswith(("bf", "f"))]
    return kinds[0].bits if kinds else UNKNOWN_BITS


def bits_before(place: Place) -> int:
    """Bits of the narrowest float that an operand was cast from on its way."""
    computation, value = place
    bits = UNKNOWN_BITS
    value = computation.inputs(value)[0] if value.operands else value
    while value.opcode in SAME_ELEMENTS and value.operands:
        value = computation.inputs(value)[0]
        bits = min(bits, _float_bits(value))
    return bits


def bits_after(flow: Flow, place: Place) -> int:
    """Bits of the widest that users want, if all of them cast first."""
    computation, value = place
    users = flow.users[computation.name].get(value.name, [])
    while len(users) == 1 and users[0].opcode in _CUTS:
        users = flow.users[computation.name].get(users[0].name, [])
    if not users or any(u.opcode != "convert" for u in users):
        return UNKNOWN_BITS
    return max(s.bits for u in users for s in u.shapes)


def leak_of(flow: Flow, computation: Computation, dot: Instruction) -> Place | None:
    """The cast that makes a matmul wide, if neither side of it was wide before."""
    sides = [(computation, side) for side in computation.inputs(dot)]
    wide = [flow.cast_up(side) for side in sides if _float_bits(side[1]) >= 32]
    return wide[0] if wide and all(wide) and not flow.is_backward((computation, dot)) else None


def is_summed(computation: Computation, dot: Instruction, gathered: Instruction) -> bool:
    """Whether the dim that was gathered is one that a matmul sums over, or may be one."""
    dim = re.search(r"\bdimensions=\{(\d+)\}", gathered.attributes)
    side = "rl"[dot.operands[0] == gathered.name]
    summed = re.search(rf"\b{side}hs_contracting_dims=\{{([\d,]*)\}}", dot.attributes)
    is_plain = gathered in computation.inputs(dot)
    return not is_plain or dim is None or summed is None or dim[1] in summed[1].split(",")


def other_bytes(computation: Computation, dot: Instruction, value: Instruction) -> int:
    """Bytes of the operand of a matmul that a value is not."""
    sides = [i for i in computation.inputs(dot) if source_of(computation, i) is not value]
    return sum(side.nbytes for side in sides)
