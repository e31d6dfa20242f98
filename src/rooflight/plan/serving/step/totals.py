"""`Totals`: a served model known by its totals alone, spread evenly over the chips of a slice.

In: parameters, bytes of the weights and of a token's cache. Out: the bounds of chapters 7 and 8 of
the book, before any layout: what no engine on these chips can beat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from rooflight.costs.roofline import memory_bytes_per_s
from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.plan.serving.step.time import ServingStepTime

if TYPE_CHECKING:  # the book's pages have no numpy
    import numpy as np
    from numpy.typing import NDArray

MOST = 64  # proposals; acceptance that high is no draft but the model itself


@dataclass(frozen=True, slots=True)
class Totals:
    """A model on a slice, every byte and FLOP of it dealt out evenly.

    >>> from rooflight.hardware.slice import parse_slice
    >>> llama = Totals(parse_slice("v5e:4x2"), 13e9, 26e9, 6.7e9 / 8192)
    >>> f"{llama.generate(8, 8192).lower_s * 1e3:.2f} ms", llama.most_sequences(8192)
    ('12.13 ms', 15)
    """

    on: Slice
    params: float
    weight_bytes: float
    kv_bytes_per_token: float = 0.0
    compute: str = "bf16"

    @property
    def flops_per_s(self) -> float:
        return self.on.num_chips * self.on.chip.peak_flops(self.compute)

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.on.num_chips * memory_bytes_per_s(self.on.chip)

    @property
    def hbm_bytes(self) -> int:
        if self.on.chip.hbm_bytes is None:
            raise UsageError(
                f"{self.on.chip.title} has no hbm_bytes in its catalog",
                hint="choose another chip, or add the fact in your own chip file",
            )
        return self.on.num_chips * self.on.chip.hbm_bytes

    def generate(self, batch: float, context: float) -> ServingStepTime:
        """A token for each of `batch` sequences: B KV / W + max(2 B P / C, weights / W).

        Chapter 7; attention has too few FLOPs for its bytes ever to be bound by them. It stops
        holding where collectives take longer than HBM, and where a layout replicates anything.
        """
        matmul_s = 2 * batch * self.params / self.flops_per_s
        weights_s = self.weight_bytes / self.hbm_bytes_per_s
        kv_s = batch * context * self.kv_bytes_per_token / self.hbm_bytes_per_s
        matmuls_s = kv_s + max(matmul_s, weights_s)
        return ServingStepTime(matmul_s, 0.0, weights_s, kv_s, 0.0, matmuls_s, {}, tokens=batch)

    def prefill_s(self, tokens: float, *, mfu: float = 1.0) -> float:
        """A prompt's matmuls with weights at a part `mfu` of the peak: 2 P T / (C mfu) (ch. 8)."""
        return 2 * self.params * tokens / (self.flops_per_s * mfu)

    def held_bytes(self, batch: float, context: float) -> float:
        """Weights, and caches of `batch` sequences."""
        return self.weight_bytes + batch * context * self.kv_bytes_per_token

    def most_sequences(self, context: float) -> int:
        """Whole caches of `context` positions that fit beside the weights."""
        free = self.hbm_bytes - self.weight_bytes
        return max(int(free // (context * self.kv_bytes_per_token)), 0)

    def fewest_chips(self, batch: float, context: float) -> float:
        """Chips that hold weights and caches, as a fraction."""
        return self.held_bytes(batch, context) / (self.hbm_bytes / self.on.num_chips)


def slices_ratio(*, prefill_s: float, step_s: float, output: float, batch: float) -> float:
    """Prefill slices for each generate slice: B t_prefill / (t_step G) (chapter 8).

    A generate slice ends batch / output sequences per step, and each needs one prefill.
    """
    return batch * prefill_s / (step_s * output)


def requests_per_s(*, batch: float, step_s: float, output: float) -> float:
    """Requests that a full batch ends in a second: B / (t_step G) (chapter 8)."""
    return batch / (step_s * output)


def ended_per_step(*, batch: float, output: float) -> float:
    """Sequences that end in a step, when ends are spread evenly: B / G (chapter 8)."""
    return batch / output


def generate_ways(*, inner: float, batch: float, hbm_over_ici: float) -> float:
    """Ways of tensor parallelism at which the network takes as long as HBM: F / (B beta).

    T_ici = 4 B D / W_ici against T_hbm = 4 D F / (Y W_hbm), with beta = W_hbm / W_ici (chapter 7).
    More ways than a compute-bound layer allows; it stops holding once FLOPs bind.

    >>> generate_ways(inner=16384, batch=32, hbm_over_ici=8)
    64.0
    """
    return inner / (batch * hbm_over_ici)


@overload
def tokens_per_round(acceptance: float, ahead: float) -> float: ...
@overload
def tokens_per_round(acceptance: float, ahead: "NDArray[np.float64]") -> "NDArray[np.float64]": ...
def tokens_per_round(
    acceptance: float, ahead: "float | NDArray[np.float64]"
) -> "float | NDArray[np.float64]":
    """Expected tokens of one check: (1 - a^(k+1)) / (1 - a), each accepted alike.

    The first rejected token is replaced by the model's own (arXiv 2211.17192).

    >>> round(tokens_per_round(0.6, 3), 3)
    2.176
    """
    return (1 - acceptance ** (ahead + 1)) / (1 - acceptance)


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft model, or heads of the model itself, that proposes tokens.

    `check_s(q)` is the time of a step of the model with q tokens of each sequence; `draft_s` that
    of one proposal for all sequences (a head that proposes several at once costs its share).
    """

    acceptance: float
    draft_s: float
    check_s: Callable[[int], float]

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance < 1:
            raise UsageError(
                f"an acceptance rate of {self.acceptance:g} is not in [0, 1)",
                hint="give the share of proposals that the model accepts, such as 0.7",
            )

    def tokens(self, ahead: int) -> float:
        """Expected tokens of one check."""
        return tokens_per_round(self.acceptance, ahead)

    def token_s(self, ahead: int) -> float:
        """Seconds for each token of a sequence: k proposals and a check of k + 1 tokens."""
        return (ahead * self.draft_s + self.check_s(ahead + 1)) / self.tokens(ahead)

    @property
    def best(self) -> int:
        """The look-ahead with the fewest seconds per token; 0 is to propose nothing."""
        return min(range(MOST + 1), key=self.token_s)

    @property
    def gain(self) -> float:
        """How many times faster than without proposals."""
        return self.token_s(0) / self.token_s(self.best)
