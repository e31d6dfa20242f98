"""Compiles programs for slices that are not there, each in a child process, several at a time.

In: `CompileRequest`s. Out: `Compilation`s, in the same order. A crash, a refusal or a timeout of
the compiler is an answer with its last words, never an exception.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import rooflight
from rooflight.compile.aot.cache import cache_folder, evict, failed, keep, work_folder
from rooflight.compile.aot.duration import forecast_s
from rooflight.compile.aot.environment import child_environment, require_compiler
from rooflight.compile.aot.request import CompileRequest, Stage, write_task
from rooflight.compile.aot.target import usable_bytes
from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.memory import OutOfMemory, read_out_of_memory
from rooflight.compile.hlo.step import CompiledStep
from rooflight.units import format_seconds

Outcome = Literal["compiled", "out of memory", "refused", "crashed", "timed out", "not built"]
Watch = Callable[[int, str, float], None]  # which request, what it is doing, for how many seconds

_POLL_S = 0.05
_FEW_S = 5.0  # below it forecasts are off by half
_PACKAGE = Path(rooflight.__file__)
# Another environment has its own jax: of this one it sees the package alone, not what lies beside.
_BOOT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("rooflight", sys.argv[1])
sys.modules["rooflight"] = module_from_spec(spec)
from rooflight.compile.aot.child import main
sys.exit(main(sys.argv[2]))
"""
_LAST_LINES = 12
_MOST_WORDS = 400
_ERROR = re.compile(r"[\w.]+(Error|Exception): ")
# A crash of libtpu ends in a stack, then pages about memory and where to send a core dump.
_CRASH = re.compile(r"\*\*\* SIG|https?://symbolize")
_CRASH_FRAME = re.compile(r"(?:PC: |    )@ +0x[0-9a-f]+ +\S+ +((?!FailureSignal|\(unknown)\S.*)")
_WARNING = re.compile(r"[IW]\d{4} ")
_KEPT = ("compiled", "out of memory", "refused")  # the same again next time
# The first dump that says a stage is over; the other files of the stage are there before it.
# The GPU compiler writes none at the schedule, and is let through to the end.
_MARKERS: dict[tuple[str, Stage], str] = {
    ("tpu", "partitioned"): "*.after_tpu-spmd-partitioning.before_*.txt",
    ("tpu", "scheduled"): "*after_optimizations_after_buffer_assignment.txt",
    ("gpu", "partitioned"): "*.after_spmd_partitioner.txt",
}
# What no reader needs: copies of the flags, the program before it was partitioned, machine code.
_DROPPED = (
    *("*.flagfile", "*-buffer-assignment-values.txt", "*before_*spmd-partitioning.txt"),
    *("*.ll", "*.ptx", "*thunk*"),
)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What came of a request: the verdict, the folder of the dumps, and what it cost."""

    request: CompileRequest
    outcome: Outcome
    words: str  # the compiler's own, if it did not get through
    folder: Path
    axes: dict[str, int]
    versions: dict[str, str]
    out_of_memory: OutOfMemory | None
    memory: dict[str, int]  # memory_analysis() of a finished executable
    seconds: float
    cpu_s: float
    resident_bytes: int
    was_cached: bool
    results: tuple[str, ...] = ()  # where each is in the tree that the program returns

    @property
    def is_good(self) -> bool:
        return self.outcome == "compiled"

    @property
    def last_words(self) -> str:
        """The compiler's verdict, or the last error of a program that could not be built."""
        errors = [line for line in self.words.splitlines() if _ERROR.match(line)]
        return (errors[-1] if errors else self.words)[:_MOST_WORDS]


def compile_all(
    requests: Sequence[CompileRequest],
    *,
    jobs: int | None = None,
    cache: Path | None = None,
    watch: Watch | None = None,
) -> list[Compilation]:
    """Compiles every request, `jobs` at a time (as many as there are cores), cached ones at once.

    `cache` is where results are kept; the user's own cache folder if left out.
    """
    for request in (one for one in requests if not one.python):
        require_compiler("gpu" if request.mesh.slice.chip.kind == "gpu" else "tpu")
    store = (cache or cache_folder()).resolve()  # a child works in a folder of its own
    store.mkdir(parents=True, exist_ok=True)

    def run(at: int) -> Compilation:
        def tell(phase: str, seconds: float) -> None:
            if watch:
                watch(at, phase, seconds)

        return _compile(requests[at], store, tell)

    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        done = list(pool.map(run, range(len(requests))))
    if not all(one.was_cached for one in done):
        evict(store)
    return done


