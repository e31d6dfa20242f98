"""The frame of the explorer: addresses, keys, bounds, pages for everybody, and a fuzzer."""

import base64
import html
import http.client
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.ui.answer import Answer
from rooflight.ui.browser.server import ExploreServer, check_key
from rooflight.ui.browser.site import Response, Site
from rooflight.ui.browser.view import Field, Files, View, ViewQuery
from rooflight.ui.browser.views import VIEWS

from .conftest import OpenVisit, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "0123456789abcdef0123"
NAMES = [view.name for view in VIEWS]


def get(
    server: ExploreServer, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    port = int(server.server_address[1])
    there = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    there.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        there.putheader(name, value)
    there.endheaders()
    response = there.getresponse()
    found = response.status, dict(response.getheaders()), response.read()
    there.close()
    return found


def echo(question: ViewQuery) -> Answer:
    return Answer((question.text("word"),), command=f"rooflight {question.text('word')}")


ECHO = View(
    *("echo", "Echo", "Says what it hears."),
    (Field("word", "Word", "text", "hello"), Field("n", "N", "count", "4", most=10)),
    echo,
    echo,
)


@pytest.fixture(scope="module")
def locked() -> Iterator[ExploreServer]:
    """One that asks for a key."""
    with ExploreServer(Site([ECHO], Files()), key=KEY) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def ask(path: str, query: str = "") -> Response:
    return Site([ECHO], Files()).respond(path, query)


def test_every_picture_of_the_home_page_is_drawn_and_every_card_leads_to_an_answer() -> None:
    site = Site(VIEWS, Files())
    page = site.respond("/", "").body.decode()
    pictures, cards = re.findall(r'<img [^>]*src="/([^"]+)"', page), page.count("</strong></a>")
    assert len(pictures) == 9 and cards == len(VIEWS) + 3
    for address in map(html.unescape, pictures):
        path, _, asked = address.partition("?")
        assert site.respond(f"/{path}", asked).content_type.startswith("image/svg"), address


def test_beyond_loopback_a_key_is_needed() -> None:
    with pytest.raises(UsageError, match="can be reached from other machines"):
        check_key("0.0.0.0", "")
    with pytest.raises(UsageError, match="fewer than 16"):
        check_key("0.0.0.0", "short")
    check_key("0.0.0.0", KEY)
    check_key("::1", "")


def test_a_key_is_asked_for_and_known_in_both_forms(locked: ExploreServer) -> None:
    status, headers, _ = get(locked, "/")
    assert status == 401 and headers["WWW-Authenticate"].startswith("Basic")
    assert get(locked, "/", Authorization=f"Bearer {KEY}x")[0] == 401
    assert get(locked, "/", Authorization="Basic !!!")[0] == 401
    assert get(locked, "/", Authorization=f"Bearer {KEY}")[0] == 200
    password = base64.b64encode(f"me:{KEY}".encode()).decode()
    assert get(locked, "/", Authorization=f"Basic {password}")[0] == 200


def test_a_name_of_another_host_is_refused(server: ExploreServer) -> None:
    assert get(server, "/", Host="evil.example")[0] == 421
    assert get(server, "/", Host="[")[0] == 421
    assert get(server, "/", Host="")[0] == 421
    assert get(server, "/", Host="localhost:1")[0] == 200


def test_a_question_with_a_body_is_no_question_and_hides_no_other(server: ExploreServer) -> None:
    """What follows the head would else be read as the next request of the connection."""
    inner = b"GET /roofline HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for head in (f"Content-Length: {len(inner)}", "Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + inner)
            said = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
        assert said.startswith(b"HTTP/1.1 400") and said.count(b"HTTP/1.1 ") == 1


