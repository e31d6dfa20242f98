"""Every figure of the book that has a live counterpart shows it, and one table says where."""

import os
from pathlib import Path

import pytest

from rooflight.ui.browser.book import FIGURES

from .conftest import OpenVisit

PAGE = Path(__file__).parents[2] / "docs" / "explore-figures.md"
_HEAD = """\
# The book's figures, live

Each figure and animation of the book that shows numbers, shards, hops or schedules, and where
`rooflight explore` draws it. The links are paths of the explorer: start it with

```text
rooflight explore --port 8080
```

and put `http://127.0.0.1:8080` in front. Numbers of figures are those of the PDF edition of 2025,
chapter 12 is the newer edition's. The view *Book* has the same table with links, for a model and a
slice of your choice (`/book?only=figures`).

| in the book | shows | view | picture | path |
|---|---|---|---|---|
"""
_FOOT = """
Diagrams without numbers have no live counterpart: the Transformer layer (figures 1, 8 and 10), the
MoE layer (9), sampling without and with a cache (18, 19), kinds of attention (21, 22), speculative
sampling, which is measured (23), and engines (25, 26). The viewers of traces, schedules and memory
of chapter 9 are the views *Run* and *Verdict*, which open files of your own
(`rooflight explore --open FILE`).
"""


def table() -> str:
    rows = [
        f"| {f.where} | {f.shows} | {f.view} | `{f.picture}` | `{f.link().url}` |" for f in FIGURES
    ]
    return _HEAD + "\n".join(rows) + "\n" + _FOOT


def test_the_page_of_figures_is_the_list_of_figures() -> None:
    if os.environ.get("ROOFLIGHT_UPDATE_GOLDEN"):
        PAGE.write_text(table())
    assert PAGE.read_text() == table()


@pytest.mark.parametrize("view", sorted({f.view for f in FIGURES}))
def test_the_url_of_every_figure_shows_its_picture(visit: OpenVisit, view: str) -> None:
    there = None
    for figure in (f for f in FIGURES if f.view == view):
        there = there.go(figure.link().url) if there else visit(figure.link().url)
        shown = there.page.locator(
            f"figure[data-picture={figure.picture}] svg, figure[data-film={figure.picture}] svg"
        )
        assert shown.first.is_visible(), f"{figure.where}: {figure.link().url}"
