"""Times to the first token: how the rows are priced to which their constants are fitted.

In: rows whose time per token is known. Out: `FirstTokenTable`, which a fit prices again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rooflight.hardware.calibration import Constant, calibration_constants
from rooflight.hardware.serving_calibration import FIRST_TOKEN_FOLDER
from rooflight.measure.published.replay import CaseSet
from rooflight.measure.published.serving_loop import LoopTimes, ServingTable
from rooflight.plan.serving.step.calibrated import Floats, Values, first_prompt_s


@dataclass(frozen=True, slots=True)
class FirstTokenTable:
    """Rows whose time per token is known, priced for their first token."""

    rows: ServingTable
    token_s: Floats

    @property
    def constants(self) -> Mapping[str, Constant]:
        return calibration_constants(FIRST_TOKEN_FOLDER)

    @property
    def roof(self) -> Values:
        return {"prefill": 1.0, "request": 0.0, "burst": 0.0}

    def take(self, chosen: npt.NDArray[np.bool_]) -> "FirstTokenTable":
        return FirstTokenTable(self.rows.take(chosen), self.token_s[chosen])

    def seconds(self, values: Values) -> LoopTimes:
        """Its own prompt after those of a burst, and where the batch has no room, for a place."""
        loads = self.rows.loads
        held = np.minimum(loads.batch, loads.room)
        own_s = first_prompt_s(self.rows.prompt, values) * (1 + values["burst"] * (held - 1))
        waits_s = (loads.batch / held - 1) * loads.output * self.token_s
        return LoopTimes(values["request"] + own_s + self.token_s + waits_s, held)


def first_token_cases(asked: CaseSet, token_s: Floats) -> CaseSet:
    """The rows that say their time to the first token, given what is said of a token's.

    Not where prompts are computed by other workers, whose number rows seldom say, nor where the
    weights leave no room for a second sequence: such a row misstates its GPUs.
    """
    table = asked.table
    assert isinstance(table, ServingTable)
    chosen = (table.first_s > 0) & (table.loads.is_disaggregated == 0) & (table.loads.room > 1)
    rows = zip(asked.cases, table.first_s, chosen, strict=True)
    cases = tuple(replace(case, measured_s=float(s)) for case, s, is_kept in rows if is_kept)
    return CaseSet(cases, (), FirstTokenTable(table.take(chosen), token_s[chosen]))
