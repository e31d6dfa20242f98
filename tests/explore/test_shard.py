"""Shard: what it says of arrays and matmuls is what the library says, within bounds."""

import json
import shlex
from urllib.request import urlopen

import pytest

from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction, parse_tensor
from rooflight.algebra.shapes import device_bytes
from rooflight.costs.choose import choose
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.ui.answer import Answer
from rooflight.ui.browser.server import ExploreServer
from rooflight.ui.browser.shard import VIEW
from rooflight.ui.browser.view import Files
from rooflight.units import format_seconds, format_si

from .conftest import OpenVisit

FSDP = "A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]"
SIZES = {"I": 8192, "J": 8192, "K": 32768}
MESH = parse_mesh("X=4,Y=4", on="v5e:4x4")


def ask(**given: str) -> Answer:
    return VIEW.answer(VIEW.ask(given, Files()))


def test_a_product_has_the_steps_and_times_of_the_best_strategy() -> None:
    choice = choose(
        strategies(parse_contraction(FSDP), MESH.axes), dims=SIZES, mesh=MESH, dtype=DTYPES["bf16"]
    )
    answer = ask(arrays=FSDP)
    facts = {f.key: f.value for f in answer.facts}
    assert facts["expected_s"] == choice.best.expected_s
    assert facts["network_bytes"] == choice.best.network_bytes
    assert format_seconds(choice.best.expected_s) in answer.sentences[0]
    tables = {t.key: t for t in answer.tables}
    assert [row[0] for row in tables["steps"].rows] == [str(p.step) for p in choice.best.steps]
    lost = [p.expected_s for p in choice.losers]
    assert [row[1] for row in tables["strategies"].rows] == lost


def test_an_array_alone_says_what_each_device_stores() -> None:
    answer = ask(arrays="A[I_X,J_Y]{U_Z}", on="v5p:2x2x2", mesh="X=2,Y=2,Z=2")
    expected = device_bytes(
        parse_tensor("A[I_X,J_Y]"), SIZES, {"X": 2, "Y": 2, "Z": 2}, DTYPES["bf16"]
    )
    assert answer.facts[0].value == expected
    assert "a sum over Z" in answer.notes[0]
    assert ">0,1<" in answer.pictures[0].svg  # the block of devices 0 and 1


def test_gradients_add_their_own_steps() -> None:
    answer = ask(arrays=FSDP, backward="yes")
    assert {"gradient_1", "gradient_2"} < {t.key for t in answer.tables}
    assert answer.command.endswith("--backward")


def test_a_film_shows_what_each_step_leaves() -> None:
    (film,) = ask(arrays=FSDP).films
    assert len(film.frames) == 3
    assert "AllGather_X" in film.frames[1].words
    assert "B[J,K_Y]" in film.frames[1].svg
    assert "C[I_X,K_Y]" in film.frames[2].svg


def test_its_collectives_can_be_followed_to_their_hops() -> None:
    (link,) = ask(arrays=FSDP).links
    assert dict(link.question)["kind"] == "all-gather"
    assert dict(link.question)["bytes"] == "134217728"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"on": "8*v5p:16x20x28"}, "can be drawn"),
        ({"arrays": "A[I_XY,J_ZW]"}, "4 mesh axes"),
        ({"arrays": "A[a,b,c,d,e,f,g]"}, "at most 6 dims"),
        ({"arrays": "A[I_X,J_X]"}, "X"),
        ({"dims": "I=8191,J=8192,K=32768"}, "8191"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_hint(given: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match) as error:
        ask(**given)
    assert error.value.hint


# In the browser

MEGATRON = "A[I_X,J_Y] * B[J_Y,K] -> C[I_X,K]"


def test_editing_a_subscript_changes_the_collectives(visit: OpenVisit) -> None:
    there = visit("/shard").fill("arrays", MEGATRON)
    choice = choose(
        strategies(parse_contraction(MEGATRON), MESH.axes),
        dims=SIZES,
        mesh=MESH,
        dtype=DTYPES["bf16"],
    )
    facts = there.facts()
    assert facts["expected_s"] == format_seconds(choice.best.expected_s)
    assert facts["network_bytes"] == format_si(choice.best.network_bytes, "B")
    steps = [row[0] for row in there.rows("steps")]
    assert steps == [str(p.step) for p in choice.best.steps]
    assert len(there.rows("strategies")) == len(choice.losers)
    assert there.page.locator("[data-picture=holders] svg").is_visible()


def test_a_shared_url_of_shards_has_the_same_answer(visit: OpenVisit) -> None:
    there = visit("/shard").fill("arrays", MEGATRON).fill("dtype", "int8")
    again = visit(there.page.url.removeprefix(there.url))
    assert again.facts() == there.facts()
    assert again.rows("arrays") == there.rows("arrays")


def test_a_product_that_cannot_be_says_why(visit: OpenVisit) -> None:
    there = visit("/shard").fill("arrays", "A[I_X,J_X] * B[J,K] -> C[I_X,K]")
    assert "X" in there.page.get_by_role("alert").inner_text()


def test_shards_leave_as_picture_and_numbers(visit: OpenVisit, server: ExploreServer) -> None:
    page = visit("/shard").unfold().page
    with urlopen(f"{server.url}/api/shard") as response:
        document = json.load(response)
    with page.expect_download() as one:
        page.locator("[data-picture=holders]").get_by_role("link", name="SVG").click()
    assert one.value.path().read_text() == document["pictures"]["holders"]
    with page.expect_download() as one:
        page.get_by_role("link", name="CSV").first.click()
    assert "AllGather_X" in one.value.path().read_text()


def test_the_command_of_a_product_prints_its_figures(
    visit: OpenVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooflight.cli.main import main

    there = visit("/shard")
    words = shlex.split(there.page.locator(".command code").inner_text())
    assert main([*words[1:], "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["contractions"][0]["best"]
    assert there.facts()["expected_s"] == format_seconds(best["expected_s"])
    assert there.facts()["network_bytes"] == format_si(best["network_bytes"], "B")
