"""The lines of a derived layer that take time, sorted by what prices them, alike ones once.

In: a `DerivedLayer` and what each remat policy recomputes. Out: a `WorkTally` for `forecast.sweep`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rooflight.algebra.notation import Tensor
from rooflight.plan.training.derive.derivation import Derived, DerivedLayer
from rooflight.plan.training.time.parts import WorkKind, has_weight
from rooflight.plan.training.time.sweep import placing

Key = tuple[str, str]  # what is summed, and which part of a layer: "" each time, or a policy
Recomputed = tuple[tuple[str, frozenset[str]], ...]  # the ops that each remat policy recomputes


@dataclass(frozen=True, slots=True)
class WorkTally:
    """The lines of a derivation that take time, those that take the same time once."""

    works: Mapping[str, list[tuple[WorkKind, Derived, int]]]
    casts: list[tuple[Tensor, int]]
    sent: Mapping[Key, list[tuple[Derived, int]]]


@lru_cache(maxsize=2048)
def tally_of(derivation: DerivedLayer, recomputed: Recomputed) -> WorkTally:
    works: dict[str, dict[object, list[Derived]]] = {"": {}}
    sent: dict[Key, dict[object, list[Derived]]] = {}
    read: dict[Tensor, None] = {}

    def add(part: str, line: Derived) -> None:
        step = line.step
        if step.op == "einsum":
            ends = *map(placing, (*step.inputs, step.output)), line.op.mask
            alike = works.setdefault(part, {})
            alike.setdefault((*ends, kind_of(line), has_weight(step)), []).append(line)
        else:
            key = part, _wait(line)
            alike = sent.setdefault(key, {})
            alike.setdefault((step.op, step.axes, placing(step.larger)), []).append(line)

    for line in derivation.spent:
        add("", line)
        if line.step.op == "einsum" and has_weight(line.step):
            read |= dict.fromkeys(t for t in line.step.inputs if not t.name[0].isupper())
    for line in derivation.forward:
        if line.step.op == "einsum" or (line.waits == "critical" and line.step.op != "slice"):
            for name, names in recomputed:
                if line.op.name in names:
                    add(name, line)
    casts: dict[object, list[Tensor]] = {}
    for tensor in read:
        casts.setdefault(placing(tensor), []).append(tensor)
    return WorkTally(
        {p: [(kind_of(x[0]), x[0], len(x)) for x in by.values()] for p, by in works.items()},
        [(alike[0], len(alike)) for alike in casts.values()],
        {key: [(x[0], len(x)) for x in by.values()] for key, by in sent.items()},
    )


def kind_of(line: Derived) -> WorkKind:
    if line.op.name.startswith("experts."):
        return "experts"
    return "matmul" if has_weight(line.step) else "attention"


def _wait(line: Derived) -> str:
    if line.once:
        return "once"
    if line.waits != "critical":
        return "weights"
    return "experts" if line.step.op in ("all_to_all", "permute") else "activations"


def really_sent(line: Derived, chip_kind: str) -> tuple[str, ...]:
    """What a collective becomes: on a host sums are whole, see `traffic.sent_on_a_host`."""
    op = line.step.op
    if chip_kind != "cpu" or op not in ("reduce_scatter", "all_reduce"):
        return (op,)
    is_gathered = op == "all_reduce" and line.waits != "critical"
    return ("all_reduce", "all_gather") if is_gathered else ("all_reduce",)
