"""Commands where nothing may be written but one folder with a space in its name, and no network."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rooflight.compile.hlo.dump import EXAMPLE

_ROOT = [] if os.getuid() == 0 else ["--map-root-user"]
_APART = ["unshare", "--mount", "--net", *_ROOT]
_READ_ONLY = """
set -e
mount --bind "$KEEP" "$KEEP"
for f in "$HOME" /tmp /var/tmp; do mount --rbind "$f" "$f"; mount -o remount,ro,bind "$f"; done
cd "$KEEP"
exec "$@"
"""
_STEPS = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def build(mesh):
    w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "X")))
    return jax.jit(lambda w, x: x @ w), (w, w)
"""
_PLAN = ("plan", "train", "llama3-8b", "--on", "v5e:4x4", "--batch", "64Ki", "--seq", "4096")
_LAYOUT = ("llama3-8b", "--layout", "fsdp=16", *_PLAN[3:])
_VERIFY = ("verify", "--fn", "my steps.py:build", "--on", "v5e:2x2", "--mesh", "X=4")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _can_be_apart() -> bool:
    try:
        return subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _can_be_apart(), reason="needs unshare, of Linux")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "my work"
    found.mkdir()
    return found


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs a command with home and temporary folders read-only, in `folder`, offline."""
    home = folder.parent / "a home"
    home.mkdir()

    def confined(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        known = {k: v for k, v in os.environ.items() if not k.startswith(("ROOFLIGHT", "XDG"))}
        known.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "rooflight", *arguments]
        return subprocess.run(
            [*_APART, "sh", "-c", _READ_ONLY, "sh", *command],
            env=known | {"KEEP": str(folder), "HOME": str(home), **more},
            capture_output=True,
            text=True,
            check=False,
        )

    return confined


def test_planning_and_reading_work_and_leave_no_file(run: Run, folder: Path) -> None:
    made = run(*_PLAN, "--json")
    assert made.returncode == 0, made.stderr
    (folder / "a plan.json").write_text(made.stdout)
    (folder / "a dump.txt").write_text(EXAMPLE.read_text())
    before = sorted(folder.rglob("*"))
    for words in (
        ("chips",),
        ("verify", "a plan.json", "--expect"),
        ("hlo", "a dump.txt"),
        ("forecast", *_LAYOUT),
    ):
        found = run(*words)
        assert found.returncode == 0, (words, found.stderr)
        assert found.stdout
    assert sorted(folder.rglob("*")) == before


def test_where_nothing_can_be_kept_it_is_said_with_what_to_set(run: Run, folder: Path) -> None:
    (folder / "my steps.py").write_text(_STEPS)
    doctor = run("doctor")
    assert doctor.returncode == 0 and "Results of compiles cannot be kept" in doctor.stdout
    if importlib.util.find_spec("jax") and importlib.util.find_spec("libtpu"):
        refused = run(*_VERIFY)
        assert refused.returncode == 2 and "set XDG_CACHE_HOME" in refused.stderr
    assert [path.name for path in folder.iterdir()] == ["my steps.py"]


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_compile_writes_into_the_cache_alone(run: Run, folder: Path) -> None:
    (folder / "my steps.py").write_text(_STEPS)
    cache = folder / "a cache"
    found = run(*_VERIFY, ROOFLIGHT_CACHE=str(cache))
    assert found.returncode == 0 and "no finding" in found.stdout, found.stderr
    assert {path.name for path in folder.iterdir()} == {"my steps.py", "a cache"}
    assert len([*cache.iterdir()]) == 2  # both stages, and no folder that one worked in
