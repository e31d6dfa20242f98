"""Our training step and MaxText's, compiled by one compiler and read by one reader.

In: the cases of program.toml. Each is compiled twice, each time by a child of `rooflight.compile`:
our program by this environment, MaxText's by one of its own with the same jax and libtpu, which is
made once in a folder. Out: two rows a case, seconds by unit and mesh axis, FLOPs, memory; and their
ratio. Seconds are the compiler's estimates and our network model, not measured.
"""

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any  # of the file of cases

from benchmarks.record import Row
from rooflight.compile.aot.environment import compiler_versions
from rooflight.compile.aot.request import CompileRequest
from rooflight.compile.aot.run import Compilation, compile_all
from rooflight.compile.findings.subject import BUILD
from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.op import OpPricer
from rooflight.compile.time.step import compiled_time
from rooflight.errors import UnknownNameError, UsageError
from rooflight.files import user_cache
from rooflight.hardware.mesh import Mesh
from rooflight.interop.maxtext import export_maxtext
from rooflight.models.presets import load_model
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Repeat
from rooflight.plan.file.record import Plan, from_json, to_json

HERE = Path(__file__).parent
_EXAMPLE = from_json((files("rooflight.compile") / "example_plan.json").read_text())
_DECIDED = ("slice", "layout", "mesh", "batch", "seq", "remat")
_ALL: Mapping[str, Any] = tomllib.loads((HERE / "program.toml").read_text(encoding="utf-8"))
# What does not fit is compiled all the same, so that its size is known.
_GO_ON = {"xla_tpu_no_crash_on_oom": True}
_TIMEOUT_S = 7200.0
OURS, THEIRS = "ours", "MaxText"
Found = Iterator[Row | str]


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, and what MaxText is told in its place."""

    name: str
    plan: Plan
    options: Mapping[str, str | int | bool]
    settings: Mapping[str, object]
    measured_s: float | None


def cases(chosen: Sequence[str] = ()) -> list[Case]:
    """Those of the file, or the chosen ones of them."""
    known: Mapping[str, Any] = _ALL["cases"]
    if unknown := next((name for name in chosen if name not in known), None):
        raise UnknownNameError("case", unknown, known)
    return [_case(name, known[name]) for name in chosen or known]


def _case(name: str, row: Mapping[str, Any]) -> Case:
    decided = {key: row[key] for key in _DECIDED}
    plan = replace(_EXAMPLE, model=_model(row["model"]), recipe="f32", microbatches=1, **decided)
    settings = {**export_maxtext(plan).settings, **_ALL["maxtext"]["settings"], **row["maxtext"]}
    options = {**_ALL["options"][row["options"]], **_GO_ON}
    return Case(name, plan, options, settings, row.get("measured_s"))


def _model(name: str) -> ModelSpec:
    row = _ALL["models"].get(name)
    if row is None:
        return load_model(name)
    attention = Attention(row["heads"], row["kv_heads"], row["head_dim"])
    layers = (Repeat((Block(attention, Mlp(row["d_ff"])),), row["layers"]),)
    return ModelSpec(name, name, row["d_model"], row["vocab"], layers)


def run(*, quick: bool, chosen: Sequence[str] = (), environments: Path | None = None) -> Found:
    """All cases, or the chosen ones; a quick run is the first of them."""
    python = maxtext_python(environments or user_cache() / "benchmarks")
    yield f"MaxText's environment: {_versions(python)}."
    yield f"Ours: {_named(compiler_versions('tpu'))}."
    for case in cases(chosen)[: 1 if quick else None]:
        yield from _raced(case, python)


def _raced(case: Case, python: str) -> Iterator[Row | str]:
    mesh, found = case.plan.placed(), dict[str, Row]()
    for who, request in ((OURS, our_request(case)), (THEIRS, their_request(case, python))):
        done = compile_all([request], jobs=1)[0]
        if not done.is_good:
            yield f"{case.name}, {who}: {done.outcome}: {done.last_words}"
            continue
        extra = {"compile_s": done.seconds}
        if case.measured_s is not None:
            extra["published_s"] = case.measured_s
        found[who] = estimated(f"{case.name}: {who}", read_on(done, mesh), mesh, extra)
        yield found[who]
    if len(found) == 2:
        yield Row(f"{case.name}: {OURS} / {THEIRS}", ratio(found[OURS], found[THEIRS]), "x")


def ratio(ours: Row, theirs: Row) -> float:
    return ours.value / theirs.value


def our_request(case: Case) -> CompileRequest:
    arguments = {"plan": to_json(case.plan)}
    return _request(case, BUILD, arguments)


def their_request(case: Case, python: str) -> CompileRequest:
    request = _request(case, "maxtext_step:build", {"settings": dict(case.settings)})
    return replace(request, folder=str(HERE), python=python)


def _request(case: Case, build: str, arguments: Mapping[str, object]) -> CompileRequest:
    return CompileRequest(
        build,
        case.plan.placed(),
        arguments,
        until="executable",
        options=case.options,
        timeout_s=_TIMEOUT_S,
    )


def read_on(done: Compilation, mesh: Mesh) -> CompiledStep:
    """A compiled step with the names of our axes: MaxText has its own for the same ones."""
    sizes = [size for size in done.axes.values() if size > 1]
    if sizes != list(mesh.axes.values()):
        raise UsageError(
            f"its mesh must have the axes of {mesh}, in their order, got {done.axes}",
            hint="name the axes of the case in the order of MaxText's: data, fsdp, tensor, expert",
        )
    return read_dump(
        choose_dump(find_dumps(done.folder), module=None, where=done.folder), axes=mesh.axes
    )


def estimated(name: str, step: CompiledStep, mesh: Mesh, extra: Mapping[str, float]) -> Row:
    """The row of a compiled step. The chip waits for units, copies and what is exposed, in all."""
    time = compiled_time(step, mesh)
    network = {
        f"{axes} {what}_s": getattr(net, f"{what}_s")
        for axes, net in time.network.items()
        for what in ("exposed", "hidden")
    }
    more = {
        "compiler's sum_s": compiler_seconds(step, mesh),
        "matrix_s": time.busy_s.get("matrix", 0.0),
        "vector_s": time.busy_s.get("memory", 0.0),
        "kernels_s": time.busy_s.get("kernels", 0.0),
        "copies_s": time.copies.exposed_s,
        **network,
        "FLOPs": float(step.known_flops),
        "recomputed": step.recomputed_flops / step.known_flops,
        "memory_B": float(step.memory.total_bytes if step.memory else 0),
        **extra,
    }
    return Row(name, time.seconds, "s", more=more)


def compiler_seconds(step: CompiledStep, mesh: Mesh) -> float:
    """The compiler's cycles of all ops as they are, one after another: no transfers, no kernels."""
    clock = OpPricer.of(step.module, mesh.slice.chip).clock_hz
    return sum(
        (op.estimated_cycles or 0) * (execution.count or 1) / clock
        for name, execution in step.runs.items()
        for op in step.module.computations[name].instructions
    )


