"""The handbook in a real browser, wide and light, narrow and dark: no error, usable by all."""

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast  # Any: what axe found, as JSON

import pytest

pytest.importorskip("playwright")

from axe_playwright_python.sync_playwright import Axe  # pyright: ignore[reportMissingTypeStubs]
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM = shutil.which("chromium")
PAGES = ("guides/index.html", "concepts/sharding.html", "labs/serving.html", "notebook.html")
LONGEST_MS = 300_000  # that a browser may take on a busy machine
WIDTHS = {"light": 1280, "dark": 390}
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=arguments, timeout=LONGEST_MS
        )
        yield browser
        browser.close()


def empty(browser: Browser) -> tuple[Page, list[str]]:
    """A page, and what goes wrong: errors of the console, requests to other places than files."""
    page, wrong = browser.new_page(), list[str]()
    page.set_default_timeout(LONGEST_MS)

    def heard(message: ConsoleMessage) -> None:
        wrong.extend([message.text] if message.type == "error" else [])

    def asked(request: Request) -> None:
        wrong.extend([] if request.url.startswith(("file:", "data:")) else [request.url])

    page.on("console", heard)
    page.on("request", asked)
    return page, wrong


def serious(page: Page) -> list[str]:
    """What axe finds of weight."""
    found: list[dict[str, Any]] = cast(Any, Axe()).run(page).response["violations"]
    heavy = [v for v in found if v["impact"] in ("serious", "critical")]
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in heavy]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_an_error_and_all_can_use_it(
    site: Path, browser: Browser, name: str
) -> None:
    page, wrong = empty(browser)
    for scheme in WIDTHS:
        page.set_viewport_size({"width": WIDTHS[scheme], "height": 900})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto((site / name).as_uri())
        assert wrong == []
        assert serious(page) == []
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, "the page itself never scrolls sideways"
        wrong.clear()  # axe asks for style sheets, which files may not
    page.close()


def test_the_search_finds_a_word_without_a_network(site: Path, browser: Browser) -> None:
    page, wrong = empty(browser)
    page.goto(f"{(site / 'search.html').as_uri()}?q=roofline")
    page.locator("#search-results li").first.wait_for()
    assert wrong == []
    page.close()
