"""What tests of several folders share: the built wheel, and an environment with nothing else."""

import fcntl
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# Properties: few examples every day, the same ones in CI; tests/test_properties.py asks for more.
settings.register_profile(
    "everyday", max_examples=30, deadline=None, derandomize="CI" in os.environ
)
settings.register_profile("large", max_examples=300, deadline=None)
settings.load_profile("everyday")

# Commands print as into a pipe of any width, whatever the shell that runs the tests exports.
os.environ.pop("COLUMNS", None)

Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A folder by name, which the first process of a run makes and the others find."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        done = root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(root / name)
                done.touch()
        return root / name

    return folder


@pytest.fixture(scope="session")
def built(once: Once) -> Path:
    """A folder with the sdist of this tree and the wheel that is built from that sdist."""
    return once("built", _build)


@pytest.fixture(scope="session")
def clean(once: Once, built: Path) -> Path:
    """The bin folder of a new environment that holds the wheel and what it depends on."""
    (wheel,) = built.glob("*.whl")
    return once("clean", lambda folder: _install(folder, str(wheel))) / "bin"


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _install(folder: Path, *what: str) -> None:
    venv.create(folder)  # without a pip of its own, which takes longer than all the rest
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    command = [*pip, "install", "--quiet", "--no-compile", *what]  # compiled when it is imported
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# Workers take whole files (`--dist loadfile`), the longest first.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    path = ROOT / "tests" / "times.json"
    seconds: dict[str, float] = json.loads(path.read_text())["files"] if path.exists() else {}
    # Stable: a file keeps its order.
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line for `./check` at the end of each phase; workers leave it to the one who asked them."""
    path = os.environ.get("ROOFLIGHT_JOURNAL")
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    why = str(report.longrepr or "").strip().splitlines()
    line = {
        "test": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": report.duration,
        "why": next((w for w in why if w.startswith("E ")), why[-1] if why else "")[:300],
    }
    Path(path).parent.mkdir(exist_ok=True)
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
