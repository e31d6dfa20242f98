"""HTML pages as the tests read them: their link targets, their links, and what they load."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_NOT_LOADED = {"canonical", "next", "prev", "search", "index"}


@dataclass
class Page(HTMLParser):
    """One page; `links` are of `a` elements, `loads` what a browser fetches by itself."""

    path: Path
    ids: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])
    loads: list[str] = field(default_factory=list[str])
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        name = _LOADS.get(tag)
        if name and given.get(name) and given.get("rel") not in _NOT_LOADED:
            self.loads.append(str(given[name]))

    def handle_data(self, data: str) -> None:
        self.text += data
