"""Generate steps that others have measured and published, beside our bounds of them.

In: `published_decode.toml`. Out: `PublishedStep`s. Layout and dtypes of the cache are those that
read least: the sources leave them open, and a lower bound must not assume too much.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from rooflight.models.presets import load_model
from rooflight.plan.serving.step.derive_model import known_model
from rooflight.plan.serving.step.layout import parse_precision, parse_serving_layout
from rooflight.plan.serving.step.time import ServingStepTime

_FILE = Path(__file__).parent / "published_decode.toml"


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One row of a published table."""

    model: str
    on: str
    layout: str
    dtypes: str
    batch: int
    context: int
    tokens_per_s: float  # of one sequence

    @property
    def measured_s(self) -> float:
        return 1 / self.tokens_per_s

    @property
    def step(self) -> ServingStepTime:
        """What the catalog's rates allow, uncalibrated."""
        found = known_model(
            load_model(self.model),
            self.on,
            parse_serving_layout(self.layout),
            parse_precision(self.dtypes),
        )
        return found.generate([self.context] * self.batch)


def published_steps() -> tuple[PublishedStep, ...]:
    """Every row of the file, in order."""
    return tuple(PublishedStep(**row) for row in tomllib.loads(_FILE.read_text())["rows"])
