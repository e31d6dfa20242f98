"""Every command and every example in the documentation is run, and prints what the page shows.

`ROOFLIGHT_UPDATE_GOLDEN=1 pytest tests/test_docs.py` writes fresh outputs into the pages.
"""

import doctest
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rooflight.cli.main import main


def _load_snippets() -> ModuleType:
    path = Path(__file__).with_name("snippets.py")
    spec = importlib.util.spec_from_file_location("snippets", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["snippets"] = module
    spec.loader.exec_module(module)
    return module


snippets = _load_snippets()


@pytest.mark.parametrize("page", snippets.PAGES, ids=snippets.name)
def test_the_commands_of_a_page_print_what_it_shows(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("docs", "tests"):  # some commands read files of the repository
        (tmp_path / folder).symlink_to(snippets.ROOT / folder)
    monkeypatch.chdir(tmp_path)  # and some write files
    outputs: dict[str, str] = {}
    for command in snippets.commands(page):
        main(command.argv)
        outputs[command.line] = capsys.readouterr().out.strip("\n")
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        snippets.rewrite(page, outputs)
    for command in snippets.commands(page):
        assert outputs[command.line] == command.output, command.line


@pytest.mark.parametrize("page", snippets.PAGES, ids=snippets.name)
def test_the_python_examples_of_a_page_run(page: Path) -> None:
    source = "\n".join(snippets.examples(page))  # blocks of a page build on each other
    test = doctest.DocTestParser().get_doctest(source, {}, page.name, None, 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_readme_has_commands_to_run() -> None:
    assert len(snippets.commands(snippets.ROOT / "README.md")) >= 3


@pytest.mark.parametrize("page", snippets.PAGES, ids=snippets.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_that_the_page_on_security_names_is_there() -> None:
    text = (snippets.ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(?:(\w+/test_\w+\.py)(?:::)?)?(test_\w+)?`", text)
    found = "".join(p.read_text() for p in (snippets.ROOT / "tests").rglob("test_*.py"))
    tests = {test for _, test in named if test}
    assert len(tests) > 20 and all(f"def {test}(" in found for test in tests)
    assert all((snippets.ROOT / "tests" / file).is_file() for file, _ in named if file)
