"""What the program of a plan is known to hold differently from the plan, by term.

In: a `Plan`. Out: `Term`s: bytes on one device as planned and as the program is written. The rest
of a difference in memory is the compiler's own: its schedule, its copies, its padding.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.records import Plan
from rooflight.verify.expect import expected_weights, kept_gathers, setting_of

_KEEPS_MASTER = ("bf16", "f16")
_MOMENTS = 2  # of Adam, in fp32


@dataclass(frozen=True, slots=True)
class Term:
    """One component; `because` says why the two differ, "" if they do not."""

    name: str
    planned_bytes: int
    program_bytes: int
    because: str


def terms(plan: Plan) -> tuple[Term, ...]:
    """The terms that follow from how the program is written."""
    planned = {part.name: part.nbytes for part in plan.memory.parts}
    return tuple(
        Term(name, planned.get(name, 0), nbytes, because if nbytes != planned.get(name, 0) else "")
        for name, nbytes, because in _terms(plan)
    )


def _terms(plan: Plan) -> Iterator[tuple[str, int, str]]:
    weights, stored = setting_of(plan).weights, sum(expected_weights(plan).values())
    wide = stored * 4 // weights.nbytes(1)
    master = wide if weights.name in _KEEPS_MASTER else 0
    yield "weights", stored, "not known"
    yield "master weights", master, f"the program keeps them in fp32, recipe {plan.recipe} does not"
    yield (
        "optimizer moments",
        _MOMENTS * wide,
        f"zero {plan.zero} splits them over the data axes, the program does not",
    )
    yield (
        "gathered weights",
        kept_gathers(plan),
        f"with remat {plan.remat} the program keeps what it gathered for the backward pass",
    )
