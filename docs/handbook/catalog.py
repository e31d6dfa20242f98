"""`{plan-fields}` and `{calibrations}`: a plan file's schema, fitted constants."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import paragraph, section, table
from rooflight.hardware.calibration import Calibration, Constant, calibration_constants
from rooflight.hardware.calibration import shipped_calibrations as shipped_training
from rooflight.hardware.serving_calibration import serving_constants, shipped_serving

_SCHEMA = Path(__file__).parents[1] / "plan.schema.json"
_FITTED = ("chip", "engine", "blocks", "rows", "median error", "80 % within", "made", "sources")


class PlanFields(SphinxDirective):
    """A table for the plan and for each record in it."""

    def run(self) -> list[Node]:
        schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
        records = {"Plan": schema, **schema["$defs"]}
        return [_record(name, record) for name, record in records.items()]


def _record(name: str, record: Mapping[str, Any]) -> Node:
    rows = [(f"`{field}`", _type(kind)) for field, kind in record.get("properties", {}).items()]
    about = paragraph(record.get("description", "")) if "description" in record else None
    body = [*([about] if about else []), table(("field", "type"), rows)]
    return section(f"record-{name.lower()}", f"`{name}`", *body)


def _type(kind: Mapping[str, Any]) -> str:
    """One type in words: what it refers to, its choices, or its name."""
    if "$ref" in kind:
        return f"`{kind['$ref'].rpartition('/')[2]}`"
    if "const" in kind:
        return f"always `{json.dumps(kind['const'])}`"
    if "enum" in kind:
        return "one of " + ", ".join(f"`{json.dumps(choice)}`" for choice in kind["enum"])
    if "anyOf" in kind:
        return " or ".join(_type(choice) for choice in kind["anyOf"])
    if kind.get("type") == "array":
        return f"list of {_type(kind['items'])}" if "items" in kind else "list"
    if isinstance(kind.get("additionalProperties"), Mapping):
        return f"object of {_type(kind['additionalProperties'])}"
    return str(kind.get("type", "any"))


class Calibrations(SphinxDirective):
    """The constants that may be fitted, then what was fitted to what."""

    def run(self) -> list[Node]:
        training = shipped_training().values()
        serving = shipped_serving().values()
        return [
            section("constants-of-training", "Constants of training", _legend("training")),
            section("fitted-to-training-runs", "Fitted to training runs", _fitted(list(training))),
            section("constants-of-serving", "Constants of serving", _legend("serving")),
            section("fitted-to-serving-runs", "Fitted to serving runs", _fitted(list(serving))),
        ]


def _legend(kind: str) -> Node:
    constants = calibration_constants() if kind == "training" else serving_constants()
    rows = [_constant(c) for c in constants.values()]
    return table(("constant", "range", "typical", "what it is"), rows)


def _constant(constant: Constant) -> tuple[str, ...]:
    unit = f" {constant.unit}" if constant.unit not in ("", "1") else ""
    reach = f"{constant.low:g} to {constant.high:g}{unit}"
    return f"`{constant.name}`", reach, f"{constant.typical:g}{unit}", constant.physics


def _fitted(calibrations: list[Calibration]) -> Node:
    return table(_FITTED, [_calibration(c) for c in calibrations])


def _calibration(one: Calibration) -> tuple[str, ...]:
    error, spread = f"{one.median_error:.1%}", f"x{one.interval(1.0)[1]:.2f}"
    sources = ", ".join(one.sources)
    head = f"`{one.chip}`", one.engine, one.blocks, str(one.rows)
    return *head, error, spread, str(one.made), sources
