"""`ServingStepTime`: the seconds of one engine step by what they are spent on, and what binds.

In: the terms of a step, added up. Out: three times.

    lower      everything overlaps: the slowest of matrix unit, HBM and network; activations may
               stay on the chip between matmuls, so HBM has weights and caches alone
    expected   matmuls in turn, each at its slower roof, then every collective (nothing of a
               token's way hides it), then the overhead of a step
    upper      nothing overlaps at all
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.errors import ModelError

_ROUNDING = 1e-9
ON_CHIP = ("weights", "KV cache", "activations", "matmul FLOPs", "attention FLOPs")  # of `parts`


@dataclass(frozen=True, slots=True)
class ServingStepTime:
    """Seconds on one chip of the slowest pipeline stage, times the stages."""

    matmul_s: float  # the matrix unit, on matmuls with weights
    attention_s: float  # the matrix unit, on queries, keys and values
    weights_s: float  # HBM: weights, of experts those that tokens visit
    kv_s: float  # HBM: keys and values, by true length
    activations_s: float  # HBM: everything else
    matmuls_s: float  # every matmul in turn at its slower roof
    axes_s: Mapping[str, float]  # collectives by the mesh axes they run over
    overhead_s: float = 0.0  # a named constant of a step; 0 where nobody has measured it
    tokens: float = 1.0  # that the step hands to users
    latency_s: float = 0.0  # of `axes_s`, the part that does not grow with the tokens
    num_matmuls: int = 0  # one after another, layer by layer
    num_collectives: int = 0

    def __post_init__(self) -> None:
        busiest = max(self.flops_s, self.hbm_s, self.network_s)
        if busiest > self.expected_s * (1 + _ROUNDING):
            raise ModelError(
                f"a step of {self.expected_s:.4g} s keeps a part of the chip busy for"
                f" {busiest:.4g} s: a utilisation above 100 %",
                hint="this is a bug in the cost model; report the model, the layout and the chip",
            )

    @property
    def flops_s(self) -> float:
        return self.matmul_s + self.attention_s

    @property
    def hbm_s(self) -> float:
        return self.weights_s + self.kv_s + self.activations_s

    @property
    def network_s(self) -> float:
        return sum(self.axes_s.values())

    @property
    def lower_s(self) -> float:
        """Axes of different links side by side, and everything at once."""
        return max(self.flops_s, self.weights_s + self.kv_s, *self.axes_s.values())

    @property
    def expected_s(self) -> float:
        return self.matmuls_s + self.network_s + self.overhead_s

    @property
    def upper_s(self) -> float:
        return self.flops_s + self.hbm_s + self.network_s + self.overhead_s

    @property
    def parts(self) -> dict[str, float]:
        """What could bind, with its seconds."""
        return {
            "weights": self.weights_s,
            "KV cache": self.kv_s,
            "activations": self.activations_s,
            "matmul FLOPs": self.matmul_s,
            "attention FLOPs": self.attention_s,
            **{f"network over {a}": s for a, s in self.axes_s.items()},
            "step overhead": self.overhead_s,
        }

    @property
    def binds(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name])

    @property
    def mfu(self) -> float:
        """The matrix unit's part of the expected time; never above 1."""
        return self.flops_s / self.expected_s if self.expected_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.expected_s if self.expected_s else 0.0
