"""What a program that scans its layers holds for a moment: the fuller one of two.

    the loss      the head's table as gathered and its gradient before the scatter; some logits
    the layers    gradients of all layers, stacked as the scan leaves them; the gathered weights of
                  one layer and as much of gradients before their scatter; its backward pass

The first comes before the second has begun. In: what was sized for a stage. Out: `Part`s.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from rooflight.plan.in_flight import loss_dtypes
from rooflight.plan.job import Job
from rooflight.plan.sized import Sized
from rooflight.records import Part
from rooflight.units import format_si


@dataclass(frozen=True, slots=True)
class _Moment:
    name: str
    stacked: int
    gathered: int
    workspace: int

    @property
    def nbytes(self) -> int:
        return self.stacked + self.gathered + self.workspace


def scanned_parts(
    job: Job, sized: Sized, layers: dict[int, int], *, has_head: bool
) -> tuple[Part, ...]:
    """Of a stage that has so many `layers` of each block."""
    moments = [_layers(sized, layers, has_head=has_head)]
    moments += [_loss(job, sized)] if has_head else []
    most, *rest = sorted(moments, key=lambda moment: -moment.nbytes)
    others = "".join(f"; {m.name} takes {format_si(m.nbytes, 'B')} in all" for m in rest)
    recipe = job.recipe
    stacked = f"{recipe.weights.name}, of all layers until the optimizer takes them"
    what = {"the loss": "the table of the head and its gradient"}
    gathered = what.get(most.name, "a layer's weights and their gradients before the scatter")
    return (
        Part("stacked gradients", most.stacked, stacked if most.stacked else "after the loss"),
        Part("gathered weights", most.gathered, f"{recipe.compute.name}: {gathered}"),
        Part("workspace", most.workspace, f"{_work(job, most)}{others}"),
    )


def _work(job: Job, moment: _Moment) -> str:
    if moment.name != "the loss":
        return "a layer in its backward pass"
    dtypes = " + ".join(d.name for d in loss_dtypes(job))
    return f"logits of up to {job.framework.loss_tokens} tokens at the loss ({dtypes})"


def _layers(sized: Sized, layers: dict[int, int], *, has_head: bool) -> _Moment:
    ends = ("head", "tied") if has_head else ()
    stacked = sum(n * _weights(sized, b) for b, n in layers.items())
    stacked += sum(_weights(sized, end) for end in ends)
    gathered = max((sum(g.nbytes for g in sized.gathered[b]) for b in layers), default=0)
    return _Moment("a layer", stacked, 2 * gathered, _most(sized.backward[b] for b in layers))


def _loss(job: Job, sized: Sized) -> _Moment:
    table = sum(g.nbytes for g in sized.gathered["head"])
    tokens = job.tokens_of_a_chip
    some = min(1.0, job.framework.loss_tokens / tokens) if job.framework.loss_tokens else 1.0
    return _Moment("the loss", 0, table + sized.head_gradient, ceil(some * sized.loss))


def _weights(sized: Sized, key: int | str) -> int:
    return sized.state[key][0]


def _most(sizes: Iterable[int]) -> int:
    return max(sizes, default=0)
