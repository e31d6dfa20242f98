"""The explorer as a folder of files: it answers in the browser, and asks no other host."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from rooflight.cli.main import main
from rooflight.ui.browser.site import Site
from rooflight.ui.browser.view import Files
from rooflight.ui.browser.views import VIEWS

from .conftest import LONGEST_MS, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIGHT = ("roofline", "shard", "collectives", "chip", "book")
HEAVY = ("train", "serve")
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")
# Without numpy, as in Pyodide: what is printed is the status, and the answer's sentence.
_ALONE = """
import sys
class NoNumpy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("none here", name="numpy")
sys.meta_path.insert(0, NoNumpy())
from rooflight.ui.static.here import respond
for name in sys.argv[1:]:
    status, _, text = respond(f"/part/{name}", "")
    print(status, text.partition("</p>")[0].rpartition(">")[2])
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def written(folder: Path, pyodide: Path) -> Path:
    assert main(["explore", "--static", str(folder), "--pyodide", str(pyodide)]) == 0
    return folder


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """Files under the names of Pyodide's."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in (*RUNTIME, "python_stdlib.zip"):
        (folder / name).write_text(name)
    return folder


def test_the_folder_holds_all_that_its_pages_name(tmp_path: Path, runtime: Path) -> None:
    site = written(tmp_path / "site", runtime)
    pages = [site / "index.html", *(site / name / "index.html" for name in (*LIGHT, *HEAVY))]
    for page in pages:
        text = page.read_text()
        for address in re.findall(r'(?:href|src|action)="([^"#]*)"', text):
            target = (page.parent / address.partition("?")[0]).resolve()
            assert target.is_relative_to(site.resolve()) and target.exists(), (page, address)
        assert text.index("static.js") < text.index("explore.js")
        assert not re.search(r"(href|src|action)=\"(/|http)", text)
    with ZipFile(site / "rooflight.zip") as archive:
        names = archive.namelist()
    assert "rooflight/hardware/catalog/v5e.toml" in names and "rooflight/py.typed" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_without_pyodide_nothing_is_written(tmp_path: Path) -> None:
    assert main(["explore", "--static", str(tmp_path / "site"), "--pyodide", str(tmp_path)]) == 2
    assert not (tmp_path / "site").exists()


def test_without_numpy_the_light_views_answer_as_ever_and_the_others_say_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, *LIGHT, *HEAVY], capture_output=True, text=True, check=True
    )
    site = Site(VIEWS, Files())
    parts = [site.respond(f"/part/{name}", "").body.decode() for name in LIGHT]
    heads = [f"200 {text.partition('</p>')[0].rpartition('>')[2]}" for text in parts]
    refused = "422 this question needs numpy, which this page does not have"
    assert done.stdout.splitlines() == [*heads, *[refused] * len(HEAVY)]


@pytest.fixture(scope="module")
def static_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site with the real Pyodide, below a folder of a plain file server."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine")
    folder = tmp_path_factory.mktemp("static")
    subprocess.run([npm, "pack", "pyodide"], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("pyodide-*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    written(folder / "deep" / "site", folder / "package")
    handler = partial(_Quiet, directory=str(folder / "deep"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def headline(site: Site, name: str, query: str) -> str:
    return json.loads(site.respond(f"/api/{name}", query).body)["sentences"][0]


@pytest.mark.full
def test_a_browser_answers_by_itself_what_a_server_would(
    browser: "Browser", static_url: str
) -> None:
    """One page all along: a question from its address, a field, views, a derivation, a file."""
    page = browser.new_page(reduced_motion="reduce")
    page.set_default_timeout(LONGEST_MS)
    there = Visit(page, static_url)
    there.listen()
    there.go("/site/roofline/?on=v5p&b=64")
    site = Site(VIEWS, Files())
    assert page.locator("#answer .answer").inner_text() == headline(site, "roofline", "on=v5p&b=64")
    page.locator("#f-b").fill("4096")
    page.locator("#answer .answer", has_text="4096x").wait_for()
    assert "b=4096" in page.url
    with page.expect_download() as made:
        page.locator("#answer a[download='roofline.json']").click()
    query = page.url.partition("?")[2]
    assert made.value.path().read_bytes() == site.respond("/api/roofline", query).body
    for name in (*LIGHT, *HEAVY):
        page.locator(f"nav a[href$='/{name}/']").click()
        page.locator(f"main[data-view={name}]").wait_for()
        there.settle()
        state = page.locator("#answer").get_attribute("data-state")
        assert state == ("fresh" if name in LIGHT else "refused"), name
        if name in LIGHT:
            assert page.locator("#answer .answer").inner_text() == headline(site, name, "")
    page.locator("nav a[href$='/book/']").click()
    page.locator("main[data-view=book]").wait_for()
    there.settle().page.locator("table[data-table] a").first.click()
    page.locator("#answer table[data-table^=answers]").first.wait_for()
    page.go_back()
    page.locator("h1", has_text="Book").wait_for()
    there.settle()
    page.locator("header .home").click()
    page.locator("h1", has_text="Ask, and look").wait_for()
    page.close()
    assert there.complaints == []
