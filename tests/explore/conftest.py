"""A real server on a free port and a real browser, one of each for all tests of the explorer."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.site import Site
from rooflight.ui.browser.view import Files
from rooflight.ui.browser.views import VIEWS

if TYPE_CHECKING:  # an oracle of tests: where it is missing, tests of the browser are skipped
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

LONGEST_MS = 300_000  # that a browser may take on a busy machine


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the explorer was started in."""
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[ExploreServer]:
    with ExploreServer(Site(VIEWS, Files(folder))) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(scope="module")  # it keeps an event loop running, which others have of their own
def browser() -> "Iterator[Browser]":
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    arguments = ["--no-sandbox", "--disable-gpu"]
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium, args=arguments, timeout=LONGEST_MS
        )
        yield opened
        opened.close()


@dataclass  # with a dict: playwright leaves marks on what listens to it
class Visit:
    """A page of the explorer, and everything that went wrong on it."""

    page: "Page"
    url: str
    complaints: list[str] = field(default_factory=list[str])

    def go(self, path: str) -> "Visit":
        """Opens a path of the server and waits for the whole answer."""
        self.page.goto(self.url + path)
        return self.settle()

    def look(self, *, width: int, dark: bool) -> "Visit":
        """As on a screen of this width."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        return self

    def settle(self) -> "Visit":
        """Waits until nothing on the page is old or still to come."""
        waiting = self.page.locator(".part[data-state=asked], .part[data-state=stale]")
        waiting.first.wait_for(state="detached", timeout=LONGEST_MS)
        return self

    def fill(self, name: str, value: str) -> "Visit":
        """Changes one field of the question and waits for the answer."""
        box = self.page.locator(f"#f-{name}")
        box.evaluate("box => box.closest('details')?.setAttribute('open', '')")
        is_choice = box.evaluate("box => box.tagName") == "SELECT"
        with self.page.expect_response(lambda r: "/part/" in r.url):
            box.select_option(value) if is_choice else box.fill(value)
        return self.settle()

    def facts(self) -> dict[str, str]:
        """The boxes at the head of the answer, as they are read."""
        boxes = self.page.locator("[data-figure]").all()
        return {str(b.get_attribute("data-figure")): b.text_content() or "" for b in boxes}

    def unfold(self) -> "Visit":
        """Opens all that is folded, as a reader would."""
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        return self

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table, as they are read; of a folded one too."""
        found = self.page.locator(f"table[data-table={table}] tbody tr").all()
        return [[c.text_content() or "" for c in r.locator("th, td").all()] for r in found]

    def _console(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning") and "422" not in message.text:
            self.complaints.append(f"console: {message.text}")

    def _request(self, request: "Request") -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "blob" and f"{parts.scheme}://{parts.netloc}" != self.url:
            self.complaints.append(f"request to another host: {request.url}")

    def listen(self) -> None:
        self.page.set_default_timeout(LONGEST_MS)
        self.page.on("console", self._console)
        self.page.on("request", self._request)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page: {error}"))

    def leave(self) -> None:
        """Nothing of a test stays for the next one."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.goto("about:blank")
        self.complaints.clear()


OpenVisit = Callable[..., Visit]


@pytest.fixture(scope="module")
def visits() -> list[Visit]:
    """Pages of the browser of this file: a new one takes twice as long as an answer."""
    return []


@pytest.fixture
def visit(browser: "Browser", server: ExploreServer, visits: list[Visit]) -> Iterator[OpenVisit]:
    """Opens pages; `visit("/train", width=390, dark=True)`. None may complain or leave the host."""
    used: list[Visit] = []

    def open_visit(path: str, *, width: int = 1280, dark: bool = False) -> Visit:
        if len(used) == len(visits):
            visits.append(Visit(browser.new_page(reduced_motion="reduce"), server.url))
            visits[-1].listen()
        made = visits[len(used)]
        used.append(made)
        return made.look(width=width, dark=dark).go(path)

    yield open_visit
    complaints = [c for made in used for c in made.complaints]
    for made in used:
        made.leave()
    assert complaints == []
