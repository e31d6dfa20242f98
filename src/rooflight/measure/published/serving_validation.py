"""Serving rows of any file, answered by the shipped calibrations; errors of held-out rows.

In: a CSV, or a file of measured runs. Out: a `Validation`. The CSV does not ship, so the errors of
its held-out rows do, by group: `serving_accuracy.json`, by `tests/reconcile/serving_accuracy.py`.
"""

import json
from pathlib import Path

from rooflight.hardware.serving_calibration import load_serving_calibration
from rooflight.measure.published.replay import Watch
from rooflight.measure.published.rows import FOLDER, PublishedFile
from rooflight.measure.published.serving_replay import ask_served, ask_silicon
from rooflight.measure.published.validation import Accuracy, Validation, validate_rows

ACCURACY_FILE = FOLDER / "serving_accuracy.json"
MEASURED = PER_TOKEN, FIRST_TOKEN = "per token", "to the first token"


def validate_silicon(path: Path, *, watch: Watch | None = None) -> Validation:
    """Answers every row of a CSV of measured serving; nothing is fitted."""
    return validate_rows(ask_silicon(path, watch=watch), load_serving_calibration)


def validate_served(rows: PublishedFile, *, watch: Watch | None = None) -> Validation:
    """The same for the serve rows of a file of measured runs."""
    return validate_rows(ask_served(rows, watch=watch), load_serving_calibration)


def shipped_serving_accuracy() -> dict[str, tuple[Accuracy, ...]]:
    """The held-out errors of the rows that calibrations were fitted to, by what was measured."""
    document = json.loads(ACCURACY_FILE.read_text(encoding="utf-8"))
    return {what: tuple(Accuracy(**one) for one in document[what]) for what in MEASURED}
