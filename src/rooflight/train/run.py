"""`Run`: everything that decides a training run, as a typed record and as a JSON file.

In: a `Plan`, a folder of tokens, a few numbers. Out: the record that every process of the run
reads, and two digests of it: of all that decides the run's numbers, and of what must be the same
when it goes on in the same folder (the layout may differ: a checkpoint moves to another mesh).
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import ParseError, UsageError
from rooflight.plan.file.codec import dump, encode, load
from rooflight.plan.file.record import Plan, from_second, read_text
from rooflight.train.tokens import check_data, data_digest

SCHEMA = 2
FILE = "run.json"
COMPILED_STEP = "step.hlo.txt"  # what the compiler made of the step
_LEAST_KEPT = 2  # if the last one is damaged, the one before it is used


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled decay, a warm-up, a cosine to `final_share` of the rate, a clip."""

    learning_rate: float = 3e-4
    warmup_steps: int = 100
    final_share: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    weight_decay: float = 0.1  # of matrices; norms and biases have none
    clip: float = 1.0  # the largest norm of all gradients together


@dataclass(frozen=True, slots=True)
class Run:
    """A training run.

    A file of Python that has one as `run` is a configuration: `rooflight train my_run.py`.
    """

    plan: Plan
    data: str  # a folder that `rooflight tokens` made
    out: str  # the run's own folder: checkpoints, events, logs
    steps: int
    optimizer: AdamW = AdamW()
    seed: int = 0
    save_every: int = 100  # steps
    keep: int = 3  # checkpoints
    capacity: float | None = None  # places of an expert over balanced; None drops no token
    profile_at: int | None = None  # the step from which the profiler records
    profile_steps: int = 3

    def __post_init__(self) -> None:
        if self.steps < 1 or self.save_every < 1:
            raise UsageError(
                f"{self.steps} steps, saved every {self.save_every}: both must be at least 1",
                hint="give --steps 1000 --save-every 100",
            )
        if self.keep < _LEAST_KEPT:
            raise UsageError(
                f"keeping {self.keep} checkpoint leaves none if it is damaged",
                hint=f"keep {_LEAST_KEPT} or more",
            )

    @property
    def folder(self) -> Path:
        return Path(self.out)


def run_to_json(run: Run) -> str:
    return dump(run, verb="train", schema=SCHEMA)


def run_from_json(text: str) -> Run:
    """Reads a run; one of the first schema holds a plan of the second."""
    older = {1: lambda found: {**found, "plan": from_second(found["plan"])}}
    return load(Run, text, verb="train", schema=SCHEMA, migrate=older)


def read_run(path: str | Path) -> Run:
    return run_from_json(read_text(str(path)))


def run_hash(run: Run) -> str:
    """Of everything but where it is written: all processes of a run must agree on it."""
    return _digest({**_encoded(run), "out": None})


def identity(run: Run) -> str:
    """Of what makes its numbers: a folder with checkpoints of another one is refused.

    The layout is not part of it, nor how long the run is.
    """
    plan = run.plan
    decides = {"model": encode(plan.model), "batch": plan.batch, "seq": plan.seq}
    decides |= {"recipe": plan.recipe, "seed": run.seed, "optimizer": encode(run.optimizer)}
    return _digest({**decides, "capacity": run.capacity, "data": data_digest(Path(run.data))})


def _encoded(run: Run) -> dict[str, object]:
    found = encode(run)
    assert isinstance(found, dict)
    return found  # pyright: ignore[reportUnknownVariableType]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def claim(run: Run) -> None:
    """Makes the run's folder and writes its file; refuses a folder of another run.

    Data that was made anew since is found when a checkpoint is restored, which says what it saw.
    """
    check_data(Path(run.data), run.plan.model.vocab)
    path = run.folder / FILE
    run.folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        try:
            there = read_run(path)
        except ParseError as error:
            raise UsageError(
                f"{path} cannot be read: {error}", hint="give another folder with --out"
            ) from None
        if identity(there) != identity(run):
            raise UsageError(
                f"{run.folder} holds another run: its model, data, batch, seed or optimizer differ",
                hint="give another folder with --out, or the run as it was",
            )
    written = path.with_suffix(".new")
    written.write_text(run_to_json(run), encoding="utf-8")
    written.replace(path)
