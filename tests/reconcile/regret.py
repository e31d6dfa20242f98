"""Would the forecast have chosen the fastest of what was measured?

In: rows asked, and the rows. Out: a `Regret` for every group of runs that differ in layout or
settings alone: same source and release, model, chips, batch, sequence and dtype. Each group is
answered by constants that were fitted without it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rooflight.measure.published.hierarchy import cross_validate
from rooflight.measure.published.replay import Case, CaseSet
from rooflight.measure.published.rows import PublishedFile, PublishedRun

_SETTINGS = ("id", "measured", "layout", "remat", "flags", "note", "file", "section", "derived")
_SPLITS = ("micro", "grad_accum", "num_microbatches", "local")  # of a batch, into pieces
FAR_APART = 1.03  # measured times further apart than that have an order


@dataclass(frozen=True, slots=True)
class Tried:
    """One of the runs of a group."""

    id: str
    measured_s: float
    forecast_s: float


@dataclass(frozen=True, slots=True)
class Regret:
    """A group: its runs, and what following the forecast would have cost."""

    source: str
    model: str
    chip: str
    chips: int
    runs: tuple[Tried, ...]

    @property
    def pick(self) -> Tried:
        return min(self.runs, key=lambda run: run.forecast_s)

    @property
    def best(self) -> Tried:
        return min(self.runs, key=lambda run: run.measured_s)

    @property
    def regret(self) -> float:
        """How much longer the pick took than the fastest, as a part of the fastest."""
        return self.pick.measured_s / self.best.measured_s - 1

    @property
    def ordered(self) -> tuple[int, int]:
        """Pairs that are far apart: those that the forecast orders right, and all."""
        right = every = 0
        for one, other in combinations(self.runs, 2):
            apart = math.log(one.measured_s / other.measured_s)
            if abs(apart) > math.log(FAR_APART):
                every += 1
                right += (apart > 0) == (one.forecast_s > other.forecast_s)
        return right, every


def group_key(row: PublishedRun, *, across_releases: bool = False) -> str:
    """What runs of one group have in common."""
    left_out = (*_SETTINGS, "release") if across_releases else _SETTINGS
    kept = {name: value for name, value in row.fields.items() if name not in left_out}
    batch = {name: value for name, value in row.table("batch").items() if name not in _SPLITS}
    return json.dumps({**kept, "batch": batch}, sort_keys=True)


def regrets(
    asked: CaseSet, rows: PublishedFile, *, across_releases: bool = False
) -> tuple[Regret, ...]:
    """Every group of two runs or more, the largest regret first.

    Across releases, of a layout that was measured several times only the newest is in its group.
    """
    by_id = {row.id: row for row in rows.runs}
    key_of: Mapping[str, str] = {
        case.id: group_key(by_id[case.id], across_releases=across_releases)
        for case in asked.cases
        if case.kind == "train"
    }
    members: dict[str, dict[str, str]] = {}
    for name in sorted(key_of, key=lambda name: str(by_id[name].fields.get("release"))):
        members.setdefault(key_of[name], {})[by_id[name].configuration] = name
    groups = [list(names.values()) for names in members.values() if len(names) > 1]
    held_out = {name for names in groups for name in names}

    def fold_of(case: Case) -> str | None:
        return key_of[case.id] if case.id in held_out else None

    seconds = cross_validate(asked, fold_of).seconds
    tried = {
        case.id: Tried(case.id, case.measured_s, float(s))
        for case, s in zip(asked.cases, seconds, strict=True)
    }
    found = [_regret([tried[name] for name in names], by_id[names[0]]) for names in groups]
    return tuple(sorted(found, key=lambda one: -one.regret))


def _regret(runs: Sequence[Tried], row: PublishedRun) -> Regret:
    return Regret(row.source, row.model, row.chip, int(row.fields["chips"]), tuple(runs))
