"""The built handbook, once for all tests here, whichever worker runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import Once

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))  # the directives of the pages


@pytest.fixture(scope="session")
def site(once: Once) -> Path:
    """The folder of the HTML; a warning is an error."""
    pytest.importorskip("sphinx")
    return once("handbook", _build)


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2"]
    done = subprocess.run([*command, "docs", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
