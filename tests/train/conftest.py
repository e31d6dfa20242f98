"""What the tests of training share: tokens, and a run that nothing disturbed."""

from pathlib import Path

import pytest

from ..conftest import Once
from .launched import Launched
from .small_run import make_data, words


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def undisturbed(once: Once, tokens: Path) -> Path:
    """The folder of a run on two processes from which nothing was taken."""

    def make(folder: Path) -> None:
        folder.mkdir()
        run = Launched(words(folder, tokens, 2), folder / "run")
        run.start()
        assert run.end() == 0, run.talk()
        run.close()

    return once("undisturbed", make) / "run"
