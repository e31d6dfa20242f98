"""The page of an answer: well formed, alone in the world, readable without eyes or pointer."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

from rooflight.ui.answer import Answer, Column, Fact, Picture, Table, show_seconds
from rooflight.ui.html.answer import lead, section
from rooflight.ui.html.page import Grid, Section, bullets, code, folded, grid, page
from rooflight.ui.svg import marks as svg
from rooflight.ui.svg.gantt import Bar, Gantt, GanttRow, gantt_svg
from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg
from rooflight.ui.svg.roofline import PlotPoint, RoofLine, roofline_svg
from rooflight.ui.svg.time import TimeLine, TimePlot, time_svg

HOSTILE = """</title><script>alert("1")</script><img src=x onerror='a&b'>"""
VOID = {"meta", "link", "img", "br", "hr", "input"}
BY_URL = {"src", "srcset", "data", "poster", "action", "background", "xlink:href"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: tuple[str, ...] = ()


@dataclass
class Read:
    """A page as a list of elements; what is wrong with its tags."""

    elements: list[Element] = field(default_factory=list[Element])
    wrong: list[str] = field(default_factory=list[str])

    def all(self, tag: str) -> list[Element]:
        return [e for e in self.elements if e.tag == tag]

    @property
    def ids(self) -> list[str]:
        return [e.attributes["id"] for e in self.elements if "id" in e.attributes]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.read, self._open = Read(), list[Element]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.read.wrong.append(f"<{tag}> has an attribute twice")
        element = Element(tag, {n: v or "" for n, v in attrs})
        element.inside = tuple(e.tag for e in self._open)
        self.read.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop().tag != tag:
            self.read.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def done(self) -> Read:
        self.close()
        self.read.wrong += [f"<{e.tag}> stays open" for e in self._open]
        return self.read


def read(markup: str) -> Read:
    reader = Reader()
    reader.feed(markup)
    return reader.done()


def whole(words: Callable[[str], str] = str) -> str:
    """A page of every part; `words` may change each text in it."""
    w = words
    columns = (Column("a", w("a")), Column("b", w("b"), show_seconds), Column("c", w("c")))
    rows = ((w("first"), 1.0, w("x")), (w("second"), 2.0, None))
    tables = (
        Table("t", w("caption"), columns, rows, marked=0, is_first=True),
        Table("u", w("more"), columns, rows, is_folded=True),
    )
    bars = (Bar("F", "F0", 0, 1), Bar("F", "F1", 1, 2, shade=1))
    chart = Gantt(w("1f1b"), w("bubble"), (GanttRow(w("0"), bars),), {"F": w("forward")}, w("n"))
    lines = (
        TimeLine(w("matmuls"), ((1000, 0.1), (4000, 0.4)), "matmuls"),
        TimeLine(w("fsdp"), ((2000, 0.2), (4000, 0.2))),
        TimeLine(w("tensor"), ()),
        TimeLine(w("this plan"), ((1000, 0.05), (4000, 0.2)), "chosen"),
    )
    stacks = MemoryStacks(w("held"), (w("weights"), w("none")), (Stack(w("1."), (5, 0)),), 9)
    roof, point = RoofLine(w("v5e"), 2e14, 8e11), PlotPoint(w("1"), 500, 2e14)
    pictures = (
        Picture("times", time_svg(TimePlot(w("times"), lines, 4000)), w("how to read it")),
        Picture("roof", roofline_svg([roof], (point,), title=w("roof")), w("note")),
        Picture("held", memory_svg(stacks), w("note")),
        Picture("pipeline", gantt_svg(chart), w("note"), least=800),
    )
    head = Answer(
        (w("Train with fsdp=X."), w("because")),
        (Fact("s", w("Step"), w("1.23 s"), note=w("calibrated")),),
    )
    body = Answer(
        (w("so"),), tables=tables, pictures=pictures, notes=(w("mind this"), "", w("and this"))
    )
    address = "https://example.com/a?b=1&c=2"
    rows = (w("x"), w("1"), w("vendor"), address), (w("y"), w("2"), w("own"), w("chips/own.toml"))
    table = Grid(w("caption"), (w("a"), w("b"), w("source"), w("address")), rows, "lrww")
    sections = (
        section("first", "First", body),
        Section("sources", "Sources", (grid(table), bullets((w("item"),)))),
        Section("file", "File", (folded(w("all"), code(w("{}"))),)),
    )
    return page(
        title=w("Llama on v5e:4x4"), kicker=w("a plan"), lead=tuple(lead(head)), sections=sections
    )


@pytest.fixture(scope="module")
def shown() -> Read:
    return read(whole())


def test_every_tag_is_closed_where_it_should_be(shown: Read) -> None:
    assert shown.wrong == []


def test_the_reader_of_these_tests_sees_a_missing_end() -> None:
    assert read("<p><b>x</p>").wrong
    assert read("<ul><li>x</ul>").wrong


def test_headings_make_the_outline_of_the_page(shown: Read) -> None:
    assert [e.text for e in shown.all("h1")] == ["Llama on v5e:4x4"]
    assert [e.text for e in shown.all("h2")] == ["First", "Sources", "File"]


def test_each_link_and_label_within_the_page_leads_somewhere(shown: Read) -> None:
    assert len(set(shown.ids)) == len(shown.ids)
    inside = [e.attributes["href"] for e in shown.all("a") if e.attributes["href"][0] == "#"]
    labels = [e.attributes["aria-labelledby"] for e in shown.all("section")]
    assert len(inside) == 1 + len(labels)
    assert {*(href[1:] for href in inside), *labels} <= set(shown.ids)


def test_the_page_loads_nothing(shown: Read) -> None:
    named = {e.tag for e in shown.elements}
    assert not named & {"script", "link", "img", "iframe", "object", "embed", "use", "image"}
    assert not [e for e in shown.elements if BY_URL & set(e.attributes)]
    assert not [e for e in shown.elements if any(a.startswith("on") for a in e.attributes)]
    (style,) = shown.all("style")
    assert not re.search(r"url\(|@import|http", style.text)
    hrefs = [e for e in shown.elements if "http" in e.attributes.get("href", "")]
    assert [e.attributes["href"] for e in hrefs] == ["https://example.com/a?b=1&c=2"]


@pytest.mark.parametrize("before", ["", "words "])
def test_no_text_becomes_markup(before: str, shown: Read) -> None:
    hostile = read(whole(lambda text: before + HOSTILE))
    assert hostile.wrong == []
    assert [e.tag for e in hostile.elements if e.tag in {"script", "img"}] == []
    assert {e.tag for e in hostile.elements} == {e.tag for e in shown.elements}
    assert next(e.text for e in hostile.all("title")).endswith(HOSTILE)


def test_only_web_addresses_become_links() -> None:
    addresses = ("javascript:alert(1)", "HTTPS.example", "https://a.example/'\"")
    found = read(grid(Grid("t", ("a", "b"), tuple(("x", one) for one in addresses), "ll")))
    assert [e.attributes["href"] for e in found.all("a")] == [addresses[-1]]


def test_each_table_has_a_caption_and_headers_for_rows_and_columns(shown: Read) -> None:
    tables = shown.all("table")
    assert len(shown.all("caption")) == len(tables) == 3
    assert {e.attributes["scope"] for e in shown.all("th")} == {"col", "row"}
    assert all("table" not in e.inside for e in tables)


def test_each_picture_has_a_name_and_a_description(shown: Read) -> None:
    pictures = shown.all("svg")
    names = [e for e in shown.all("title") if e.inside[-1] == "svg"]
    assert [e.attributes["role"] for e in pictures] == ["img"] * 4
    assert [e.text for e in names] == ["times", "roof", "held", "1f1b"]
    assert len([e for e in shown.all("desc") if e.text]) == 4
    assert len(shown.all("figcaption")) == 4


def test_what_scrolls_can_be_reached_by_keyboard_and_has_a_name(shown: Read) -> None:
    regions = [e for e in shown.all("div") if e.attributes.get("class") == "scroll"]
    assert len(regions) == len(shown.all("table")) + len(shown.all("svg"))
    for region in regions:
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["role"] == "region"
        assert region.attributes["aria-label"]


def test_a_number_stands_with_its_source(shown: Read) -> None:
    (value,) = [e for e in shown.all("dd") if "1.23 s" in e.text]
    after = shown.all("dd")[shown.all("dd").index(value) + 1]
    assert (value.text, after.text) == ("1.23 s", "calibrated")


def test_notes_follow_the_first_table_and_a_folded_one_stays_so(shown: Read) -> None:
    said = [e.text for e in shown.all("p") if e.attributes.get("class") == "note"]
    assert said == ["because", "mind this", "and this"]
    assert [e.text for e in shown.all("summary")] == ["more", "all"]
    assert "details" in shown.all("table")[1].inside


def test_every_colour_of_a_line_or_word_has_one_for_the_dark(shown: Read) -> None:
    (style,) = shown.all("style")
    on_bars = {svg.PAPER, svg.ON_BAR}
    strokes = {(e.attributes["stroke"]) for e in shown.all("line") + shown.all("polyline")}
    fills = {e.attributes["fill"] for e in shown.all("text")} - on_bars
    assert {svg.INK, svg.MUTED} <= fills
    assert len(strokes) >= 4
    for stroke in strokes:
        assert f'[stroke="{stroke}"]' in style.text, stroke
    for fill in fills:
        assert f'text[fill="{fill}"]' in style.text, fill


def test_words_on_a_bar_keep_their_colour_as_the_bar_does(shown: Read) -> None:
    (style,) = shown.all("style")
    assert f'text[fill="{svg.ON_BAR}"]' not in style.text
    assert f'text[fill="{svg.PAPER}"]' not in style.text
