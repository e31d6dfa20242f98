"""What a user gets from the wheel: a planner without jax, the README, the explorer, a server."""

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).parents[1]
PLANNER = (
    *("hardware", "models", "algebra", "costs", "costs.mesh_sweep", "costs.netsim", "book"),
    *("ui.text.table", "cli.main"),
)


def environment() -> dict[str, str]:
    """Without what would lead Python to this tree."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}


@contextmanager
def started(bin: Path, *words: str, at: Path) -> Generator[subprocess.Popen[str]]:
    """A command of the environment, ended with the block."""
    process = subprocess.Popen(
        [bin / "rooflight", *words, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=at,
        env=environment() | {"JAX_PLATFORMS": "cpu"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_document(process: subprocess.Popen[str]) -> dict[str, object]:
    """What it says when it listens."""
    assert process.stdout is not None and process.stderr is not None
    text = process.stdout.readline()
    while not text.endswith("}\n") or text.count("{") != text.count("}"):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        text += line
    return json.loads(text)


def test_the_planner_half_works_without_jax(clean: Path) -> None:
    names = [f"rooflight.{name}" for name in PLANNER]
    code = f"""
import importlib, importlib.util
assert importlib.util.find_spec("jax") is None
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([clean / "python", "-c", code], check=True, env=environment())


def test_the_package_is_that_of_the_wheel(clean: Path, tmp_path: Path) -> None:
    code = "import rooflight; print(rooflight.__file__)"
    command = [clean / "python", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    assert Path(done.stdout).is_relative_to(clean.parent / "lib")


def test_the_readme_prints_the_same_in_a_clean_environment(clean: Path) -> None:
    command = [sys.executable, ROOT / "tests" / "readme.py", clean]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same") >= 3


def test_the_explorer_answers_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    with started(clean, "explore", "roofline", "--no-open", at=tmp_path) as process:
        url = str(first_document(process)["url"])
        with urlopen(url, timeout=60) as response:
            page = response.read().decode()
        with urlopen(f"{url.rpartition('/')[0]}/api/roofline", timeout=60) as response:
            answer = json.load(response)
    assert "<svg" in page and answer["command"].startswith("rooflight roofline")


@pytest.mark.full
def test_the_wheel_serves_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    from .service.tiny_model import make_folder

    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, f"{wheel}[serve,program]"], check=True, capture_output=True)
    model = make_folder(tmp_path / "tiny")
    sizes = ["--rows", "4", "--step-tokens", "40", "--block-tokens", "128", "--max-tokens", "512"]
    words = ["serve", str(model), *sizes]
    with started(tmp_path / "env" / "bin", *words, at=tmp_path) as process:
        said = first_document(process)
        wait_until_ready(process, f"http://{said['host']}:{said['port']}/ready")
        body = {"model": "tiny", "prompt": "the cat", "max_tokens": 5, "temperature": 0}
        question = Request(
            f"http://{said['host']}:{said['port']}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(question, timeout=120) as response:
            answer = json.load(response)
    assert 1 <= answer["usage"]["completion_tokens"] <= 5


def wait_until_ready(process: subprocess.Popen[str], url: str) -> None:
    """A server that is not warm answers 503."""
    for _ in range(6000):
        try:
            with urlopen(url, timeout=60):
                return
        except HTTPError:
            assert process.poll() is None
            time.sleep(0.1)
    raise AssertionError("the server is not ready after ten minutes")