def read_compilation(done: Compilation, *, stage: str | None = None) -> CompiledStep:
    """What a compile came to, at its latest stage or the one asked for."""
    dumps = find_dumps(done.folder, stage=stage)
    return read_dump(choose_dump(dumps, module=None, where=done.folder))


def laid_out(done: Compilation) -> tuple[Compilation, CompiledStep | None]:
    """The scheduled step, where there is one; that of a GPU is held to its memory here.

    A compiler writes one also where it then finds that it is too large; that of GPUs never looks.
    """
    if done.outcome not in ("compiled", "out of memory"):
        return done, None
    step, limit = read_compilation(done), usable_bytes(done.request.mesh, done.axes)
    needed = step.memory.total_bytes if step.memory else 0
    if (
        not done.is_good
        or done.request.mesh.slice.chip.kind != "gpu"
        or needed <= (limit or needed)
    ):
        return done, step
    over = OutOfMemory(needed, limit or needed)
    return replace(done, outcome="out of memory", out_of_memory=over), step


def is_timed(done: Compilation) -> bool:
    """Whether its schedule has what a time is made of; that of a GPU has it in any case."""
    is_gpu = done.request.mesh.slice.chip.kind == "gpu"
    return done.is_good and (is_gpu or done.request.until == "executable")


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a child process ended, and what it took.

    The most memory it held is read while it lives: `ru_maxrss` also remembers its parent's.
    """

    code: int
    stopped: Literal["", "done", "late"]
    cpu_s: float
    resident_bytes: int


def _compile(
    request: CompileRequest, store: Path, tell: Callable[[str, float], None]
) -> Compilation:
    started = time.monotonic()
    work = work_folder(store)
    try:
        write_task(request, work / "task.pickle", cache=store)
        ended = _run_child(request, work, store, tell)
        lowered = _read_json(work / "lowered.json")
        asked = f"{request.build} {request.mesh.slice} {request.mesh} {sorted(request.arguments)}"
        unlowered = hashlib.sha256(asked.encode()).hexdigest()[:32]
        entry = store / str(lowered.get("key", unlowered))
        if facts := _read_json(entry / "summary.json"):
            return _compilation(request, facts, entry, time.monotonic() - started)
        return _conclude(request, work, entry, ended, time.monotonic() - started)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_child(
    request: CompileRequest, work: Path, store: Path, tell: Callable[[str, float], None]
) -> _Ended:
    command = [sys.executable, "-m", "rooflight.compile.aot.child", str(work / "task.pickle")]
    if request.python:
        command = [request.python, "-c", _BOOT, str(_PACKAGE), str(work / "task.pickle")]
    scratch = work / "scratch"  # logs of libtpu, which has no word for none
    scratch.mkdir()
    environment = child_environment(os.environ) | {"TMPDIR": str(scratch)}
    with (work / "compiler.log").open("w") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # the child ends when it closes: with us, however we end
            stdout=log,
            stderr=log,
            env=environment,
            cwd=work,
        )
    try:
        return _watch_child(child, request, work, store, tell)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
        if child.stdin:
            child.stdin.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _watch_child(
    child: "subprocess.Popen[bytes]",
    request: CompileRequest,
    work: Path,
    store: Path,
    tell: Callable[[str, float], None],
) -> _Ended:
    """Waits for the end of the process or of the stage, whichever is first; kill is silent."""
    started = time.monotonic()
    stopped: Literal["", "done", "late"] = ""
    resident, phase = 0, "lowering"
    marker = _MARKERS.get((request.mesh.slice.chip.kind, request.until))
    while True:
        resident = max(resident, _peak_resident(child.pid))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return _Ended(child.returncode, stopped, usage.ru_utime + usage.ru_stime, resident)
        seconds = time.monotonic() - started
        if phase == "lowering" and (lowered := _read_json(work / "lowered.json")):
            phase = _compiling(lowered, store)
            tell(phase, seconds)  # a short compile may be over by now
        if not stopped and marker and any(_is_whole(path) for path in work.glob(marker)):
            stopped = "done"
        elif not stopped and seconds > request.timeout_s:
            stopped = "late"
        if stopped:
            os.kill(child.pid, signal.SIGKILL)
        else:
            tell(phase, seconds)
        time.sleep(_POLL_S)


def _compiling(lowered: Mapping[str, Any], store: Path) -> str:
    """What comes after lowering: a result of before, or a compile of about so long."""
    if (store / str(lowered["key"])).exists():
        return "found in the cache"
    seconds = forecast_s(lowered, store)
    if seconds is None:
        return "compiling, not in the cache"
    about = "a few seconds" if seconds < _FEW_S else f"about {format_seconds(seconds)}"
    return f"compiling, not in the cache: {about} of CPU"


def _peak_resident(pid: int) -> int:
    """The most bytes of memory a running process has held; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peaks = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return sum(int(line.split()[1]) * 1024 for line in peaks)


