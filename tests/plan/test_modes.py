"""Modes of schemes: written after a colon, priced hop by hop, alone and among all layouts."""

from dataclasses import replace

import pytest

from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError, RooflightError, UnknownNameError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.file.record import from_json, to_json
from rooflight.plan.training.forecast.step import step_breakdown
from rooflight.plan.training.search.candidate import Candidate, Question, price_one, run_of
from rooflight.plan.training.search.constraint import (
    degrees_text,
    parse_constraint,
    placed_text,
    region_of,
)
from rooflight.plan.training.search.plan import plan_record, plan_training, train_question
from rooflight.plan.training.search.run import Search, search_training
from rooflight.plan.training.time.parts import training_parts

MODEL = load_model("llama3-8b")
GRAPH = model_graph(MODEL)


def question(
    text: str = "", *, on: str = "v5p:4x4x4", batch: int = 8, seq: int = 131_072, **more: object
) -> Question:
    asked = train_question(GRAPH, parse_slice(on), batch, seq, DTYPES["bf16"], **more)  # type: ignore[arg-type]
    if not text:
        return asked
    return replace(asked, region=region_of(parse_constraint(text, GRAPH), asked)[0])


def planned(text: str, **more: object) -> Candidate:
    return plan_training(question(text, **more), count=1).candidates[0]  # type: ignore[arg-type]


def plain_of(ring: Candidate, asked: Question) -> Candidate:
    """The same layout, mesh and options, keys and values gathered."""
    layout = parse_layout(ring.layout.text.replace(":ring", ""))
    return price_one(asked, layout, ring.mesh, ring.micro, ring.remat)


def test_a_mode_follows_a_degree_and_comes_back_where_layouts_are_shown() -> None:
    ring = planned("fsdp=4,cp=16:ring")
    assert ring.layout.modes == {"cp": "ring"}
    assert degrees_text(ring) == "fsdp=4 x cp=16:ring"
    again = planned(placed_text(ring))
    assert (again.layout.text, str(again.mesh)) == (ring.layout.text, str(ring.mesh))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("cp=4:rings", UnknownNameError, "ring"),
        ("dp=4:ring", ParseError, "those with modes are cp:ring"),
    ],
)
def test_a_mode_that_a_scheme_has_not_is_refused(
    text: str, error: type[RooflightError], words: str
) -> None:
    with pytest.raises(error) as caught:
        parse_constraint(text, GRAPH)
    assert words in caught.value.render()
    with pytest.raises(error):
        parse_layout(text.replace("4", "X"))


def test_a_plan_file_keeps_the_mode_and_a_mode_is_another_program() -> None:
    asked = question("fsdp=4,cp=16:ring")
    plan = plan_record(MODEL, asked, search_training(asked, count=1))
    assert from_json(to_json(plan)) == plan
    assert plan.layout.endswith("cp=Y:ring")


@pytest.mark.parametrize("rank", ["forecast", "roofline"])
@pytest.mark.parametrize(
    "text", ["cp=16:ring", "cp=4:ring,tp=4", "cp=8:ring,pp=2", "cp=4:ring,remat=block"]
)
def test_a_layout_in_a_mode_has_one_price_alone_and_among_all(text: str, rank: str) -> None:
    """The search itself refuses a layout whose two prices differ."""
    assert len(search_training(question(text, rank=rank), count=4).candidates) >= 1


def test_a_ring_waits_for_what_its_hops_take_longer_than_their_tiles() -> None:
    """By hand: keys and values n - 1 times in either pass, fp32 sums n times, home alone."""
    asked = question("dp=1,fsdp=1,cp=64:ring", seq=2**20, batch=1)
    ring = plan_training(asked, count=1).candidates[0]
    values = dict(ring.forecast.basis.values)
    run = run_of(asked, ring.layout, ring.mesh, ring.micro, ring.remat)
    parts = training_parts(run)
    assert [h.devices for h in parts.hops] == [64, 64]
    ways, block = 64, 2 * (2**20 // 64) * 8 * 128 * 2  # keys and values of a device, bf16
    group = ring.mesh.group(tuple(ring.mesh.axes))

    def hop(nbytes: float) -> float:
        time = collective_time("permute", nbytes / 2, group)
        return 2 * (time.bandwidth_s / values["near_links"] + time.latency_s)

    pairs = 2**20 * (2**20 + 1) / 2 / ways
    peak = asked.on.chip.peak_flops("bf16") * values["attention"]
    kernel = 2 * (2 * pairs * 32 * 128 / peak)  # scores and their sum of values
    for one, sent, work, home in (
        (parts.hops[0], 63 * hop(block), kernel, 0.0),
        (parts.hops[1], 63 * hop(block) + 64 * hop(2 * block), 2 * kernel, hop(2 * block)),
    ):
        exposed = max(home, sent - work * 63 / 64)
        alone = replace(parts, works=(), traffic=(), hops=(replace(one, count=1.0),))
        found = step_breakdown(alone, values)
        assert found.exposed_s == pytest.approx(exposed, rel=1e-3)
        assert found.collectives_s == pytest.approx(sent, rel=1e-9)


def test_long_sequences_hide_the_hops_of_a_ring_and_short_ones_do_not() -> None:
    gains: list[float] = []
    for seq in (8192, 65_536, 524_288):
        asked = question(seq=seq, batch=4)
        ring = planned("fsdp=4,cp=16:ring,remat=block", seq=seq, batch=4)
        plain = plain_of(ring, asked)
        waits = (c.forecast.breakdown.exposed_s for c in (plain, ring))
        gains.append(next(waits) / next(waits))
    assert gains == sorted(gains)
    assert gains[0] < 1 < gains[-1]


def test_where_a_ring_would_be_faster_the_plan_says_that_it_is_worth_measuring() -> None:
    """No measured run tells of a ring, so it is never the plan unless it is asked for."""
    found: list[Search] = [
        plan_training(question(on=on, seq=131_072, batch=16)) for on in ("v5e:8x8", "h100:8x8")
    ]
    for search in found:
        assert not any(c.layout.modes for c in search.candidates)
    for search in found:
        if search.worth_measuring and search.worth_measuring.layout.modes:
            assert "cp:ring" in search.worth_measuring.unseen
            assert search.worth_measuring.step_s < search.candidates[0].step_s


def test_a_search_for_a_plain_layout_stays_plain() -> None:
    asked = question("fsdp=4,cp=16")
    assert not any(c.layout.modes for c in search_training(asked, count=8).candidates)
    assert search_training(asked, count=8).worth_measuring is None
