"""The forecast decides: one arithmetic in two forms, what it rests on, what people would run."""

import math
from dataclasses import replace

import pytest

from rooflight.algebra.notation import parse_tensor
from rooflight.dtypes import DTYPES
from rooflight.errors import ParseError
from rooflight.hardware.calibration import typical_values
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout, scheme_axes
from rooflight.models.presets import load_model
from rooflight.plan.file.record import from_json, to_json
from rooflight.plan.training.forecast import evidence as evidence_of
from rooflight.plan.training.forecast.basis import basis_of
from rooflight.plan.training.forecast.calibrated import part_table
from rooflight.plan.training.forecast.evidence import (
    degrees_of,
    evidence,
    least_context,
    most_experts,
    reach_of,
    seen_reaches,
)
from rooflight.plan.training.forecast.step import forecast_run, step_breakdown
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import parse_remat
from rooflight.plan.training.questions.why_not import why_not
from rooflight.plan.training.search import run as search
from rooflight.plan.training.search.candidate import Question, counted_seconds
from rooflight.plan.training.search.constraint import parse_constraint, placed_text, region_of
from rooflight.plan.training.search.options import policies_of
from rooflight.plan.training.search.plan import plan_record, train_question
from rooflight.plan.training.search.run import search_training
from rooflight.plan.training.time.parts import TrainingRun, training_parts