def _is_whole(path: Path) -> bool:
    """Whether the dump that ends a stage is there to its last brace."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        return file.read().rstrip().endswith(b"\n}")


def _conclude(
    request: CompileRequest, work: Path, entry: Path, ended: _Ended, seconds: float
) -> Compilation:
    result = _read_json(work / "result.json")
    log = (work / "compiler.log").read_text(errors="replace")
    words = str(result.get("error") or result.get("not_built") or _last_words(log))
    outcome = _outcome(work, result, ended)
    if outcome == "crashed":
        how = signal.Signals(-ended.code).name if ended.code < 0 else f"exit code {ended.code}"
        words = f"{how}: {words}"
    facts: dict[str, Any] = {  # Any: plain JSON of our own making
        **_read_json(work / "lowered.json"),
        "memory": result.get("memory", {}),
        "costs": result.get("costs", {}),
        "outcome": outcome,
        "words": "" if outcome == "compiled" else words,
        "cpu_s": ended.cpu_s,
        "resident_bytes": ended.resident_bytes,
    }
    (work / "summary.json").write_text(json.dumps(facts))
    for pattern in _DROPPED:
        for path in work.glob(pattern):
            path.unlink()
    if outcome not in _KEPT:
        entry = failed(entry)
        shutil.rmtree(entry, ignore_errors=True)
    return _compilation(request, facts, keep(work, entry), seconds, was_cached=False)


def _outcome(work: Path, result: dict[str, Any], ended: _Ended) -> Outcome:
    if ended.stopped == "late":
        return "timed out"
    if ended.stopped == "done" or (ended.code == 0 and "memory" in result):
        return "compiled"
    if "error" in result:
        return "out of memory" if read_out_of_memory(str(result["error"])) else "refused"
    return "crashed" if (work / "lowered.json").exists() or ended.code < 0 else "not built"


def _last_words(log: str) -> str:
    """The end of what the process said; of a crash, the functions it happened in."""
    lines = log.splitlines()
    end = next((at for at, line in enumerate(lines) if _CRASH.match(line)), len(lines))
    said = [line for line in lines[:end] if line.strip() and not _WARNING.match(line)]
    frames = [m[1] for line in lines[end:] if (m := _CRASH_FRAME.match(line))]
    where = f"in {' < '.join(frames[:4])}" if frames else ""
    return "\n".join([*said[-_LAST_LINES:], where]).strip()


def _compilation(
    request: CompileRequest,
    facts: Mapping[str, Any],
    folder: Path,
    seconds: float,
    *,
    was_cached: bool = True,
) -> Compilation:
    return Compilation(
        request=request,
        outcome=facts["outcome"],
        words=facts["words"],
        folder=folder,
        axes=facts.get("axes", {}),
        versions=facts.get("versions", {}),
        out_of_memory=read_out_of_memory(facts["words"]),
        memory=facts["memory"],
        seconds=seconds,
        cpu_s=facts["cpu_s"],
        resident_bytes=facts["resident_bytes"],
        was_cached=was_cached,
        results=tuple(facts.get("results", ())),
    )


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
