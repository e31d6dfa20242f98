"""`Adapters`: LoRA adapters beside a served model, a pair of narrow matmuls at each of its weights.

In: how many, their rank, how many HBM has at once. Out: words, JSON, and which weights have one. At
W [d_in, d_out] an adapter is A [d_in, rank] and B [rank, d_out], both in the dtype of activations
and split as W is: a chip has rank * (d_in + d_out) elements of its part of W. Targets are all
linear layers of attention, MLPs and shared experts; not routed experts, routers, embedding, head.
"""

from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.models.graph.ops import Op
from rooflight.models.spec import ModelSpec
from rooflight.units import many

TARGETS = ("attention", "mlp", "shared")
RANK, MOST_ADAPTERS, MOST_RANK = 16, 100_000, 512


@dataclass(frozen=True, slots=True)
class Adapters:
    """Requests choose among `count`, each as often; HBM has room for `resident` of them."""

    count: int
    rank: int = RANK
    resident: int = 0  # slots in HBM; 0: as many as there are

    @property
    def slots(self) -> int:
        return self.resident or self.count

    def __str__(self) -> str:
        held = f", {self.slots} of them in HBM at once (waiting for a slot is not priced)"
        held = held if self.slots < self.count else ""
        return (
            f"{many(self.count, 'LoRA adapter')} of rank {self.rank}{held}; no measured row has any"
        )

    @property
    def document(self) -> dict[str, int]:
        """As JSON."""
        return {"count": self.count, "rank": self.rank, "resident": self.slots}

    def check(self, model: ModelSpec) -> None:
        """Raises for a model whose projections are not what adapters are made for."""
        if any(block.attention.latent for block in model.blocks):
            raise UsageError(
                f"LoRA adapters of {model.name}: those of latent attention are not modelled",
                hint="leave out --adapters, or take a model whose cache has heads",
            )


def is_target(op: Op) -> bool:
    """True of a matmul with weights that adapters have a pair for."""
    return op.part in TARGETS and op.kind == "matmul" and bool(op.params)
