"""What the benchmark's own configurations say about a row and the row does not.

In: a `ServingRow`. Out: `Recipe`s that could have made it: how many workers there were, how they
were split, and how many tokens were drafted ahead. InferenceX publishes them; the rows of its
results leave them out. `serving_recipes.json` has them with their source.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from rooflight.reconcile.rows import FOLDER
from rooflight.reconcile.serving_rows import ServingRow

_FILE = FOLDER / "serving_recipes.json"
_EARLY = timedelta(days=7)  # runs come before the change that adds them is merged


@dataclass(frozen=True, slots=True)
class Workers:
    """Engines of one kind: how many, and how one of them is split."""

    count: int
    gpus: int
    expert_ways: int
    splits_batch: bool  # attention is data-parallel


@dataclass(frozen=True, slots=True)
class Recipe:
    """One configuration of the benchmark."""

    image: str
    drafted: int  # tokens that are proposed ahead of a step
    since: str
    concurrency: frozenset[int]
    decode: Workers
    prefill: Workers | None  # None where the same workers do both


def matching(row: ServingRow) -> list[Recipe]:
    """Recipes of the row's model, chip, engine, lengths, load and version, then in use."""
    found = [r for r in _of_kind(row) if row.concurrency in r.concurrency]
    version, day = row.text("backend_version").lower(), row.measured_on
    found = [r for r in found if version in r.image]
    return [r for r in found if not day or _minus(r.since) <= day]


def nearest(row: ServingRow, gpus: tuple[int, int]) -> Recipe | None:
    """The recipe of the nearest load, of the stated GPUs of a prefill and a decode worker."""
    fits = [
        r
        for r in _of_kind(row)
        if not r.drafted and r.prefill and (r.prefill.gpus, r.decode.gpus) == gpus
    ]
    loads = [(abs(math.log(c / row.concurrency)), r) for r in fits for c in r.concurrency]
    return min(loads, key=lambda pair: pair[0])[1] if loads else None


def _minus(day: str) -> str:
    return (date.fromisoformat(day) - _EARLY).isoformat()


def _of_kind(row: ServingRow) -> Iterable[Recipe]:
    return _recipes().get(_key(row), ())


def _key(row: ServingRow) -> tuple[str, ...]:
    names = ("precision", "isl", "osl")
    return (row.model, row.chip, row.engine, *(row.text(n) for n in names), row.text("mode"))


@lru_cache(maxsize=1)
def _recipes() -> Mapping[tuple[str, ...], list[Recipe]]:
    found: dict[tuple[str, ...], list[Recipe]] = {}
    for entry in json.loads(_FILE.read_text(encoding="utf-8"))["recipes"]:
        mode = "disagg" if "prefill" in entry else "agg"
        names = ("model", "chip", "engine", "precision", "isl", "osl")
        found.setdefault((*(str(entry[n]) for n in names), mode), []).append(_recipe(entry))
    return found


def _recipe(entry: Mapping[str, Any]) -> Recipe:
    prefill = entry.get("prefill")
    return Recipe(
        entry["image"],
        entry["drafted"],
        entry["since"],
        frozenset(entry["concurrency"]),
        _workers(entry["decode"] if prefill else entry["workers"]),
        _workers(prefill) if prefill else None,
    )


def _workers(side: list[int]) -> Workers:
    count, gpus, expert_ways, splits_batch = side
    return Workers(count, gpus, expert_ways, bool(splits_batch))
