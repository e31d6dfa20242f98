"""Finds HLO on disk: a text file, or the folder that `--xla_dump_to` filled.

A folder holds many files of many modules. Of each module the latest stage counts, and with it the
buffer assignment and live ranges that the compiler wrote beside it.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rooflight.compile.hlo.groups import MeshAxes
from rooflight.compile.hlo.memory import HloMemory, LiveBytes, read_live, read_memory
from rooflight.compile.hlo.parse import parse_module
from rooflight.compile.hlo.step import CompiledStep, read_step
from rooflight.errors import UnknownNameError, UsageError

# Latest first: what the compiler finished with, down to what it was given.
_STAGES = {
    "executable": re.compile(r"after_codegen\.txt$"),
    "scheduled": re.compile(
        r"(after_optimizations(_after_buffer_assignment)?|oom_intermediate_module)\.txt$"
    ),
    "partitioned": re.compile(r"\.after_[\w-]*spmd[-_]partition(ing|er)\.[^/]*txt$"),
    "given": re.compile(r"before_optimizations\.txt$"),
}
STAGES = tuple(_STAGES)
# Six layers of a small model and their gradients, weights split over X=16,Y=4 of v5p:4x4x4.
EXAMPLE = Path(__file__).with_name("example.txt")
_MODULE = re.compile(r"(module_\d+\.[^.]+)\.")


@dataclass(frozen=True, slots=True)
class Dump:
    """One module on disk: its text at one stage, and the texts beside it."""

    name: str
    stage: str
    path: Path
    assignment: Path | None
    live_ranges: Path | None
    log: Path | None
    axes: MeshAxes | None


def find_dumps(path: Path, *, stage: str | None = None) -> list[Dump]:
    """The modules of a file or folder, largest first; only those at `stage` if it is given."""
    if os.path.isfile(path):  # unlike Path, no error for a name that cannot be
        return [Dump(path.stem, _stage_of(path) or "text", path, *_beside(path))]
    if not os.path.isdir(path):
        raise UsageError(
            f"there is no file or folder {str(path)!r}",
            hint="give an HLO text, or the folder of XLA_FLAGS=--xla_dump_to=FOLDER",
        )
    best: dict[str, tuple[int, Path]] = {}
    for file in sorted(path.glob("*.txt")):
        name, found = _module_of(file), _stage_of(file)
        if found is None or (stage and found != stage):
            continue
        rank = STAGES.index(found)
        if name not in best or rank < best[name][0]:
            best[name] = (rank, file)
    files = sorted(best.items(), key=lambda item: -item[1][1].stat().st_size)
    return [Dump(n, STAGES[rank], file, *_beside(file)) for n, (rank, file) in files]


def _stage_of(path: Path) -> str | None:
    return next((name for name, text in _STAGES.items() if text.search(path.name)), None)


def _module_of(path: Path) -> str:
    match = _MODULE.match(path.name)
    return match[1] if match else path.stem


def _beside(path: Path) -> tuple[Path | None, Path | None, Path | None, MeshAxes | None]:
    """Buffer assignment, live ranges and log of the same module, and the axes if we compiled it."""
    name = _module_of(path)

    def one(ending: str) -> Path | None:
        return next(iter(sorted(path.parent.glob(f"{_literal(name)}*{ending}"))), None)

    log = path.parent / "compiler.log"
    return (
        one("-buffer-assignment.txt"),
        one("-live-range.txt"),
        log if log.exists() else None,
        _axes(path.parent / "summary.json"),
    )


def _literal(name: str) -> str:
    """A name without the characters that mean something to glob."""
    return re.sub(r"[\[\]*?]", "?", name)


def _axes(summary: Path) -> MeshAxes | None:
    """The mesh a compile of ours wrote down; any other file of that name tells nothing."""
    if not summary.exists():
        return None
    try:
        facts: dict[str, dict[str, int]] = json.loads(_text(summary))
        return MeshAxes(facts["axes"], facts["dcn"])
    except (ValueError, KeyError, TypeError):
        return None


def choose_dump(dumps: list[Dump], *, module: str | None, where: Path) -> Dump:
    """The module a user named, or the largest."""
    if not dumps:
        raise UsageError(
            f"{str(where)!r} holds no HLO text that we know",
            hint="give the folder of XLA_FLAGS=--xla_dump_to=FOLDER, or one file of it",
        )
    if module is None:
        return dumps[0]
    for dump in dumps:
        if module in (dump.name, dump.name.partition(".")[2]):
            return dump
    raise UnknownNameError("module", module, [dump.name for dump in dumps])


def read_dump(dump: Dump, *, axes: Mapping[str, int] | None = None) -> CompiledStep:
    """Reads a module and what lies beside it; `axes` name the mesh if the dump does not."""
    module = parse_module(_text(dump.path))
    memory: HloMemory | None = None
    live: LiveBytes | None = None
    if dump.assignment and dump.stage in ("executable", "scheduled"):
        ranges = _text(dump.live_ranges) if dump.live_ranges else ""
        memory = read_memory(_text(dump.assignment), ranges, module)
        live = read_live(_text(dump.assignment), ranges)
    log = _text(dump.log) if dump.log else ""
    named = MeshAxes(axes, {}) if axes else dump.axes
    return read_step(module, axes=named, memory=memory, live=live, log=log)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
