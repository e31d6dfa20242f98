"""What a new user gets: a clean environment without jax, the README's commands, the same output."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANNER = ("specs", "algebra", "costs", "costs.sweep", "netsim", "book", "report", "cli.main")


def test_the_planner_half_works_without_jax(clean: Path) -> None:
    names = [f"rooflight.{name}" for name in PLANNER]
    code = f"""
import importlib, importlib.util
assert importlib.util.find_spec("jax") is None
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([clean / "python", "-c", code], check=True)


def test_the_readme_prints_the_same_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("snippets", ROOT / "tests" / "snippets.py")
    assert spec and spec.loader
    snippets = importlib.util.module_from_spec(spec)
    sys.modules["snippets"] = snippets
    spec.loader.exec_module(snippets)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    for command in snippets.commands(ROOT / "README.md"):
        done = subprocess.run(
            [clean / "rooflight", *command.argv],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        assert done.stdout.strip("\n") == command.output, done.stderr
