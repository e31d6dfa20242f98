"""What tests of several folders share: a new environment with nothing but rooflight in it."""

import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that holds rooflight and what it depends on."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=True)
    pip = [str(folder / "env" / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", str(ROOT)], check=True, capture_output=True)
    return folder / "env" / "bin"
