"""`Plan`: one way to train a model on a slice, with its time, its memory and its reasons.

In: what the planner chose, or a file. Out: a record that stands alone: the whole model is in it,
and slice, layout and mesh are the strings that their parsers read. Later verbs take the file.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rooflight.errors import ModelError, UsageError
from rooflight.hardware.mesh import Mesh, parse_mesh
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.codec import dump, encode, load

SCHEMA = 3
COMPILER_OPTIONS = "compiler options"  # the decision of which, for one version of it

SourceKind = Literal["spec", "calibrated", "compiler", "measured"]

# What a model is called does not change its program.
_LABELS = ("name", "title", "source", "not_understood", "weights")
_DECIDES = (
    *("slice", "batch", "seq", "dtype", "recipe", "layout", "mesh", "stages", "schedule"),
    *("microbatches", "virtual", "remat", "zero"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen without being asked for, and why."""

    what: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class ForecastTime:
    """Seconds that one step will take, with the 80 % interval, and what that rests on."""

    seconds: float
    low_s: float
    high_s: float
    mfu: float
    parts_s: Mapping[str, float]  # matmuls, memory passes, exposed communication, ...
    basis: str  # the measured runs that its constants were fitted to


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of one step, and what they are spent on."""

    roofline_s: float  # by the catalog: every roof reached, collectives hidden behind matmuls
    lower_s: float  # everything overlaps
    upper_s: float  # nothing does
    matmuls_s: float  # recomputed ones included
    recompute_s: float
    bubble_s: float  # a stage waits for the others
    collectives_s: Mapping[str, float]  # by the mesh axes they run over: "X", "X+Y"
    waits_s: Mapping[str, float]  # the same ones by what waits for them: critical, ahead, async
    forecast: ForecastTime | None = None  # None where nobody forecast it

    def __post_init__(self) -> None:
        if not self.lower_s <= self.roofline_s * (1 + 1e-9) <= self.upper_s * (1 + 2e-9):
            raise ModelError(
                f"the bounds of a step, {self.lower_s} s and {self.upper_s} s, are not around"
                f" the {self.roofline_s} s of its roofline"
            )

    @property
    def step_s(self) -> float:
        """What a step will take: the forecast, or the roofline where there is none."""
        return self.forecast.seconds if self.forecast else self.roofline_s


@dataclass(frozen=True, slots=True)
class Part:
    """One component of what a chip holds."""

    name: str
    nbytes: int
    because: str


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a chip of the fullest stage holds, and how much it can."""

    stage: int
    parts: tuple[Part, ...]
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Mfu:
    """Model FLOPs over what the chips could do, and whose count of FLOPs that is."""

    value: float
    convention: str

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise ModelError(f"a utilisation of {self.value} is not between 0 and 1")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that lost, and by what."""

    layout: str
    mesh: str
    schedule: str  # "" without a pipeline, else such as "1f1b, 8 stages, 32 microbatches"
    remat: str
    step_s: float
    hbm_bytes: int
    because: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A training step, decided. `batch` counts sequences; a step is `batch * seq` tokens."""

    version: str  # of rooflight
    model: ModelSpec
    slice: str
    batch: int
    seq: int
    dtype: str
    recipe: str
    overlap: Literal["sum", "max"]
    layout: str
    mesh: str
    stages: int  # of a pipeline; 1 is none
    schedule: str | None  # None without a pipeline
    microbatches: int  # without a pipeline: gradients are accumulated over so many
    virtual: int  # stages per device
    remat: str
    zero: Literal[0, 1, 2]
    framework: str  # whose schedules, memory and constants: rooflight, megatron, torchtitan
    time: Time
    memory: MemoryUse
    mfu: Mfu
    tokens_per_s: float
    binds: str
    choices: tuple[Decision, ...]
    alternatives: tuple[Alternative, ...]
    searched: Mapping[str, int]  # how many layouts were named, divide, fit
    sources: Mapping[str, SourceKind]  # where a group of numbers comes from: "time": "spec"

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "stages", "microbatches", "virtual"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", hint=f"make {name} 1 or more")
        if self.batch % self.microbatches:
            raise UsageError(
                f"{self.batch} sequences are not {self.microbatches} equal microbatches",
                hint="choose a number of microbatches that divides the batch",
            )
        if (self.stages > 1) != (self.schedule is not None):
            raise UsageError(
                f"{self.stages} stages with the schedule {self.schedule}",
                hint="name a schedule, such as 1f1b, where there are stages, and only there",
            )

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.seq

    @property
    def compiler_options(self) -> dict[str, str]:
        """Options of the compiler that were chosen for its program, as they are written."""
        chosen = (one.value for one in self.choices if one.what == COMPILER_OPTIONS)
        pairs = (pair.partition("=") for text in chosen for pair in text.split())
        return {name: value for name, _, value in pairs}

    def placed(self) -> Mesh:
        """The mesh on its slice, as records."""
        return parse_mesh(self.mesh, on=self.slice)

    def save(self, path: str | Path) -> None:
        """Writes the plan file."""
        Path(path).write_text(to_json(self) + "\n", encoding="utf-8")


def to_json(plan: Plan) -> str:
    """The plan file: one JSON document."""
    return dump(plan, verb="plan", schema=SCHEMA)


def from_json(text: str) -> Plan:
    """Reads a plan file; the error names the path of a key that is wrong.

    Files of the older schemas are read too, with a note on stderr.
    """
    older = {1: _from_first, 2: from_second}
    return load(Plan, text, verb="plan", schema=SCHEMA, migrate=older)


def _from_first(document: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had no forecast and no framework but ours; its `expected_s` was the roofline."""
    time = dict(document["time"])
    lost = [dict(one) for one in document["alternatives"]]
    for one in lost:
        one["step_s"] = one.pop("expected_s")
    time["roofline_s"] = time.pop("expected_s")
    new = {"time": {**time, "forecast": None}, "alternatives": lost, "framework": "rooflight"}
    return from_second({**document, **new})


def from_second(document: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 called matmuls products."""
    time, binds = dict(document["time"]), document["binds"]
    time["matmuls_s"] = time.pop("products_s")
    return {**document, "time": time, "binds": "matmuls" if binds == "products" else binds}


def read_plan(path: str) -> Plan:
    """Reads a plan from a file; `-` is the standard input."""
    return from_json(read_text(path))


def read_text(path: str) -> str:
    """What a file of the verb plan says, whatever was planned; `-` is the standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path!r}: {error}",
            hint="give a file that the verb plan wrote with --json",
        ) from None


def plan_hash(plan: Plan) -> str:
    """16 hex digits of what decides the program, and not of its price.

    Two hosts with the same hash run the same step. A model's name, the times, the reasons and the
    alternatives do not count.
    """
    model = {k: v for k, v in cast(dict[str, Any], encode(plan.model)).items() if k not in _LABELS}
    decides = {"model": model} | {k: encode(getattr(plan, k)) for k in _DECIDES}
    text = json.dumps(decides, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
