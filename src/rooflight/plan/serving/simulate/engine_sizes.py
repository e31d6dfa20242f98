"""`AskedSizes`: the rows and tokens of a step, as an operator says or as the engine has them.

In: an engine and a chip. Out: `SchedulerLimits`. Engines without a published budget, and any
engine, have that of vLLM on a GPU, and a plain one elsewhere.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any  # TOML

from rooflight.hardware.chip import Chip
from rooflight.plan.serving.simulate.setup import SchedulerLimits

_FILE = Path(__file__).with_name("engine_sizes.toml")
_COMMON = "vllm"


@dataclass(frozen=True, slots=True)
class AskedSizes:
    """None is left to the engine; one that is given moves the other where it must."""

    rows: int | None = None
    step_tokens: int | None = None

    def on(self, chip: Chip, engine: str | None) -> SchedulerLimits:
        """
        >>> from rooflight.hardware.catalog import load_chip
        >>> sizes = AskedSizes().on(load_chip("h100"), "vllm")
        >>> sizes.max_rows, sizes.max_step_tokens
        (1024, 8192)
        """
        own = engine_sizes(chip, engine)
        rows = self.rows or min(own.max_rows, self.step_tokens or own.max_step_tokens)
        return SchedulerLimits(rows, self.step_tokens or max(own.max_step_tokens, rows))


def engine_sizes(chip: Chip, engine: str | None) -> SchedulerLimits:
    """What an engine does on a chip unless told otherwise."""
    table = _table()
    for line in table.get(engine or _COMMON, table[_COMMON])["sizes"]:
        is_large = (chip.hbm_bytes or 0) >= line.get("hbm_from", 0)
        if chip.kind == line["kind"] and is_large and chip.name not in line.get("but", ()):
            return SchedulerLimits(line["rows"], line["step_tokens"])
    return SchedulerLimits()


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