def test_only_reading_is_possible(server: ExploreServer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused, headers, _ = get(server, "/", method=method)
        assert (refused, headers["Allow"], headers["Connection"]) == (405, "GET, HEAD", "close")
    status, headers, body = get(server, "/roofline", method="HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000


def test_every_response_forbids_what_the_page_does_not_need(server: ExploreServer) -> None:
    for path in ("/", "/roofline", "/api/roofline", "/assets/explore.js", "/nothing"):
        _, headers, _ = get(server, path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/assets/../page.py", "/assets/%2e%2e/page.py", "/assets/", "/api/"),
        *("/api/roofline/more", "/roofline/more", "/api/roofline.exe", "/part/", "/%00"),
    ],
)
def test_what_is_not_there_is_not_found(server: ExploreServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_a_path_that_is_no_text_is_refused(server: ExploreServer) -> None:
    assert get(server, "/%ff")[0] == 400


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("word", "not field=value"),
        ("word=a&word=b", "twice"),
        ("what=1", "unknown field"),
        ("word=" + "x" * 500, "500 characters"),
        ("word=" + "x" * 5000, "more than 4000"),
        ("word=%00", "cannot be printed"),
        ("word=", "is empty"),
        ("n=11", "not from 1 to 10"),
        ("n=x", "not a count"),
    ],
)
def test_a_wrong_query_is_refused_in_words(query: str, words: str) -> None:
    for kind in ("/api/echo", "/part/echo", "/echo"):
        response = ask(kind, query)
        assert response.status == 422 and words in response.body.decode()
    document = json.loads(ask("/api/echo", query).body)
    assert document["hint"]


def test_what_came_from_the_query_is_escaped() -> None:
    bad = "%3Cscript%3Ealert(1)%3C/script%3E%22%27"
    for path in ("/echo", "/part/echo", "/part/echo/more"):
        for query in (f"word={bad}", f"n={bad}", f"{bad}=1"):
            text = ask(path, query).body.decode()
            assert "<script>" not in text and 'value="<' not in text


def test_a_question_reads_no_file_outside_its_folder(folder: Path) -> None:
    files = Files(folder)
    for name in ("/etc/passwd", "../x.json", "~/x.json", "no.json"):
        with pytest.raises(UsageError, match="there is no"):
            files.path(name)
    (folder / "inside.json").write_text("{}")
    assert files.path("inside.json") == (folder / "inside.json").resolve()


def test_what_was_opened_by_name_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("{}")
    files = Files(tmp_path / "elsewhere", (tmp_path / "outside.json",))
    assert files.path(str(tmp_path / "outside.json")).name == "outside.json"


def test_without_a_script_the_page_has_the_answer() -> None:
    text = ask("/echo", "word=aloud").body.decode()
    assert '<p class="answer">aloud</p>' in text and "Working it out" in text
    assert "/echo?word=aloud&amp;n=4&amp;whole=yes" in text
    whole = ask("/echo", "word=aloud&whole=yes").body.decode()
    assert whole.count('<p class="answer">aloud</p>') == 2


def test_what_every_view_shows_first_can_be_asked_ahead() -> None:
    asked: list[str] = []

    def listen(question: ViewQuery) -> Answer:
        asked.append(question.text("word"))
        return echo(question)

    heard = View("heard", "Heard", "Listens.", ECHO.fields, listen)
    site = Site([heard], Files())
    site.warm()
    assert site.respond("/heard", "").status == 200 and asked == ["hello"]
    site.respond("/heard", "word=more")
    assert asked == ["hello", "more"]


def test_a_slow_answer_leaves_its_page_at_once_says_how_far_it_is_and_is_made_once() -> None:
    begun, ended, asked = Event(), Event(), list[str]()

    def wait(question: ViewQuery) -> Answer:
        asked.append(question.text("word"))
        assert question.watch
        question.watch(3, 7, 1234)
        begun.set()
        assert ended.wait(60)
        return echo(question)

    site = Site([View("slow", "Slow", "Waits.", ECHO.fields, wait)], Files())
    page = site.respond("/slow", "word=late").body.decode()
    assert 'id="answer" class="part" data-state="asked"' in page and 'value="late"' in page
    assert begun.wait(60)
    assert json.loads(site.respond("/progress/slow", "").body)["progress"].startswith(
        "3 of 7, 1,234"
    )
    ended.set()
    assert b'<p class="answer">late</p>' in site.respond("/part/slow", "word=late").body
    assert asked == ["late"]
    assert 'data-state="fresh"' in site.respond("/slow", "word=late").body.decode()


def test_a_slow_page_shows_its_frame_then_progress_then_the_answer(browser: "Browser") -> None:
    ended = Event()

    def wait(question: ViewQuery) -> Answer:
        if question.watch and question.text("word") != "hello":
            question.watch(3, 7, 1234)
            assert ended.wait(60)
        return echo(question)

    with ExploreServer(Site([View("slow", "Slow", "Waits.", ECHO.fields, wait)], Files())) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"{made.url}/slow?word=late")
        assert page.locator("#f-word").input_value() == "late"
        page.locator(".loading", has_text="3 of 7, 1,234 layouts").wait_for()
        ended.set()
        page.locator("#answer .answer", has_text="late").wait_for()
        page.close()
        made.shutdown()


