"""What the tests of training share: tokens, and a run that nothing disturbed."""

from collections.abc import Generator
from pathlib import Path

import pytest

from .launched import Launched
from .small_run import make_data, words


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def undisturbed(tokens: Path, folder: Path) -> Generator[Path]:
    """The folder of a run on two processes from which nothing was taken."""
    run = Launched(words(folder, tokens, 2), folder / "undisturbed")
    run.start()
    assert run.end() == 0, run.talk()
    yield run.out
    run.close()
