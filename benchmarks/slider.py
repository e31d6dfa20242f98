"""A slider over a full pod, moved as a hand does, in a real browser; and its answer alone.

It takes playwright and chromium. The server answers in this process, as do the answers alone.
"""

import shutil
import time
from collections.abc import Iterator
from threading import Thread
from typing import TYPE_CHECKING

from benchmarks.record import Row, ratio_row, row_of
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.site import Site
from rooflight.ui.browser.train import VIEW
from rooflight.ui.browser.view import Files
from rooflight.ui.browser.views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Page

POD = {"model": "llama3-70b", "on": "v5p:16x20x28"}
STOPS = ("1M", "2M", "3M", "6M", "10M", "15M", "20M", "30M", "40M", "60M")
RATIO = "a move / its answer alone"
# Waits until the answer to the question of this stop is drawn.
_MOVE = """async stop => {
  const range = document.querySelector("[data-for=f-batch]");
  const slot = document.getElementById("answer");
  const at = range.dataset.stops.split(" ").indexOf(stop);
  const start = performance.now();
  range.value = at;
  range.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise((done) => {
    const watch = new MutationObserver(() => {
      const isNew = (slot.dataset.query ?? "").includes(`batch=${stop}&`);
      if (slot.dataset.state === "fresh" && isNew) { watch.disconnect(); done(); }
    });
    watch.observe(slot, { attributes: true });
  });
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def run(*, quick: bool) -> Iterator[Row | str]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    stops = STOPS[:3] if quick else STOPS
    with sync_playwright() as playwright, ExploreServer(Site(VIEWS, Files())) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        where = f"{server.url}/train?" + "&".join(f"{k}={v}" for k, v in POD.items())
        _open(page, f"{where}&batch=4M")
        for stop in ("1.5M", "4M", "100M"):  # what no batch changes is derived once
            _moved(page, stop)
        moves, answers = list[float](), list[float]()
        for stop in stops:
            moves.append(_moved(page, stop))
            answers.append(_answered(stop))
        _open(page, f"{where}&batch=4M&recipe=16")
        dragged = [float(page.evaluate(_MOVE, stop)) / 1e3 for stop in stops]
        browser.close()
        server.shutdown()
    yield row_of("a move of the batch slider", moves, more={"slowest_s": max(moves)})
    yield row_of("dragged on without a pause", dragged, more={"slowest_s": max(dragged)})
    yield row_of("its answer alone", answers, more={"slowest_s": max(answers)})
    yield ratio_row(RATIO, moves, answers)
    yield "Other load includes the browser."


def _open(page: "Page", url: str) -> None:
    page.goto(url)
    _settle(page)


def _settle(page: "Page") -> None:
    """Waits until nothing on the page is old or still to come."""
    waiting = page.locator(".part[data-state=asked], .part[data-state=stale]")
    waiting.first.wait_for(state="detached", timeout=120_000)


def _moved(page: "Page", stop: str) -> float:
    seconds = float(page.evaluate(_MOVE, stop)) / 1e3
    _settle(page)
    return seconds


def _answered(stop: str) -> float:
    begin = time.perf_counter()
    VIEW.answer(VIEW.ask(POD | {"batch": stop}, Files()))
    return time.perf_counter() - begin
