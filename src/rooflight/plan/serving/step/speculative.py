"""Speculative decoding and multi-token prediction: proposed tokens, checked all at once.

In: how often a proposal is accepted, the seconds of proposing and of checking. Out: seconds for
each token, and the look-ahead that makes them fewest.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rooflight.errors import UsageError

MOST = 64  # proposals; acceptance that high is no draft but the model itself


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
        """Expected tokens of one check: (1 - a^(k+1)) / (1 - a), each accepted alike.

        The first rejected proposal is replaced by the model's own token (arXiv 2211.17192).

        >>> round(Speculation(0.6, 0.0, lambda q: 1.0).tokens(3), 3)
        2.176
        """
        a = self.acceptance
        return (1 - a ** (ahead + 1)) / (1 - a)

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
