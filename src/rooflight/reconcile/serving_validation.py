"""Serving rows of any file, answered by the shipped calibrations; errors of held-out rows.

In: a CSV, or a file of measured runs. Out: a `Validation`. The CSV does not ship, so the errors of
its held-out rows do, by group: `serving_accuracy.json`, by `tests/reconcile/serving_accuracy.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rooflight.reconcile.cross_validate import HELD_OUT, cross_validate
from rooflight.reconcile.hierarchy import fit_hierarchy, roof_seconds
from rooflight.reconcile.replay import Asked, Watch
from rooflight.reconcile.rows import FOLDER, Rows
from rooflight.reconcile.serving_loop import ServingTable, joined_tables
from rooflight.reconcile.serving_replay import ask_served, ask_silicon
from rooflight.reconcile.validation import (
    Accuracy,
    Replay,
    Validation,
    accuracy,
    validate_rows,
)
from rooflight.specs.serving_calibration import load_serving_calibration

ACCURACY_FILE = FOLDER / "serving_accuracy.json"


def validate_silicon(path: Path, *, watch: Watch | None = None) -> Validation:
    """Answers every row of a CSV of measured serving; nothing is fitted."""
    return validate_rows(ask_silicon(path, watch=watch), load_serving_calibration)


def validate_served(rows: Rows, *, watch: Watch | None = None) -> Validation:
    """The same for the serve rows of a file of measured runs."""
    return validate_rows(ask_served(rows, watch=watch), load_serving_calibration)


def joined(one: Asked, other: Asked) -> Asked:
    """Rows of two files; a row that both have, the CSV's subset in the other, counts once."""
    known = {case.id for case in one.cases}
    more = other.take([case.id not in known for case in other.cases])
    if not isinstance(one.table, ServingTable) or not isinstance(more.table, ServingTable):
        raise TypeError("only serving rows join")
    table = joined_tables(one.table, more.table)
    return Asked((*one.cases, *more.cases), (*one.refusals, *other.refusals), table)


def held_out_accuracy(asked: Asked) -> tuple[Accuracy, ...]:
    """Errors on rows held out by configuration, by model and by source, of every group."""
    roofs = roof_seconds(asked)
    start = fit_hierarchy(asked)
    out = {by: cross_validate(asked, by, start=start) for by in HELD_OUT}
    own = out["configuration"]
    replays = [
        Replay(
            case.id,
            case.kind,
            case.source,
            case.chip,
            case.family,
            case.engine,
            case.blocks,
            case.measured_s,
            float(own.seconds[i]),
            float(own.spread[i]),
            float(roofs[i]),
            float(out["model"].seconds[i]),
            float(out["source"].seconds[i]),
        )
        for i, case in enumerate(asked.cases)
    ]
    return grouped_accuracy(replays)


def grouped_accuracy(replays: Sequence[Replay]) -> tuple[Accuracy, ...]:
    """Of all rows, of dense and expert models, together and separated, and of each chip."""
    groups: dict[str, list[Replay]] = {}
    for replay in replays:
        place = f"{replay.engine} on {replay.chip}"
        for name in (
            "all rows",
            replay.blocks,
            f"{replay.blocks}, {replay.family}",
            f"{replay.blocks}, {replay.family}: {place}",
        ):
            groups.setdefault(name, []).append(replay)
    return tuple(accuracy(name, groups[name]) for name in sorted(groups))


def accuracy_text(found: Sequence[Accuracy]) -> str:
    """One group a line."""
    lines = [json.dumps({k: _short(v) for k, v in asdict(one).items()}) for one in found]
    return '{"schema": 1,\n"groups": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def shipped_serving_accuracy() -> tuple[Accuracy, ...]:
    """The held-out errors of the rows that the shipped calibrations were fitted to."""
    document = json.loads(ACCURACY_FILE.read_text(encoding="utf-8"))
    return tuple(Accuracy(**group) for group in document["groups"])
