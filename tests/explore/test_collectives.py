"""Collectives: formula and simulation are the library's; expert dispatch weighs both ways."""

import json
import shlex
from pathlib import Path
from urllib.request import urlopen

import pytest

from rooflight.costs.netsim.simulate import simulate
from rooflight.costs.network import CollectiveKind, collective_time, ragged_share
from rooflight.hardware.mesh import mesh_of, parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.ui.answer import Answer, Film
from rooflight.ui.browser.collectives import VIEW
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds, format_si

from .conftest import OpenVisit

KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def ask(**given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files()))


def facts(answer: Answer) -> dict[str, object]:
    return {f.key: f.value for f in answer.facts}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["v5e:16x1", "v5e:8x1", "v5e:2x4", "h100:4", "h100:2x2"])
def test_the_times_are_those_of_formula_and_simulator(kind: CollectiveKind, on: str) -> None:
    mesh = mesh_of(None, parse_slice(on))
    axes = list(mesh.axes)
    found = facts(ask(kind=kind.replace("_", "-"), on=on, bytes="4MB"))
    assert found["expected_s"] == collective_time(kind, 4_000_000, mesh.group(axes)).expected_s
    simulated = simulate(kind, 4_000_000, mesh, axes)
    assert found["simulated_s"] == simulated.seconds
    assert found["hops"] == len(simulated.hops)


def cells(film: Film, still: int) -> int:
    """Numbers in the cells of a still: the whole parts on all chips."""
    return film.frames[still].svg.count('font-size="9"')


def test_a_film_begins_with_one_shard_a_chip_and_ends_with_all() -> None:
    (film,) = ask(on="v5e:16x1").films
    assert len(film.frames) == 9
    assert cells(film, 0) == 16
    assert cells(film, -1) == 16 * 16
    assert "holds 16 of 16 shards" in film.frames[-1].words


def test_every_kind_of_network_is_drawn() -> None:
    shapes = [ask(on=on).sentences[1] for on in ("v5e:16x1", "v5e:8x1", "v5e:4x2", "h100:8")]
    assert [s.rsplit(" ", 1)[1] for s in shapes] == ["ring.", "line.", "mesh.", "tree."]


def test_a_pod_has_a_time_but_no_film() -> None:
    answer = ask(on="v5p:16x20x28")
    mesh = mesh_of(None, parse_slice("v5p:16x20x28"))
    time = collective_time("all_gather", 34_000_000, mesh.group(list(mesh.axes)))
    assert facts(answer)["expected_s"] == time.expected_s
    assert not answer.films
    assert "is not drawn" in answer.sentences[-1]


def test_expert_dispatch_sets_an_exchange_beside_a_broadcast() -> None:
    answer = ask(kind="expert-dispatch", on="h100:8", tokens="4096", d="4096", k="2")
    group = parse_mesh("X=8", on="h100:8").group("X")
    array, copies = 4096 * 4096 * 2, 8 * ragged_share(2, 8)
    exchange, broadcast = answer.tables[0].rows
    assert exchange[4] == collective_time("all_to_all", array * copies, group).expected_s
    assert broadcast[4] == collective_time("all_gather", array, group).expected_s
    assert answer.tables[0].marked == 0
    assert [film.key for film in answer.films] == ["exchange", "broadcast"]


def test_on_a_ring_broadcast_wins_when_tokens_want_many_experts() -> None:
    few, many = (
        ask(kind="expert-dispatch", on="v5e:16x1", tokens="65536", k=k).tables[0].marked
        for k in ("1", "16")
    )
    assert (few, many) == (0, 1)


# In the browser


def test_hops_can_be_stepped_through(visit: OpenVisit) -> None:
    there = visit("/collectives")
    film = there.page.locator("figure.film")
    assert film.locator("output").inner_text() == "1 of 9"
    film.get_by_role("button", name="One step on").click()
    assert film.locator("output").inner_text() == "2 of 9"
    assert "holds 3 of 16 shards" in film.locator(".words").inner_text()
    film.get_by_role("slider").press("End")
    assert "holds 16 of 16 shards" in film.locator(".words").inner_text()
    assert film.locator("svg:visible").count() == 1


def test_a_still_leaves_as_a_picture(visit: OpenVisit, server: ExploreServer) -> None:
    page = visit("/collectives").page
    film = page.locator("figure.film")
    film.get_by_role("button", name="One step on").click()
    with urlopen(f"{server.url}/api/collectives") as response:
        frames = json.load(response)["films"]["hops"]
    with page.expect_download() as one:
        film.get_by_role("link", name="SVG").click()
    assert one.value.path().read_text() == frames[1]["picture"]
    with page.expect_download() as one:
        film.get_by_role("button", name="PNG").click()
    assert one.value.suggested_filename == "collectives-hops.2.png"


def test_another_network_has_another_time_and_film(visit: OpenVisit) -> None:
    there = visit("/collectives").fill("kind", "all-to-all").fill("on", "h100:4")
    mesh = parse_mesh("X=4", on="h100:4")
    formula = collective_time("all_to_all", 34_000_000, mesh.group("X"))
    simulated = simulate("all_to_all", 34_000_000, mesh, "X")
    facts = there.facts()
    assert facts["expected_s"] == format_seconds(formula.expected_s)
    assert facts["simulated_s"] == format_seconds(simulated.seconds)
    assert there.page.locator("figure.film svg").first.is_visible()
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == facts


def test_expert_dispatch_shows_both_films(visit: OpenVisit) -> None:
    there = visit("/collectives?kind=expert-dispatch&on=v5e:8x1")
    group = parse_mesh("X=8", on="v5e:8x1").group("X")
    broadcast = collective_time("all_gather", 4096 * 4096 * 2, group)
    rows = there.rows("ways")
    assert rows[1][1:2] + rows[1][4:5] == [
        format_si(broadcast.nbytes, "B"),
        format_seconds(broadcast.expected_s),
    ]
    keys = [f.get_attribute("data-film") for f in there.page.locator("figure.film").all()]
    assert keys == ["exchange", "broadcast"]


def test_frames_leave_as_data(visit: OpenVisit, server: ExploreServer) -> None:
    stills = visit("/collectives").page.locator("figure.film svg").count()
    with urlopen(f"{server.url}/api/collectives") as response:
        document = json.load(response)
    frames = document["films"]["hops"]
    assert len(frames) == stills == 9
    assert all(frame["picture"].startswith("<svg") for frame in frames)


def test_the_command_of_a_collective_prints_its_figures(
    visit: OpenVisit,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rooflight.cli.main import main

    monkeypatch.chdir(tmp_path)  # where the trace is written
    there = visit("/collectives?on=h100:4&kind=all-gather")
    words = shlex.split(there.page.locator(".command code").inner_text())
    assert main([*words[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert there.facts()["expected_s"] == format_seconds(found["expected_s"])
    assert there.facts()["simulated_s"] == format_seconds(found["simulated_s"])
    assert (tmp_path / "hops.json").exists()
