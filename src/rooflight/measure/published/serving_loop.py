"""The closed loop of a serving benchmark: so many clients, each sends its next request at once.

In: parts of many rows as arrays, and constants. Out: the time a token takes and the time to the
first one. With the step of n sequences of `plan.serving.step.calibrated`:

    token = step + interference * n / output * prompt      where prompts share the engine
    n     = batch * (output * token) / (prompt + output * token)    those that are not in prefill
    first = request + prompt * (1 + burst * (n - 1)) + token + (batch / n - 1) * output * token

and n is at most what the memory holds: a client without a place waits for another to finish. It
stops holding where requests do not come at once: then queues decide (`plan.serving.simulate.run`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rooflight.hardware.calibration import Constant
from rooflight.hardware.serving_calibration import serving_constants
from rooflight.plan.serving.step.calibrated import (
    Floats,
    GenerateParts,
    PromptParts,
    Values,
    generate_s,
    prompt_s,
)

_ROUNDS = 4  # of the fixed point; the third changes less than 0.1 %


class Loads(NamedTuple):
    """What each row's engine is asked to do."""

    room: Floats  # sequences whose caches fit
    batch: Floats
    output: Floats
    is_disaggregated: Floats


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """What a benchmark of each row would report: of a token, or to the first one."""

    total: Floats
    rows: Floats  # sequences that generate at a time


@dataclass(frozen=True, slots=True)
class ServingTable:
    """The parts of many rows, and their loads, as arrays."""

    step: GenerateParts
    prompt: PromptParts
    loads: Loads
    first_s: Floats  # measured, to the first token; 0 where nobody says

    @property
    def constants(self) -> Mapping[str, Constant]:
        """The constants that serving depends on."""
        return serving_constants()

    @property
    def roof(self) -> Values:
        """The values at which the catalog alone answers: every roof reached, nothing beside."""
        times = {c.name for c in self.constants.values() if c.is_time}
        return {name: 0.0 if name in times else 1.0 for name in self.constants}

    def take(self, chosen: npt.NDArray[np.bool_]) -> "ServingTable":
        """The table of some of the rows."""
        return ServingTable(
            GenerateParts(*(column[chosen] for column in self.step)),
            PromptParts(*(column[chosen] for column in self.prompt)),
            Loads(*(column[chosen] for column in self.loads)),
            self.first_s[chosen],
        )

    def seconds(self, values: Values) -> LoopTimes:
        """Solves the loop of every row with the same constants."""
        return loop_times(self, values)


def serving_table(parts: Sequence[ServingTable]) -> ServingTable:
    """The rows of several tables in one."""
    return ServingTable(
        GenerateParts(*map(np.concatenate, zip(*(p.step for p in parts), strict=True))),
        PromptParts(*map(np.concatenate, zip(*(p.prompt for p in parts), strict=True))),
        Loads(*map(np.concatenate, zip(*(p.loads for p in parts), strict=True))),
        np.concatenate([p.first_s for p in parts]),
    )


def loop_times(table: ServingTable, values: Values) -> LoopTimes:
    """Solves the loop for every row at once."""
    columns = table.loads
    held = np.minimum(columns.batch, columns.room)
    together = 1 - columns.is_disaggregated
    own_s = prompt_s(table.prompt, values)
    rows, token_s = held, own_s
    for _ in range(_ROUNDS):
        rows = np.maximum(rows, 1.0)
        step_s = generate_s(table.step, values, rows)
        shared = together * values["interference"] * rows / columns.output
        token_s = step_s + shared * own_s
        busy = columns.output * token_s
        rows = held * busy / (together * (own_s + step_s) + busy)
    return LoopTimes(token_s, rows)
