"""Book: every number is found, derived as the library derives it, and leads on."""

import json
from urllib.request import urlopen

import pytest

from rooflight.book.entry import chapters, entries, find
from rooflight.book.solve import show, solve
from rooflight.errors import UnknownNameError, UsageError
from rooflight.ui.answer import Answer
from rooflight.ui.browser.book import VIEW
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.view import Files
from rooflight.ui.browser.views import VIEWS

from .conftest import OpenVisit


def ask(**given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files()))


def names(answer: Answer) -> list[object]:
    return [row[-1] for row in answer.tables[0].rows]


def test_the_list_has_every_number_and_leads_to_it() -> None:
    answer = ask()
    assert names(answer) == [e.id for e in entries()]
    assert [dict(link.question)["entry"] for link in answer.tables[0].links] == names(answer)


@pytest.mark.parametrize("chapter", [c.name for c in chapters()])
def test_a_chapter_lists_its_own(chapter: str) -> None:
    assert names(ask(chapter=chapter)) == [
        e.id for c in chapters() if c.name == chapter for e in c.entries
    ]


def test_filters_and_words_narrow_the_list() -> None:
    errata = [e.id for e in entries() if e.errata]
    assert names(ask(only="errata")) == errata
    assert names(ask(only="worked problems")) == [e.id for e in entries() if e.problem]
    assert 0 < len(names(ask(search="int8 matmul"))) < len(entries())
    with pytest.raises(UsageError, match="none of"):
        ask(search="no such words anywhere")


@pytest.mark.parametrize("entry", ["3.2", "roofline.v5p_vpu_intensity"])
def test_a_number_is_derived_as_the_library_derives_it(entry: str) -> None:
    answer, figures = ask(entry=entry), dict(ask(entry=entry).figures)
    for part in find(entry).entries:
        solution = solve(part)
        found = figures[part.id]
        assert isinstance(found, dict)
        assert found["answers"] == {a.name: a.value for a in solution.answers}
        rows = {row[:2] for t in answer.tables for row in t.rows}
        for a in solution.answers:
            assert (a.name, show(a.value, a.expected.unit)) in rows


def test_an_erratum_says_what_is_right_and_why() -> None:
    entry = next(e for e in entries() if e.errata)
    text = " ".join(ask(entry=entry.id).sentences)
    assert "Erratum in" in text
    assert entry.errata[0].why in text


def test_an_unknown_number_gets_a_hint() -> None:
    with pytest.raises(UnknownNameError) as error:
        ask(entry="sharding.q99")
    assert error.value.hint


def test_every_live_link_of_a_number_has_an_answer() -> None:
    views = {view.name: view for view in VIEWS}
    links = {
        link.url: link
        for chapter in chapters()
        for problem in chapter.problems
        for link in ask(entry=problem.name).links
        if link.view != "book"
    }
    assert len(links) > 10
    for link in links.values():
        view = views[link.view]
        assert view.answer(view.ask(dict(link.question), Files())).sentences


# In the browser


def test_a_word_narrows_the_list_and_a_row_leads_to_its_derivation(visit: OpenVisit) -> None:
    there = visit("/book").fill("search", "cube")
    wanted = find("3.2").entries[0]
    assert [row[-1] for row in there.rows("entries")] == names(ask(search="cube"))
    there.fill("search", "").fill("chapter", "3")
    there.page.get_by_role("link", name=wanted.title, exact=True).click()
    there.settle()
    (answer,) = solve(wanted).answers[:1]
    assert there.rows("answers")[0][:2] == [answer.name, show(answer.value, answer.expected.unit)]


def test_a_shared_problem_shows_every_line(visit: OpenVisit, server: ExploreServer) -> None:
    there = visit("/book?entry=3.2")
    for index, entry in enumerate(find("3.2").entries):
        lines = solve(entry).derivation.lines
        key = f"derivation_{index}" if index else "derivation"
        assert there.rows(key) == [[line.text, show(line.value, line.unit)] for line in lines]
    with urlopen(f"{server.url}/api/book?entry=3.2") as response:
        document = json.load(response)
    first = find("3.2").entries[0]
    answers = {a.name: a.value for a in solve(first).answers}
    assert document["figures"][first.id]["answers"] == answers


def test_figures_lead_to_their_views(visit: OpenVisit) -> None:
    there = visit("/book").fill("only", "figures").fill("model", "llama3-8b")
    links = there.page.locator("table[data-table=figures] a")
    assert links.count() > 30
    hrefs = [str(link.get_attribute("href")) for link in links.all()]
    assert any("/train?model=llama3-8b" in href for href in hrefs)
