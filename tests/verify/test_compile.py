"""Real compiles for slices that are not here: every way they can end, and the cache.

All of them run in one batch, two at a time; each needs about two seconds of one core.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from rooflight.compile.aot import run as compile
from rooflight.compile.aot.cache import keep
from rooflight.compile.aot.request import PLAIN_COLLECTIVES, CompileRequest
from rooflight.compile.aot.run import Compilation, compile_all, read_compilation
from rooflight.compile.findings.finding import located, warning_finding
from rooflight.hardware.mesh import parse_mesh

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler that is asked, is not installed",
)

HERE = Path(__file__).parent
MIB = 2**20
SMALL: dict[str, object] = {"rows": 4096, "cols": 8192}
LAYERS: dict[str, object] = {"layers": 2, "tokens": 4096, "model": 2048, "hidden": 8192}
V5E = parse_mesh("X=4,Y=4", on="v5e:4x4")
THREE_AXES = parse_mesh("X=4,Y=2,Z=2", on="v5e:4x4")
V5P = parse_mesh("X=16,Y=4", on="v5p:4x4x4")


def _request(build: str, arguments: dict[str, object] | None = None) -> CompileRequest:
    return CompileRequest(f"programs:{build}", V5E, arguments or {}, folder=str(HERE))


REQUESTS = {
    "psum": _request("psum", SMALL),
    "again": _request("psum", SMALL),
    "scan": _request("scan", {**SMALL, "outer": 3, "inner": 5}),
    "fsdp": CompileRequest(
        *("programs:fsdp", V5P, LAYERS, "partitioned", PLAIN_COLLECTIVES, str(HERE))
    ),
    "full": CompileRequest("programs:gather", V5E, SMALL, "executable", folder=str(HERE)),
    "large": _request("too_large", {"rows": 400_000}),
    "resharded": CompileRequest(
        "programs:resharded", THREE_AXES, until="partitioned", folder=str(HERE)
    ),
    "killed": _request("killed"),
    "endless": CompileRequest("programs:endless", V5E, folder=str(HERE), timeout_s=2.0),
    "broken": _request("broken"),
    "asks": _request("asks_where_it_runs"),
    "refused": CompileRequest(
        *("programs:psum", V5E, SMALL, "scheduled", {"xla_no_such_option": True}, str(HERE))
    ),
}


PHASES: list[tuple[int, str]] = []


def _note(which: int, phase: str, seconds: float) -> None:
    assert seconds >= 0
    PHASES.append((which, phase))


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a child would leave what it does not clear away."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> dict[str, Compilation]:
    cache = tmp_path_factory.mktemp("cache")
    first = [name for name in REQUESTS if name != "again"]
    del (bytearray(b"x") * 2**31)[:]  # this process was larger than a child will ever be
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        found = compile_all([REQUESTS[name] for name in first], jobs=2, cache=cache)
        again = compile_all([REQUESTS["again"]], cache=cache, watch=_note)
    return dict(zip([*first, "again"], [*found, *again], strict=True))


def _kinds(compiled: Compilation) -> Counter[tuple[str, str, int]]:
    step = read_compilation(compiled)
    counted: Counter[tuple[str, str, int]] = Counter()
    for c in step.collectives:
        counted[c.kind, "+".join(c.axes or ("?",)), c.nbytes] += c.count or 0
    return counted


def test_a_compile_stops_at_the_schedule_and_says_what_it_took(
    done: dict[str, Compilation],
) -> None:
    found = done["psum"]
    assert found.is_good and not found.was_cached and found.words == ""
    assert _kinds(found) == {("all_reduce", "X", 4 * MIB): 1}
    assert set(found.versions) == {"jax", "jaxlib", "libtpu"}
    assert 0 < found.cpu_s < 60 and 50 * MIB < found.resident_bytes < 2**31
    assert read_compilation(found).warnings == ()


def test_a_program_that_asks_where_it_runs_is_told_of_the_slice(
    done: dict[str, Compilation],
) -> None:
    found = done["asks"]
    assert found.is_good, found.words
    assert found.axes == {"rows": 2, "cols": 8}  # the mesh that the program made


def test_the_same_program_comes_from_the_cache(done: dict[str, Compilation]) -> None:
    assert done["again"].was_cached and done["again"].folder == done["psum"].folder
    assert (0, "lowering") in PHASES  # the program is lowered to know it again


def test_nested_loops_are_read_from_a_fresh_dump(done: dict[str, Compilation]) -> None:
    assert _kinds(done["scan"]) == {
        ("permute", "X", 4 * MIB): 15,
        ("all_to_all", "Y", 16 * MIB): 3,
    }


def test_the_partitioned_program_is_the_textbook(done: dict[str, Compilation]) -> None:
    weight, tokens = 2 * 2048 * 8192 // 4, 2 * 4096 // 16 * 2048
    assert _kinds(done["fsdp"]) == {
        ("all_gather", "X", weight): 10,
        ("reduce_scatter", "X", weight): 4,
        ("all_reduce", "Y", tokens): 4,
        ("all_reduce", "X", 4): 1,
    }


def test_the_full_mode_has_the_compilers_own_figures(done: dict[str, Compilation]) -> None:
    found = done["full"]
    assert found.is_good and found.memory["output_size_in_bytes"] == 16 * MIB
    step = read_compilation(found)
    assert all(c.algorithm for c in step.collectives)


def test_what_does_not_fit_is_a_verdict_with_its_figures(done: dict[str, Compilation]) -> None:
    found = done["large"]
    assert found.outcome == "out of memory" and found.out_of_memory
    assert found.out_of_memory.needed_bytes > 2 * 400_000**2
    assert found.out_of_memory.limit_bytes == int(15.75 * 2**30)
    memory = read_compilation(found).memory
    assert memory and memory.total_bytes == pytest.approx(
        found.out_of_memory.needed_bytes, rel=1e-3
    )


def test_a_warning_of_the_partitioner_is_passed_on(done: dict[str, Compilation]) -> None:
    step = read_compilation(done["resharded"])
    (warning,) = step.warnings
    assert warning.startswith("[SPMD] Involuntary full rematerialization.")
    assert warning_finding(located(warning, step.module)).place.startswith("programs.py:")


def test_a_crash_is_an_answer_with_the_last_words(done: dict[str, Compilation]) -> None:
    found = done["killed"]
    assert found.outcome == "crashed" and found.words.startswith("SIGFPE: ")
    assert "the last words" in found.words and len(found.words) < 500


def test_a_compile_that_takes_too_long_is_stopped(done: dict[str, Compilation]) -> None:
    assert done["endless"].outcome == "timed out"
    assert 2 <= done["endless"].seconds < 1000  # for that long it would sleep


def test_a_mistake_of_the_program_is_told_from_one_of_the_compiler(
    done: dict[str, Compilation],
) -> None:
    assert done["broken"].outcome == "not built"
    assert "ValueError: no such axis in ('X', 'Y')" in done["broken"].words


def test_nothing_is_left_but_the_results_however_a_compile_ends(
    done: dict[str, Compilation], temporary: Path
) -> None:
    assert {one.outcome for one in done.values()} == {*get_args(compile.Outcome)}
    assert [*temporary.iterdir()] == []
    folders = {one.folder for one in done.values()}
    (cache,) = {folder.parent for folder in folders}
    assert {*cache.iterdir()} == folders
    assert [*cache.rglob("tpu_driver*")] == []


def test_a_child_ends_with_its_parent_and_leaves_nothing(tmp_path: Path) -> None:
    """The program tells its process, and waits for ever."""
    told = tmp_path / "pid"
    (tmp_path / "waits.py").write_text(
        "import os, pathlib, time\n"
        "def build():\n"
        f"    pathlib.Path({str(told)!r} + '.part').write_text(str(os.getpid()))\n"
        f"    os.rename({str(told)!r} + '.part', {str(told)!r})\n"
        "    time.sleep(3600)\n"
    )
    command = [sys.executable, "-m", "rooflight", "verify", "--fn", "waits.py:build"]
    store = tmp_path / "cache"
    parent = subprocess.Popen(
        [*command, "--on", "v5e:2x4"],
        cwd=tmp_path,
        env=os.environ | {"ROOFLIGHT_CACHE": str(store)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _until(told.exists)
    parent.kill()
    parent.wait()
    child = int(told.read_text())
    _until(lambda: not Path(f"/proc/{child}").exists())
    assert not [path for path in store.rglob("*") if path.is_file()]


def _until(holds: Callable[[], bool]) -> None:
    """A bounded wait for what has to come."""
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failure_that_another_process_has_just_replaced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_and_lose(work: Path, entry: Path) -> Path:
        shutil.rmtree(keep(work, entry))  # as whoever compiles the same at the same time does
        return entry

    monkeypatch.setattr(compile, "keep", keep_and_lose)
    (found,) = compile_all([REQUESTS["broken"]], cache=tmp_path)
    assert found.outcome == "not built" and "no such axis" in found.words


def test_an_option_the_compiler_does_not_know_is_its_refusal(done: dict[str, Compilation]) -> None:
    assert done["refused"].outcome == "refused"
    assert "xla_no_such_option" in done["refused"].words