def test_a_bug_is_a_500_and_does_not_end_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    def break_down(question: ViewQuery) -> Answer:
        raise ZeroDivisionError(question.text("word"))

    broken = View("broken", "Broken", "Breaks.", ECHO.fields, break_down)
    with ExploreServer(Site([broken, ECHO], Files())) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        status, _, body = get(made, "/broken?word=secret")
        assert status == 500 and b"secret" not in body
        assert get(made, "/echo")[0] == 200
        made.shutdown()
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_every_view_answers_within_bounds(server: ExploreServer, name: str) -> None:
    status, _, body = get(server, f"/{name}")
    assert status == 200 and len(body) < 2_000_000
    document = json.loads(get(server, f"/api/{name}")[2])
    assert document["sentences"] and document["command"].startswith("rooflight ")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_that_a_view_names_runs(
    server: ExploreServer,
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = json.loads(get(server, f"/api/{name}")[2])["command"]
    monkeypatch.chdir(tmp_path)  # one of them writes a file
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


SCREENS = {"light": 1280, "dark": 390}
# Of the book one chapter: axe looks at each cell of its 370 rows, which are all alike, for 5 s.
QUESTIONS = {"book": "/book?chapter=3"}


def check_accessible(there: Visit) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme, width in SCREENS.items():
        there.look(width=width, dark=scheme == "dark")
        found = axe.Axe().run(there.page).response["violations"]
        serious = [
            (scheme, one["id"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []


@pytest.mark.parametrize("name", ["", *NAMES])
def test_no_view_has_a_serious_fault_of_accessibility(visit: OpenVisit, name: str) -> None:
    """Wide and light, narrow and dark."""
    check_accessible(visit(QUESTIONS.get(name, f"/{name}")))


@pytest.mark.full
def test_the_whole_book_has_no_serious_fault_of_accessibility(visit: OpenVisit) -> None:
    check_accessible(visit("/book"))


def test_the_keyboard_is_enough(visit: OpenVisit) -> None:
    page = visit("/roofline").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "f-on"
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()


def fuzz(server: ExploreServer, folder: Path, *words: str) -> int:
    """Runs the fuzzer over `/openapi.json`; how many requests it sent."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    command += ["--checks", f"{checks},response_schema_conformance", "--no-shrink", "--seed", "1"]
    done = subprocess.run(
        [*command, *words, "--suppress-health-check", "all"],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    found = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert found is not None, done.stdout[-2000:]
    return int(found[1].replace(",", ""))


def test_a_fuzzer_finds_nothing(server: ExploreServer, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    assert fuzz(server, tmp_path, "--phases", "fuzzing", "-n", "4") > 50


@pytest.mark.full
def test_a_fuzzer_finds_nothing_in_five_thousand_requests(
    server: ExploreServer, tmp_path: Path
) -> None:
    assert fuzz(server, tmp_path, "--phases", "coverage,fuzzing", "-n", "150") > 5000


@pytest.mark.parametrize("name", ["roofline", "shard", "collectives", "chip", "train", "serve"])
def test_the_first_screen_has_the_answer_its_facts_and_the_picture(
    visit: OpenVisit, name: str
) -> None:
    there = visit(f"/{name}")
    for width in (1440, 1024):
        page = there.look(width=width, dark=False).page
        assert 1 <= page.locator("#answer > .facts dd[data-figure]").count() <= 4
        picture = page.locator("#answer > figure svg:visible").first.bounding_box()
        answer = page.locator("#answer > .answer").bounding_box()
        assert picture and answer and answer["y"] < 200
        assert picture["y"] < 450 and (picture["y"] + picture["height"] <= 900 or name == "serve")
        assert page.locator("#answer details[open]").count() == 0


_SMALLEST = """() => Math.min(...[...document.querySelectorAll("main *")]
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .filter((e) => e.checkVisibility())
  .map((e) => parseFloat(getComputedStyle(e).fontSize)
    * (e.getScreenCTM && e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().a : 1)))"""


@pytest.mark.parametrize("name", NAMES)
def test_on_a_phone_the_answer_is_first_its_words_can_be_read_and_nothing_is_wider(
    visit: OpenVisit, name: str
) -> None:
    page = visit(f"/{name}", width=390).page
    answer, form = (page.locator(s).bounding_box() for s in ("#answer", "form.question"))
    assert answer and form and answer["y"] < form["y"]
    assert page.evaluate(_SMALLEST) >= 10.99
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
