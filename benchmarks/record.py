"""The record of one benchmark run: rows with their units, the date, the commit and the machine.

In: what a benchmark yields. Out: `Record`, which round-trips through JSON and is held against an
earlier one. A value is a median of rounds, and its spread the middle half of them.
"""

import json
import math
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal  # Any: JSON

from benchmarks.machine import Machine, OtherLoad, this_machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `spread` is relative to it; `more` has further columns, seconds end in `_s`."""

    case: str
    value: float
    unit: str  # "s", "x" for a ratio, "B", or a rate such as "tokens/s"
    better: Better = "lower"
    rounds: int | None = None
    spread: float | None = None
    load: float | None = None  # part of the machine that other processes used meanwhile
    more: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Record:
    """What a benchmark found; None is unknown."""

    name: str
    date: str
    commit: str | None
    machine: Machine | None
    load: float | None  # of other processes during the whole run
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def row_of(case: str, values: Sequence[float], unit: str = "s", **more: Any) -> Row:
    """The median of rounds, with their spread."""
    middle, spread = statistics.median(values), None
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        spread = round((high - low) / abs(middle), 4) if middle else None
    return Row(case, middle, unit, rounds=len(values), spread=spread, **more)


def ratio_row(case: str, ours: Sequence[float], bare: Sequence[float], **more: Any) -> Row:
    """The median ratio of pairs that ran in turn: a slow minute meets both of a pair."""
    return row_of(case, [a / b for a, b in zip(ours, bare, strict=True)], "x", **more)


def make_record(name: str, found: Iterable[Row | str], *, quick: bool) -> Record:
    """Runs a benchmark to its end; a quick one leaves the machine unmeasured."""
    machine = None if quick else this_machine()
    load = OtherLoad()
    parts = list(found)
    rows = tuple(part for part in parts if isinstance(part, Row))
    notes = tuple(part for part in parts if isinstance(part, str))
    return Record(name, str(date.today()), _commit(), machine, load.part(), rows, notes)


def _commit() -> str | None:
    """As git describes it; None outside of a clone."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def to_json(record: Record) -> str:
    return json.dumps(asdict(record), indent=1) + "\n"


def read_record(path: Path) -> Record:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    read["machine"] = Machine(**read["machine"]) if read["machine"] else None
    read["rows"] = tuple(Row(**row) for row in read["rows"])
    read["notes"] = tuple(read["notes"])
    return Record(**read)


@dataclass(frozen=True, slots=True)
class Change:
    """One case before and after; `ratio` is above 1 where it became worse."""

    before: Row
    after: Row

    @property
    def ratio(self) -> float:
        old, new = self.before.value, self.after.value
        worse, other = (new, old) if self.after.better == "lower" else (old, new)
        return worse / other if other else math.inf if worse else 1.0

    @property
    def is_beyond_spread(self) -> bool:
        spread = max(self.before.spread or 0.0, self.after.spread or 0.0)
        return not 1 / (1 + spread) <= self.ratio <= 1 + spread

    @property
    def word(self) -> str:
        if not self.is_beyond_spread:
            return "within the spread"
        return "worse" if self.ratio > 1 else "better"


def changes(before: Record, after: Record) -> list[Change]:
    """Of the cases that both have."""
    known = {row.case: row for row in before.rows}
    return [Change(known[row.case], row) for row in after.rows if row.case in known]
