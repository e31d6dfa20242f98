"""`Run`: everything that decides a training run, as a typed record and as a JSON file.

In: a `Plan`, a folder of tokens, a few numbers. Out: the record that every process of the run
reads, and two digests of it: of all that decides the run's numbers, and of what must be the same
when it goes on in the same folder (the layout may differ: a checkpoint moves to another mesh).
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import ParseError, UsageError
from rooflight.models.huggingface.read import read_hf_config
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.codec import dump, encode, load
from rooflight.plan.file.record import Plan, from_second, read_text
from rooflight.train.tokens import Records, check_data, data_digest, split_records

SCHEMA = 3
FILE = "run.json"
COMPILED = "compiled"  # programs that a restart need not compile again
COMPILED_STEP = "step.hlo.txt"  # what the compiler made of the step
IDENTITY = "model, data, batch, seed, optimizer, held-out data or first weights"  # see `identity`
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

    def rate_at(self, step: int, steps: int) -> float:
        """The rate of a step of so many, as the schedule of `make_optimizer` has it."""
        warmup = min(self.warmup_steps, steps)
        if step < warmup:
            return self.learning_rate * step / warmup
        rest = max(steps, self.warmup_steps + 1) - warmup
        cosine = (1 + math.cos(math.pi * min(step - warmup, rest) / rest)) / 2
        return self.learning_rate * (self.final_share + (1 - self.final_share) * cosine)


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
    validate_every: int | None = None  # steps; None holds nothing out
    validate_batches: int = 8  # held out of the data: the last records of it
    weights: str | None = None  # a folder of Hugging Face to begin from; None draws new ones

    def __post_init__(self) -> None:
        if self.steps < 1 or self.save_every < 1:
            raise UsageError(
                f"{self.steps} steps, saved every {self.save_every}: both must be at least 1",
                hint="give --steps 1000 --save-every 100",
            )
        if (self.validate_every or 1) < 1 or self.validate_batches < 1:
            raise UsageError(
                f"{self.validate_batches} batches held out, validated every {self.validate_every}"
                " steps: both must be at least 1",
                hint="give --validate-every 100 --validate-batches 8",
            )
        if self.keep < _LEAST_KEPT:
            raise UsageError(
                f"keeping {self.keep} checkpoint leaves none if it is damaged",
                hint=f"keep {_LEAST_KEPT} or more",
            )

    @property
    def folder(self) -> Path:
        return Path(self.out)

    @property
    def held_out(self) -> int:
        """Records that no step reads."""
        return 0 if self.validate_every is None else self.validate_batches * self.plan.batch


def run_to_json(run: Run) -> str:
    return dump(run, verb="train", schema=SCHEMA)


def run_from_json(text: str) -> Run:
    """Reads a run; one of the first schema holds a plan of the second."""
    added: dict[str, object] = {"validate_every": None, "validate_batches": 8, "weights": None}
    return load(
        Run,
        text,
        verb="train",
        schema=SCHEMA,
        migrate={
            1: lambda found: {**found, **added, "plan": from_second(found["plan"])},
            2: lambda found: {**found, **added},
        },
    )


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
    decides |= {"capacity": run.capacity, "data": data_digest(Path(run.data))}
    later = {"held_out": run.held_out, "weights": run.weights}  # older runs have neither
    return _digest(decides | {name: value for name, value in later.items() if value})


def _encoded(record: Run | ModelSpec) -> dict[str, object]:
    found = encode(record)
    assert isinstance(found, dict)
    return found  # pyright: ignore[reportUnknownVariableType]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def claim(run: Run) -> None:
    """Makes the run's folder and writes its file; refuses a folder of another run.

    Data that was made anew since is found when a checkpoint is restored, which says what it saw.
    """
    check_data(Path(run.data), run.plan.model.vocab)
    if run.held_out:
        split_records(Records(Path(run.data), run.plan.seq), run.held_out)  # raises if too few
    if run.weights is not None:
        check_weights(run.plan, run.weights)
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
                f"{run.folder} holds another run: its {IDENTITY} differ",
                hint="give another folder with --out, or the run as it was",
            )
    written = path.with_suffix(".new")
    written.write_text(run_to_json(run), encoding="utf-8")
    written.replace(path)


def check_weights(plan: Plan, folder: str) -> None:
    """Refuses weights of another model than the plan's, with the first thing that differs."""
    ours, theirs = (_encoded(m.unnamed) for m in (plan.model, read_hf_config(folder)))
    differs = _difference(ours, theirs, "")
    if differs is not None:
        path, planned, found = differs
        raise UsageError(
            f"the plan is of another model than {folder}: {path} is {planned} in the plan,"
            f" {found} in the folder's config",
            hint=f"`rooflight plan train CONFIG.JSON --on {plan.slice} ...` plans that model",
        )


def _difference(ours: object, theirs: object, path: str) -> tuple[str, object, object] | None:
    """Where two documents differ first, and what each has there."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):  # pyright: ignore
        ours, theirs = ({f"[{i}]": v for i, v in enumerate(x)} for x in (ours, theirs))  # pyright: ignore
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None if ours == theirs else (path.strip("."), ours, theirs)
    for key in {**ours, **theirs}:
        name = f"{path}{key}" if key.startswith("[") else f"{path}.{key}"
        found = _difference(ours.get(key), theirs.get(key), name)
        if found is not None:
            return found
    return None
