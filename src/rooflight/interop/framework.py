"""`FrameworkSpec`: how another framework names what a plan says, read at a dated commit.

In: `frameworks.toml`. Out: rows that say which of its settings a scheme, a schedule or a policy
becomes, and in which way that is not quite the same. The file ships with the package and tests
hold it together, so its form is trusted here.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rooflight.errors import UnknownNameError

Value = bool | int | float | str
Settings = dict[str, Value]

FRAMEWORKS = ("maxtext", "torchtitan", "megatron")

_FILE = Path(__file__).parent / "frameworks.toml"
_TABLES = ("schedules", "remats", "recipes", "dtypes", "zeros")


@dataclass(frozen=True, slots=True)
class Loss:
    """What does not come across, and why; `is_material` if time or memory change with it."""

    what: str
    because: str
    is_material: bool = True


@dataclass(frozen=True, slots=True)
class AxisRow:
    """The settings that grow with a mesh axis of these schemes."""

    schemes: frozenset[str]
    keys: tuple[str, ...]
    differs: str = ""


@dataclass(frozen=True, slots=True)
class NameRow:
    """The settings of one of our names: of a schedule, a remat policy, a recipe, a dtype."""

    name: str
    settings: Mapping[str, Value]
    differs: str = ""


@dataclass(frozen=True, slots=True)
class FrameworkSpec:
    """One framework as its sources were at `commit`."""

    name: str
    title: str
    repo: str
    commit: str
    date: str
    has_tpus: bool  # else GPUs only
    files: str
    axes: tuple[AxisRow, ...]
    tables: Mapping[str, tuple[NameRow, ...]]
    models: Mapping[str, str]  # our name, theirs
    defaults: Mapping[str, object]  # what a file that leaves a key out means
    synonyms: Mapping[str, str]  # of keys; "not key" where true means false
    not_modelled: Mapping[str, str]  # keys that change time or memory and are not read, and how
    noted: Mapping[str, str]  # keys that a forecast may want and no plan says

    @property
    def reference(self) -> str:
        return f"{self.title} at {self.commit[:12]} of {self.date}"

    def axis_row(self, schemes: frozenset[str]) -> AxisRow | None:
        return next((row for row in self.axes if row.schemes == schemes), None)

    def our_model(self, theirs: str) -> str | None:
        """Our name of one of its models."""
        found = [ours for ours, name in self.models.items() if name == theirs]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Export:
    """A plan in the words of a framework: its settings, the file, and what is lost."""

    framework: FrameworkSpec
    settings: Mapping[str, Value]
    text: str
    losses: tuple[Loss, ...]

    @property
    def is_faithful(self) -> bool:
        return not any(loss.is_material for loss in self.losses)


@lru_cache(maxsize=8)
def load_framework(name: str) -> FrameworkSpec:
    """Finds a framework; unknown names get a did-you-mean.

    >>> load_framework("torchtitan").reference
    'torchtitan at 238fa9953e4a of 2026-02-23'
    """
    if name not in FRAMEWORKS:
        raise UnknownNameError("framework", name, FRAMEWORKS)
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))[name]
    rows = {key: tuple(NameRow(**row) for row in table[key]) for key in _TABLES}
    axes = tuple(AxisRow(**row | {"schemes": frozenset(row["schemes"])}) for row in table["axes"])
    facts = {key: table[key] for key in ("title", "repo", "commit", "date", "has_tpus", "files")}
    more = {key: table.get(key, {}) for key in ("synonyms", "not_modelled", "noted")}
    models, defaults = table["models"], table["defaults"]
    return FrameworkSpec(
        name, **facts, axes=axes, tables=rows, models=models, defaults=defaults, **more
    )


def settings_of(
    framework: FrameworkSpec, table: str, name: str, *, what: str
) -> tuple[Settings, list[Loss]]:
    """The settings of one of our names; without a row, those of the nearest and what is lost."""
    rows = framework.tables[table]
    for row in rows:
        if row.name == name:
            losses = [Loss(f"{what} {name}", row.differs)] if row.differs else []
            return dict(row.settings), losses
    known = ", ".join(row.name for row in rows)
    because = f"{framework.title} has no such {what}; of ours it has {known}"
    return dict(rows[0].settings), [Loss(f"{what} {name}", because)]


def comments(framework: FrameworkSpec, plan: str, losses: Sequence[Loss]) -> str:
    """The head of an exported file: whose names these are, and what they do not say."""
    lines = [f"{plan}; names of {framework.reference}"]
    lines += [f"{'lost' if x.is_material else 'note'}: {x.what}: {x.because}" for x in losses]
    return "\n".join(f"# {line}" for line in lines)
