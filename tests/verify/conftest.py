"""The dumps the reader is tested on, and whether this machine has the compiler that wrote them."""

import sys
from pathlib import Path

import pytest

from rooflight.compile.hlo.dump import choose_dump, find_dumps, read_dump
from rooflight.compile.hlo.step import CompiledStep

sys.path.insert(0, str(Path(__file__).parent))


DUMPS = Path(__file__).parent / "dumps"


@pytest.fixture(scope="session")
def steps() -> dict[str, CompiledStep]:
    """Every dump of the folder, read."""
    folders = sorted(path for path in DUMPS.iterdir() if path.is_dir())
    return {
        path.name: read_dump(choose_dump(find_dumps(path), module=None, where=path))
        for path in folders
    }


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    """The HLO text of every dump."""
    return {path.name: find_dumps(path)[0].path.read_text() for path in sorted(DUMPS.iterdir())}
