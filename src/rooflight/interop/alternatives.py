"""An alternative of a plan as the plan: what was decided, not its time or memory."""

import re
from dataclasses import replace

from rooflight.errors import ParseError, UsageError
from rooflight.plan.file.record import Plan

_SCHEDULE = re.compile(
    r"(?:([\w-]+), (\d{1,6})(?: x (\d{1,6}))? stages, )?(?:(\d{1,9}) microbatches)?"
)


def row_of_plan(plan: Plan, row: int) -> Plan:
    """A row of the table that `plan train` prints: 1 is the plan, its alternatives follow."""
    if not 1 <= row <= len(plan.alternatives) + 1:
        raise UsageError(
            f"row {row} must be one of the {len(plan.alternatives) + 1} of the plan",
            hint="1 is the plan itself, its alternatives follow as `rooflight plan train` has them",
        )
    if row == 1:
        return plan
    other = plan.alternatives[row - 2]
    match = _SCHEDULE.fullmatch(other.schedule)
    if match is None:
        raise ParseError(
            f"schedule {other.schedule!r} must be as `1f1b, 4 stages, 32 microbatches`",
            hint="give the file that the verb plan wrote",
        )
    return replace(
        plan,
        layout=other.layout,
        mesh=other.mesh,
        remat=other.remat,
        schedule=match[1],
        stages=int(match[2] or 1),
        virtual=int(match[3] or 1),
        microbatches=int(match[4] or 1),
        alternatives=(),
    )
