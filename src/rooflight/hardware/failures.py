"""How often chips fail in training, as somebody published it.

In: `failures.toml`. Out: `FailureRate`s with their source. The file ships with the package.
"""

import math
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rooflight.hardware.chip import Source

_FILE = Path(__file__).parent / "failures.toml"
_DAY_HOURS = 24


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Unexpected interruptions of a run, whatever their cause, as counted on some chips."""

    chip: str
    interruptions: int
    days: float
    chips: int
    goodput: float  # the part of the time that made progress, as reported
    source: Source

    @property
    def mtbf_hours(self) -> float:
        """Chip-hours between two interruptions: the mean time between failures of one chip.

        >>> round(load_failure_rates()["h100"].mtbf_hours)
        50677
        """
        return self.chips * self.days * _DAY_HOURS / self.interruptions

    def goodput_on(self, chips: int) -> float:
        """That of a slice of other size: what is lost grows with the root of the failures (Young).

        >>> round(load_failure_rates()["h100"].goodput_on(4096), 3)
        0.95
        """
        return max(0.0, 1 - (1 - self.goodput) * math.sqrt(chips / self.chips))


@lru_cache(maxsize=1)
def load_failure_rates() -> dict[str, FailureRate]:
    """Every published rate, by chip."""
    table = tomllib.loads(_FILE.read_text())
    return {
        chip: FailureRate(
            chip,
            row["interruptions"],
            row["days"],
            row["chips"],
            row["goodput"],
            Source("source", **row["source"]),
        )
        for chip, row in table.items()
    }
