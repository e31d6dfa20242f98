"""What the folder of a training run says: its plan, how long steps took, its traces, its program.

In: a folder that `rooflight train` or `launch` wrote. Out: `RunFolder`. Steps that were profiled
are kept apart, and the first of every attempt is left out: it waits for what is loaded only once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rooflight.errors import UsageError
from rooflight.train.events import Event, Goodput, goodput, read_events
from rooflight.train.run import COMPILED_STEP, FILE, Run, read_run

_TRACES = "traces"
_FEWEST = 5  # steps of which a median says something


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run as it can be reconciled; traces are of the processes that recorded one."""

    run: Run
    quiet_s: tuple[float, ...]  # steps that nobody recorded
    profiled_s: tuple[float, ...]
    traces: tuple[Path, ...]
    compiled: Path | None
    spent: Goodput


def read_run_folder(folder: Path) -> RunFolder:
    """Reads the records of a run; what a reconciliation cannot do without is named."""
    if not (folder / FILE).is_file():
        raise UsageError(
            f"{folder} is not the folder of a run: it has no {FILE}",
            hint="give the folder that `rooflight train` or `rooflight launch` got as --out",
        )
    run = read_run(folder / FILE)
    quiet, profiled = _steps(folder, run)
    traces = tuple(sorted((folder / _TRACES).glob("process-*")))
    if not traces or not profiled:
        raise UsageError(
            f"no step of {folder} was profiled, so nobody knows where its time went",
            hint="train again with --profile-at 20; it goes on where it ended",
        )
    if len(quiet) < _FEWEST:
        raise UsageError(
            f"{folder} has {len(quiet)} steps that were not profiled, too few to say how long one"
            " takes",
            hint=f"train {_FEWEST} steps or more beside those that are profiled",
        )
    compiled = folder / COMPILED_STEP
    known = compiled if compiled.is_file() else None
    return RunFolder(run, quiet, profiled, traces, known, goodput(folder))


def _steps(folder: Path, run: Run) -> tuple[tuple[float, ...], tuple[float, ...]]:
    quiet: dict[int, float] = {}
    profiled: dict[int, float] = {}
    begun: set[object] = set()
    for event in read_events(folder):
        if event["event"] != "step":
            continue
        is_first = event["attempt"] not in begun
        begun.add(event["attempt"])
        step = int(cast(int, event["step"]))
        if _is_profiled(run, step):
            profiled[step] = _seconds(event)
        elif not is_first:
            quiet[step] = _seconds(event)
    return tuple(quiet.values()), tuple(profiled.values())


def _is_profiled(run: Run, step: int) -> bool:
    first = run.profile_at
    return first is not None and first <= step < first + run.profile_steps


def _seconds(event: Event) -> float:
    return float(cast(float, event["seconds"]))