def ask(model: str, on: str, tokens: int, seq: int) -> Question:
    graph = model_graph(load_model(model))
    return train_question(graph, parse_slice(on), tokens // seq, seq, DTYPES["bf16"])


@pytest.mark.parametrize(
    ("model", "layout", "mesh", "on", "micro"),
    [
        ("llama3-8b", "fsdp=X,sp=Y", "X=64,Y=4", "v5e:16x16", Microbatching(2)),
        ("llama3-70b", "dp=Z,sp=Y,pp=P", "P=4,Z=4,Y=8", "h100:8x16", Microbatching(8)),
        ("mixtral-8x7b", "dp=Z,ep=Z,sp=Y", "Z=8,Y=2", "h100:8x2", Microbatching(4)),
    ],
)
def test_floats_and_arrays_price_a_step_alike(
    model: str, layout: str, mesh: str, on: str, micro: Microbatching
) -> None:
    run = TrainingRun(
        model_graph(load_model(model)),
        parse_layout(layout),
        parse_mesh(mesh, on=on),
        256,
        4096,
        micro=micro,
    )
    parts, values = training_parts(run), typical_values()
    one, many = step_breakdown(parts, values), part_table([parts]).seconds(values)
    assert one.total_s == pytest.approx(float(many.total[0]), rel=1e-12)
    assert one.exposed_s == pytest.approx(float(many.exposed[0]), rel=1e-12)


def test_constants_come_from_the_nearest_runs_and_the_interval_says_how_near() -> None:
    near = basis_of(load_chip("h100"), "megatron", experts=False)
    old = basis_of(load_chip("a100"), "megatron", experts=False)
    other = basis_of(load_chip("a100"), "torchtitan", experts=False)
    never = basis_of(load_chip("v100"), "megatron", experts=False)
    assert (near.distance, old.distance, never.distance) == ("chip", "chip", "kind")
    kin = basis_of(load_chip("h800"), "megatron", experts=True)
    assert kin.distance == "family" and kin.calibration.chip == "h100_sxm" and kin.spread >= 0.2
    assert other.distance in ("kind", "framework") and other.spread >= 0.2
    assert never.spread >= 0.3 > near.spread


@pytest.mark.parametrize(
    ("model", "on", "tokens", "seq"),
    [
        ("llama3-70b", "h100:8x64", 2**22, 8192),
        ("llama3-8b", "h100:8x8", 2**22, 8192),
        ("llama3-70b", "v5p:8x8x8", 2**22, 8192),
        ("llama3-8b", "v100:8x4", 2**20, 2048),
    ],
)
def test_the_answer_is_a_layout_like_those_that_people_run(
    model: str, on: str, tokens: int, seq: int
) -> None:
    question = ask(model, on, tokens, seq)
    found = search_training(question).candidates
    best = found[0]
    assert not best.unseen  # every scheme goes as far as in some measured run, tensors in the node
    assert 0.2 < best.mfu < 0.75
    assert best.step_s <= 1.02 * min(c.step_s for c in found if not c.unseen)
    assert best.time.expected_s() < best.step_s < best.forecast.high_s


def test_tensors_in_the_node_and_replicas_across_are_searched() -> None:
    question = ask("llama3-8b", "h100:8x16", 2**22, 8192)
    best = search_training(question, count=1).candidates[0]
    found = why_not(question, parse_constraint("dp=16,tp=8", question.graph), best).candidate
    assert found and {"dp@far", "tp@node"} == reach_of(found.layout, found.mesh)


def test_a_tier_and_chunks_can_be_asked_for() -> None:
    question = ask("llama3.1-405b", "h100:8x2048", 2**24, 8192)
    best = search_training(question, count=1).candidates[0]
    wanted = parse_constraint("tp=8@node,pp=16,vp=8,dp=128", question.graph)
    found = why_not(question, wanted, best)
    mine = found.candidate
    assert mine and mine.memory.fits and not found.outside
    assert mine.step_s <= 1.1 * best.step_s  # what was published is near the best
    assert "tp@node" in reach_of(mine.layout, mine.mesh)


def test_the_layout_of_palm_is_among_the_best() -> None:
    """Its 12 chips of tensors share one kv head: the queries are split, keys and values are not."""
    question = ask("palm-540b", "v4:16x16x12", 2**21, 2048)
    best = search_training(question, count=1).candidates[0]
    wanted = parse_constraint("fsdp=256,tp=12", question.graph)
    found = why_not(question, wanted, best)
    assert found.candidate and not found.outside and found.candidate.step_s <= 1.02 * best.step_s
    placed = str(found.candidate.layout.of_weight(parse_tensor("W_q[D,K,G,H]")))
    assert placed == "W_q[D_X,K,G_Y,H]" and "tp" in degrees_of(best.layout, best.mesh)


def test_gpt3_is_split_as_its_published_runs_are() -> None:
    """MLPerf's on 512 H100: tp=4 in the node, pp=8."""
    question = ask("gpt3-175b", "h100:8x64", 2048 * 2048, 2048)
    best = search_training(question, count=1).candidates[0]
    assert 1 < degrees_of(best.layout, best.mesh)["tp"] <= 8
    assert "tp@node" in reach_of(best.layout, best.mesh)


def test_what_no_run_had_needs_to_win_by_its_interval() -> None:
    """Without evidence the fastest is first; with it, the fastest of what was measured."""
    seen = seen_reaches("gpu", "megatron", "dense")
    assert {"tp@node", "dp@far", "pp@far"} <= seen and "tp@far" not in seen
    assert 0.1 < evidence().extrapolated["dense"] < evidence().extrapolated["experts"]
    question = ask("llama3-8b", "h100:8x8", 2**20, 8192)
    far = parse_constraint("tp=16", question.graph)
    best = search_training(question, count=1).candidates[0]
    found = why_not(question, far, best).candidate
    assert found is None or (found.unseen and found.forecast.high_s / found.step_s >= 1.2)


def test_the_roofline_is_the_books_question() -> None:
    graph, on = model_graph(load_model("llama3-70b")), parse_slice("v5p:8x8x8")
    book = train_question(graph, on, 512, 8192, DTYPES["bf16"], rank="roofline")
    assert (book.framework.name, book.hbm_margin, book.recipe.name) == ("rooflight", 0.0, "10")
    best = search_training(book, count=1).candidates[0]
    assert best.step_s == best.time.expected_s("sum") and best.mfu > 0.95
    assert replace(best, rank="forecast").step_s > best.step_s


def test_degrees_of_several_axes_multiply() -> None:
    """64 data ways with 8 ways of experts inside them, as Megatron counts both."""
    question = ask("mixtral-8x7b", "h100:8x16", 1 << 20, 4096)
    wanted = parse_constraint("dp=64,ep=8,tp=2,pp=1", question.graph)
    there = replace(question, region=region_of(wanted, question)[0])
    found = why_not(question, wanted, search_training(there, count=1).candidates[0])
    assert found.candidate is not None and found.candidate.mesh.axes["Y"] == 2
    schemes = scheme_axes(found.candidate.layout)
    ways = {n: math.prod(found.candidate.mesh.size(a) for a in schemes[n]) for n in ("dp", "ep")}
    assert ways == {"dp": 64, "ep": 8}


def test_groups_that_no_leaf_switch_holds_whole_are_placed() -> None:
    """48 data ways over leaves of 32 nodes: published, and of no power of two."""
    question = ask("llama3-70b", "h100:8x288", 1152 * 4096, 4096)
    wanted = parse_constraint("tp=8@node,pp=6,dp=48,vp=1", question.graph)
    assert region_of(wanted, question)[1] == ()
    found = search_training(replace(question, region=region_of(wanted, question)[0]), count=1)
    assert found.num_priced > 0


@pytest.mark.parametrize(
    ("model", "on", "batch"),
    [
        ("llama3-70b", "h100:8x16", 256),
        ("llama3-8b", "v5e:4x8", 64),
        ("mixtral-8x7b", "h100:8x8", 64),
    ],
)
def test_a_layout_as_it_is_shown_is_the_layout_that_is_read(
    model: str, on: str, batch: int
) -> None:
    question = ask(model, on, batch * 4096, 4096)
    for shown in search_training(question, count=4).candidates:
        wanted = parse_constraint(placed_text(shown), question.graph)
        there = replace(question, region=region_of(wanted, question)[0])
        first = search_training(there, count=1).candidates[0]
        assert placed_text(first) == placed_text(shown)
        assert first.step_s == pytest.approx(shown.step_s, rel=1e-9)


def test_a_place_must_be_a_tier_or_dims_of_the_slice() -> None:
    question = ask("llama3-8b", "v5e:4x8", 64 * 4096, 4096)
    for text in ("tp=4@q", "tp=4@x4+", "tp=4@x2+x2", "tp=4@8x"):
        with pytest.raises(ParseError, match="must name a tier"):
            region_of(parse_constraint(text, question.graph), question)


def test_activations_on_the_host_are_paid_where_the_link_is_slow() -> None:
    on = parse_slice("v5e:16x16")
    graph = model_graph(load_model("llama3-8b"))
    basis = basis_of(on.chip, "maxtext", experts=False)

    def seconds(remat: str, pcie: float) -> float:
        slow = replace(on, chip=replace(on.chip, pcie_bytes_per_s=pcie))
        mesh = replace(parse_mesh("X=256", on="v5e:16x16"), slice=slow)
        run = TrainingRun(graph, parse_layout("fsdp=X"), mesh, 512, 4096)
        return forecast_run(replace(run, remat=parse_remat(remat, graph)), basis).seconds

    assert seconds("q+k+v@host", 1e12) == seconds("q+k+v", 1e12)
    tokens, widths = 2 * 4096, 4096 + 4096 + 2 * 1024  # of a chip; x, q, k and v
    kept = 32 * tokens * widths * 2  # layers, bytes
    assert seconds("q+k+v@host", 1e8) == pytest.approx(2 * kept / 1e8, rel=0.05)


def test_maxtext_offloads_what_does_not_fit() -> None:
    """405B on 256 TPU v5p: MaxText's own recipe keeps activations on the host."""
    graph = model_graph(load_model("llama3.1-405b"))
    question = train_question(
        graph, parse_slice("v5p:8x8x8"), 1024, 8192, DTYPES["bf16"], framework="maxtext"
    )
    assert {r.name for r in policies_of(question)} >= {"q+k+v@host", "q+k+v", "offload"}
    found = search_training(question, count=1)
    best = found.candidates[0]
    assert best.remat.on_host and best.memory.host_bytes > 0
    plan = plan_record(load_model("llama3.1-405b"), question, found)
    assert from_json(to_json(plan)).remat == best.remat.name


def test_what_was_measured_once_is_no_evidence() -> None:
    runs = [r for r in evidence().runs if r.engine.startswith("megatron@") and r.kind == "gpu"]
    assert sum("fsdp@far" in r.reach for r in runs if r.blocks == "dense") == 1
    assert "fsdp@far" not in seen_reaches("gpu", "megatron", "dense")


def test_context_that_leaves_fewer_tokens_than_measured_is_an_extrapolation() -> None:
    """Nobody splits 8,192 tokens over 32 chips; a search that may does not answer so."""
    key = "gpu", "megatron", "dense"
    assert [least_context(*key, is_far=is_far) for is_far in (False, True)] == [2048, 4096]
    question = ask("llama3.1-405b", "h100:8x2048", 2**24, 8192)
    best = search_training(question, count=1).candidates[0]
    assert degrees_of(best.layout, best.mesh).get("cp", 1) <= 2 and not best.unseen
    wanted = parse_constraint("tp=8,pp=16,cp=8,dp=16", question.graph)
    found = why_not(question, wanted, best).candidate
    assert found and "cp of 1024 tokens per chip (4096 measured)" in found.unseen
    assert counted_seconds(question, found) > found.step_s


def test_experts_over_more_ranks_than_measured_are_an_extrapolation() -> None:
    key = "gpu", "megatron", "experts"
    assert most_experts(*key) == 64
    question = ask("gpt-oss-120b", "h100:8x32", 2**22, 4096)
    best = search_training(question, count=1).candidates[0]
    assert degrees_of(best.layout, best.mesh)["ep"] <= 64 and not best.unseen
    found = why_not(question, parse_constraint("dp=256,ep=128", question.graph), best).candidate
    assert found and "ep of 128 ranks (64 measured)" in found.unseen
    assert counted_seconds(question, found) > found.step_s


def test_a_faster_layout_that_nobody_measured_is_worth_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Had nobody ever split tensors, it would be shown, and not be the answer."""
    question = ask("llama3-8b", "h100:8x4", 1 << 18, 8192)
    plain = search_training(question, count=1)
    assert "sp=" in plain.candidates[0].layout.text and plain.worth_measuring is None
    seen = frozenset({"dp@far", "dp@node", "pp@far", "pp@node"})

    def measured(*_: str) -> frozenset[str]:
        return seen

    for module in (search, evidence_of):
        monkeypatch.setattr(module, "seen_reaches", measured)
    found = search_training(question, count=1)
    new = found.worth_measuring
    assert new is not None and new.unseen and new.memory.fits
    assert new.step_s < found.candidates[0].step_s and found.candidates[0].unseen == ()
    book = search_training(replace(question, rank="roofline"), count=1)
    assert book.worth_measuring is None
