"""How many bits of a collective carry something: casts just before it and just after it."""

from rooflight.compile.expected.flow import SAME_ELEMENTS, Flow, Place

_CUTS = ("dynamic-slice", "slice", "copy", "bitcast", "reshape", "transpose")
UNKNOWN_BITS = 64  # more than any element has


def bits_before(place: Place) -> int:
    """Bits of the narrowest float that an operand was cast from on its way."""
    computation, value = place
    bits = UNKNOWN_BITS
    value = computation.inputs(value)[0] if value.operands else value
    while value.opcode in SAME_ELEMENTS and value.operands:
        value = computation.inputs(value)[0]
        for shape in value.shapes[:1]:
            if shape.dtype.startswith(("bf", "f")):
                bits = min(bits, shape.bits)
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
