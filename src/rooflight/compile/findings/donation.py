"""Arguments that a step returns updated without donating them: old and new are held at once.

In: a partitioned step, its arguments, and where its results are in the tree that it returns. Out:
a finding for each parameter of the function, such as the state of training or the KV cache.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rooflight.compile.aot.arguments import Argument
from rooflight.compile.expected.flow import ELEMENTWISE, SAME_ELEMENTS, Flow, Place
from rooflight.compile.findings.finding import Finding
from rooflight.compile.hlo.instruction import Instruction
from rooflight.compile.hlo.step import CompiledStep
from rooflight.units import format_count

_IN_PLACE = ("dynamic-update-slice", "scatter")
_HANDED_ON = (
    *(*ELEMENTWISE, *SAME_ELEMENTS, *_IN_PLACE),
    *("dynamic-slice", "slice", "get-tuple-element", "parameter", "call"),
)
_ROOT = re.compile(r"^\w+")
_MOST = 4096


def find_updates(
    step: CompiledStep, arguments: Sequence[Argument], results: Sequence[str]
) -> dict[str, str]:
    """Name of every argument that is returned updated and is not donated -> the line that does it.

    A result is an update if it has the argument's place in the tree, or is written into it.
    """
    flow, module = Flow(step.module), step.module
    entry = module.computations[module.entry]
    returned = entry.inputs(entry.root) if entry.root.opcode == "tuple" else [entry.root]
    paths = results if len(results) == len(returned) else [""] * len(returned)
    names = {a.name for a in arguments}
    found: dict[str, str] = {}
    for result, path in zip(returned, paths, strict=True):
        for origin, is_in_place in _origins(flow, (entry, result)):
            name = origin.op_name.replace("\\", "")
            leaf = _ROOT.sub("", name)
            is_same = is_in_place or (leaf and path.endswith(leaf))
            if origin.shapes == result.shapes and is_same and name in names - found.keys():
                if int(origin.body) not in module.donated:
                    found[name] = module.source(result)
                break
    return found


def _origins(flow: Flow, place: Place) -> Iterator[tuple[Instruction, bool]]:
    """Arguments that a value is made from element by element, and whether any is written into.

    Not by the backward pass: a gradient of weight decay has the weight in it, and is no update.
    """
    waiting, seen = [(place, False)], {place[1].name}
    if place[1].opcode == "parameter":
        return
    while waiting and len(seen) < _MOST:
        (computation, value), in_place = waiting.pop()
        if value.opcode == "parameter" and computation.name == flow.module.entry:
            yield value, in_place
            continue
        if value.opcode not in _HANDED_ON or flow.is_backward((computation, value)):
            continue
        for before in flow.made_from((computation, value)):
            if before[1].name not in seen:
                seen.add(before[1].name)
                waiting.append((before, in_place or value.opcode in _IN_PLACE))


def undonated_findings(
    updates: Mapping[str, str], arguments: Iterable[Argument]
) -> Iterator[Finding]:
    """One finding for all leaves of a parameter, at the line of the largest."""
    trees: dict[str, list[Argument]] = {}
    for argument in arguments:
        if argument.name in updates:
            trees.setdefault(argument.root, []).append(argument)
    for root, leaves in trees.items():
        arrays = f", {format_count(len(leaves))} arrays," if len(leaves) > 1 else ""
        yield Finding(
            "not_donated",
            f"{root}{arrays} is returned updated and not donated: old and new are held at once",
            None,
            sum(leaf.device_bytes for leaf in leaves),
            updates[max(leaves, key=lambda leaf: leaf.device_bytes).name],
            f"jax.jit(..., donate_argnames='{root}'): it is then updated in place",
        )
