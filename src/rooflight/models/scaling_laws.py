"""Scaling laws: fits of the loss to parameters and tokens, with the runs they were fitted to.

In: `scaling_laws.toml`. Out: frozen records with source and date. The file ships with the package
and a test checks it, so its form is trusted here.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooflight.hardware.chip import Source

_FILE = Path(__file__).parent / "scaling_laws.toml"

Row = Mapping[str, Any]  # a TOML table: its values are of any TOML type until read


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats per token."""

    name: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: Source

    def loss(self, params: float, tokens: float) -> float:
        """The loss the law predicts; it is a fit, so it says little far from its runs."""
        return self.E + self.A / params**self.alpha + self.B / tokens**self.beta


@dataclass(frozen=True, slots=True)
class Ratio:
    """A rule of thumb: so many tokens for each parameter."""

    name: str
    tokens_per_param: float
    source: Source


@dataclass(frozen=True, slots=True)
class FittedRange:
    """The smallest and largest of the runs that the laws were fitted to."""

    min_params: float
    max_params: float
    min_tokens: float
    max_tokens: float
    source: Source

    def holds(self, params: float, tokens: float) -> bool:
        """Whether a run lies among those."""
        is_known_size = self.min_params <= params <= self.max_params
        return is_known_size and self.min_tokens <= tokens <= self.max_tokens


@dataclass(frozen=True, slots=True)
class ScalingLaws:
    """What is known of how to split compute between parameters and tokens."""

    laws: tuple[ScalingLaw, ...]  # the one to believe first
    rule: Ratio
    fitted: FittedRange


@lru_cache(maxsize=1)
def load_scaling_laws() -> ScalingLaws:
    """Every law, the rule of thumb, and the range they come from.

    >>> [law.name for law in load_scaling_laws().laws]
    ['replication', 'chinchilla', 'printed']
    """
    table = tomllib.loads(_FILE.read_text())
    laws = tuple(ScalingLaw(name=name, **_sourced(row)) for name, row in table["laws"].items())
    rule, fitted = Ratio(**_sourced(table["rule"])), FittedRange(**_sourced(table["range"]))
    return ScalingLaws(laws, rule, fitted)


def _sourced(row: Row) -> dict[str, Any]:
    return dict(row) | {"source": Source("source", **row["source"])}
