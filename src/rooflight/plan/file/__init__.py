"""What verbs hand to each other: records that are JSON files, strict in and out.

from rooflight.plan.file.record import read_plan
read_plan("plan.json").time.step_s
"""

from rooflight.plan.file.codec import decode, dump, encode, load
from rooflight.plan.file.record import (
    SCHEMA,
    Alternative,
    Choice,
    ForecastTime,
    Held,
    Mfu,
    Part,
    Plan,
    SourceKind,
    Time,
    from_json,
    plan_hash,
    read_plan,
    read_text,
    to_json,
)
from rooflight.plan.file.schema import json_schema

__all__ = [
    "SCHEMA",
    "Alternative",
    "Choice",
    "ForecastTime",
    "Held",
    "Mfu",
    "Part",
    "Plan",
    "SourceKind",
    "Time",
    "decode",
    "dump",
    "encode",
    "from_json",
    "json_schema",
    "load",
    "plan_hash",
    "read_plan",
    "read_text",
    "to_json",
]
