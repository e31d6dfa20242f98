"""A real server of a tiny model: the process that `rooflight serve` starts, and a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .server_process import Server, start_server
from .tiny_model import make_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("service") / "tiny")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    """Without keys; shared by all tests, each of which leaves it healthy."""
    with start_server(folder) as server:
        yield server
