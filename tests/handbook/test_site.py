"""The handbook as a reader gets it: every link leads somewhere, nothing comes from another host."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx")

import rooflight
from rooflight.book.entry import entries
from rooflight.cli.verbs import verb_names
from rooflight.hardware.calibration import shipped_calibrations
from rooflight.hardware.serving_calibration import shipped_serving

from .pages import Page

_URL = re.compile(r"url\(([^)]+)\)|@import[^;]+")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_leads_to_a_page_and_a_target_that_exist(
    site: Path, pages: dict[Path, Page]
) -> None:
    broken: list[str] = []
    for page in pages.values():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (page.path.parent / unquote(url.path)).resolve() if url.path else page.path
            found = pages.get(target)
            if not target.exists() or (url.fragment and found and url.fragment not in found.ids):
                broken.append(f"{page.path.relative_to(site)} -> {link}")
    assert not broken, "\n".join(broken)


def test_links_outward_are_secure_or_of_this_machine(pages: dict[Path, Page]) -> None:
    outward = {link for page in pages.values() for link in page.links if urlsplit(link).scheme}
    assert outward
    for link in outward:
        assert link.startswith(("https://", "http://127.0.0.1:8080/")), link


def test_pages_load_nothing_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        for loaded in page.loads:
            url = urlsplit(loaded)
            assert not url.scheme and not url.netloc, f"{page.path.name} loads {loaded}"
            assert (page.path.parent / unquote(url.path)).exists(), f"{page.path.name}: {loaded}"
    for sheet in site.rglob("*.css"):
        for match in _URL.finditer(sheet.read_text(encoding="utf-8")):
            assert "//" not in match[0].split("data:")[0], f"{sheet.name}: {match[0][:80]}"


def test_every_page_is_reached_from_the_first(site: Path, pages: dict[Path, Page]) -> None:
    seen, ahead = set[Path](), [(site / "index.html").resolve()]
    while ahead:
        path = ahead.pop()
        if path in seen or path not in pages:
            continue
        seen.add(path)
        links = (urlsplit(link) for link in pages[path].links)
        ahead += [
            (path.parent / unquote(u.path)).resolve() for u in links if u.path and not u.scheme
        ]
    made = {"genindex.html", "search.html", "py-modindex.html"}
    assert {p for p in pages if p.name not in made} <= seen


def test_the_reference_has_every_verb_and_every_public_name(pages: dict[Path, Page]) -> None:
    by_name = {f"{p.parent.name}/{p.name}": page for p, page in pages.items()}
    commands = by_name["reference/commands.html"]
    for verb in verb_names():
        assert verb.replace(" ", "-") in commands.ids
        assert f"usage: rooflight {verb} " in commands.text
    python = by_name["reference/python.html"]
    for name in rooflight.__all__:
        assert name in python.text, name
        assert f"{getattr(rooflight, name).__module__}.{name}" in python.ids, name


def test_errata_and_calibrations_are_those_of_the_data(pages: dict[Path, Page]) -> None:
    errata = next(page for path, page in pages.items() if path.name == "errata.html")
    wrong = [entry for entry in entries() if entry.errata]
    assert len(wrong) > 20
    for entry in wrong:
        assert entry.id in errata.text
        for erratum in entry.errata:
            assert erratum.why.split(".")[0] in errata.text
    fitted = next(page for path, page in pages.items() if path.name == "calibrations.html")
    for one in (*shipped_calibrations().values(), *shipped_serving().values()):
        assert one.chip in fitted.text and f"{one.median_error:.1%}" in fitted.text


def test_figures_are_inside_their_pages_and_described(pages: dict[Path, Page]) -> None:
    drawn = [p for p in pages if '<div class="drawn' in p.read_text(encoding="utf-8")]
    assert len(drawn) >= 6
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        for figure in text.split('<div class="drawn')[1:]:
            assert re.search(r'<svg [^>]*role="img"[^>]*>\s*<title>[^<]+</title>', figure)
            assert "Drawn by" in figure or "In a terminal: " in figure
