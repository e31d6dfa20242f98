"""Curves of time against batch: the book's shapes, the plan's own point, nothing that is worse."""

from dataclasses import replace

import pytest

from rooflight.dtypes import DTYPES
from rooflight.errors import ShardingError
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.questions.curves import SchemeCurve, batches_around, time_by_batch
from rooflight.plan.training.search.candidate import Candidate, Question, price_one
from rooflight.plan.training.search.run import search_training
from rooflight.plan.training.search.space import every_placement

QUESTION = Question(
    model_graph(load_model("llama3-8b")), parse_slice("v5e:4x2"), 16, 4096, DTYPES["bf16"]
)


@pytest.fixture(scope="module")
def best() -> Candidate:
    return search_training(QUESTION, count=1).candidates[0]


@pytest.fixture(scope="module")
def curves(best: Candidate) -> dict[str, SchemeCurve]:
    return {curve.name: curve for curve in time_by_batch(QUESTION, best)}


def test_gathering_weights_takes_as_long_for_any_batch(curves: dict[str, SchemeCurve]) -> None:
    seconds = [p.time.collectives_s("sum") for p in curves["fsdp"].points]
    assert len(seconds) >= 5
    assert max(seconds) - min(seconds) < 1e-9


def test_moving_activations_takes_time_in_proportion_to_tokens(
    curves: dict[str, SchemeCurve],
) -> None:
    points = curves["tensor"].points
    # Latency apart: only bytes grow.
    rates = [p.time.collectives_s("sum") / p.tokens for p in points[-3:]]
    assert len(points) >= 5
    assert max(rates) / min(rates) < 1.01


def test_a_curve_begins_where_every_chip_has_a_whole_sequence(
    curves: dict[str, SchemeCurve],
) -> None:
    assert curves["fsdp"].points[0].tokens == QUESTION.on.num_chips * QUESTION.seq
    assert curves["tensor"].points[0].tokens == QUESTION.seq


def test_the_plan_lies_on_its_own_curve(curves: dict[str, SchemeCurve], best: Candidate) -> None:
    there = curves["this plan"].at(QUESTION.batch * QUESTION.seq)
    assert there
    assert there.time == best.time
    assert there.mesh == best.mesh


@pytest.mark.parametrize("name", ["fsdp and tensor", "fsdp and context"])
def test_no_mesh_of_a_family_is_faster_than_its_curve(
    name: str, curves: dict[str, SchemeCurve], best: Candidate
) -> None:
    curve = curves[name]
    layout, point = parse_layout(curve.layout), curve.points[-1]
    question = replace(QUESTION, batch=point.tokens // QUESTION.seq)
    meshes = every_placement(layout, question.on)
    times: list[float] = []
    for index in range(meshes.count):
        try:
            mesh = meshes.mesh(index)
            one = price_one(question, layout, mesh, Microbatching(), best.remat)
        except ShardingError:
            continue
        times.append(one.time.expected_s())
    assert len(times) > 3
    assert point.time.expected_s() <= min(times) * 1.001


def test_matmuls_bind_from_the_batch_after_which_they_always_do(
    curves: dict[str, SchemeCurve],
) -> None:
    for curve in curves.values():
        bound = curve.matmuls_bind_from("sum")
        hidden = [p.tokens for p in curve.points if p.time.binds("sum") == "matmuls"]
        assert bound is None or all(t in hidden for t in tokens_from(curve, bound))
        before = [p.tokens for p in curve.points if bound is None or p.tokens < bound]
        assert not before or before[-1] not in hidden


def tokens_from(curve: SchemeCurve, bound: int) -> list[int]:
    return [p.tokens for p in curve.points if p.tokens >= bound]


def test_a_factor_that_divides_no_weight_goes_to_plain_data_parallelism(best: Candidate) -> None:
    # 12 chips: 3 divides neither widths nor heads.
    question = replace(QUESTION, on=parse_slice("v4:2x2x3"), batch=24)
    candidate = search_training(question, count=1).candidates[0]
    curves = {c.name: c for c in time_by_batch(question, candidate)}
    assert curves["fsdp"].layout == "dp=Z,fsdp=X"
    assert {p.mesh.axes["Z"] for p in curves["fsdp"].points} == {3}
    assert curves["tensor"].points == ()


def test_a_pipeline_keeps_the_size_of_its_microbatches() -> None:
    mesh, micro = parse_mesh("P=2,X=4", on="v5e:4x2"), Microbatching(4)
    layout = parse_layout("fsdp=X,pp=P")
    candidate = price_one(QUESTION, layout, mesh, micro, REMATS["block"])
    own = time_by_batch(QUESTION, candidate)[-1]
    assert own.name == "this plan"
    assert [p.tokens // QUESTION.seq for p in own.points] == [4, 8, 16, 32, 64, 128, 256]
    work = [p.time.matmuls_s / p.tokens for p in own.points]
    assert max(work) / min(work) < 1 + 1e-9
    assert len({round(p.time.bubble_s, 9) for p in own.points}) == 1


def test_one_chip_has_but_its_own_curve() -> None:
    question = Question(
        model_graph(load_model("llama3.2-1b")), parse_slice("v5e:1x1"), 4, 1024, DTYPES["bf16"]
    )
    candidate = search_training(question, count=1).candidates[0]
    (own,) = time_by_batch(question, candidate)
    assert {p.time.collectives_s("sum") for p in own.points} == {0}


def test_batches_halve_only_while_they_are_whole() -> None:
    assert batches_around(7)[0] == 7
    assert batches_around(1024)[0] == 4