def maxtext_python(folder: Path) -> str:
    """The interpreter of an environment with MaxText, which is made in the folder if need be."""
    root = folder / f"maxtext-{_ALL['maxtext']['version']}-jax-{compiler_versions('tpu')['jax']}"
    python = root / "bin" / "python"
    if not python.exists():
        part = root.with_name(f"{root.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run([newer_python(), "-m", "venv", part], check=True)
        pip = [part / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *_requirements()], check=True)
        part.rename(root)
    return str(python)


def _requirements() -> list[str]:
    """The same jax and compiler as ours, then MaxText and what it imports."""
    same = [f"{name}=={version}" for name, version in compiler_versions("tpu").items()]
    return [*same, f"maxtext=={_ALL['maxtext']['version']}", *_ALL["maxtext"]["requires"]]


def newer_python() -> str:
    """A Python that MaxText and tokamax run on, 3.12 or newer; also one that pyenv has."""
    for name in filter(shutil.which, ("python3.12", "python3.13")):
        pyenv = shutil.which("pyenv")
        listed = [pyenv, "versions", "--bare"] if pyenv else ["true"]
        versions = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        for one in ({}, *({"PYENV_VERSION": version} for version in versions)):
            command = [name, "-c", "import sys; print(sys.executable)"]
            told = subprocess.run(command, capture_output=True, text=True, env=os.environ | one)
            if told.returncode == 0:
                return told.stdout.strip()
    raise UsageError(
        "MaxText needs Python 3.12, and no python3.12 or python3.13 is on the path",
        hint="install one, or give a folder with its environment: --environments FOLDER",
    )


@cache
def _versions(python: str) -> str:
    """What is installed there, of the packages that decide a program."""
    names = ["maxtext", "flax", "tokamax", "jax", "jaxlib", "libtpu"]
    code = "import json, sys; from importlib.metadata import version as v\n"
    code += "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    told = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    return _named(json.loads(told.stdout))


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def rows_of(found: Iterable[Row], case: str) -> dict[str, Row]:
    """The rows of a case, by whose they are."""
    return {row.case.partition(": ")[2]: row for row in found if row.case.startswith(f"{case}: ")}
