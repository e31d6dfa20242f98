"""The matmuls of a step and its pipeline: the same seconds and FLOPs that the plan has."""

from math import isclose

import pytest

from rooflight.dtypes import DTYPES
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import training_flops
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.derive.matmuls import matmuls_of
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.search.candidate import Candidate, Question, price_one
from rooflight.plan.training.time.candidate_pipeline import run_pipeline

SHAPE = "v5e:4x4"


def ask(model: str) -> Question:
    return Question(model_graph(load_model(model)), parse_slice(SHAPE), 32, 2048, DTYPES["bf16"])


def candidate(
    question: Question, layout: str, mesh: str, micro: Microbatching, remat: str = "none"
) -> Candidate:
    on = parse_mesh(mesh, on=SHAPE)
    return price_one(question, parse_layout(layout), on, micro, REMATS[remat])


@pytest.mark.parametrize("model", ["llama3-8b", "gemma3-4b", "mixtral-8x7b"])
@pytest.mark.parametrize("layout", ["fsdp=X", "fsdp=X,cp=Y"])
def test_matmuls_add_up_to_the_time_of_the_step(model: str, layout: str) -> None:
    question = ask(model)
    mesh = "X=16" if layout == "fsdp=X" else "X=4,Y=4"
    chosen = candidate(question, layout, mesh, Microbatching(2), "dots")
    total_s = sum(p.seconds for p in matmuls_of(question, chosen))
    assert isclose(total_s, chosen.time.matmuls_s - chosen.time.recompute_s, rel_tol=1e-9)


def test_matmuls_do_the_flops_that_the_model_needs() -> None:
    question = ask("llama3-8b")
    chosen = candidate(question, "fsdp=X,sp=Y", "X=4,Y=4", Microbatching(4))
    done = sum(p.flops for p in matmuls_of(question, chosen)) * question.on.num_chips
    needed = training_flops(question.graph, batch=question.batch, seq=question.seq, causal=True)
    assert isclose(done, needed, rel_tol=1e-9)


def test_ops_of_the_same_size_are_one_product_and_the_longest_is_first() -> None:
    question = ask("llama3-8b")
    found = matmuls_of(question, candidate(question, "fsdp=X", "X=16", Microbatching()))
    assert found[0].ops == ("mlp.gate", "mlp.in", "mlp.out")
    assert [p.seconds for p in found] == sorted((p.seconds for p in found), reverse=True)
    assert len({op for p in found for op in p.ops}) == sum(len(p.ops) for p in found)


@pytest.mark.parametrize(
    "micro",
    [Microbatching(8), Microbatching(16, "interleaved", 2), Microbatching(8, "gpipe")],
    ids=lambda m: m.schedule,
)
def test_a_pipeline_idles_as_long_as_its_plan_says(micro: Microbatching) -> None:
    question = ask("llama3-8b")
    chosen = candidate(question, "fsdp=X,pp=P", "P=8,X=2", micro, "block")
    whole = run_pipeline(question, chosen)
    assert whole
    assert whole.schedule.microbatches == micro.count
    work_s = micro.count * whole.times.total_s
    assert isclose(whole.makespan_s - work_s, chosen.time.bubble_s, rel_tol=1e-9)


def test_a_shorter_step_has_the_same_bubble() -> None:
    question = ask("llama3-8b")
    chosen = candidate(question, "fsdp=X,pp=P", "P=4,X=4", Microbatching(8, "interleaved", 2))
    short = run_pipeline(question, chosen, most_microbatches=7)
    assert short
    assert short.schedule.microbatches == 7  # one group, as eight are two
    work_s = 7 * short.times.total_s
    assert isclose(short.makespan_s - work_s, chosen.time.bubble_s, rel_tol=1e-9)


def test_without_stages_there_is_no_pipeline() -> None:
    question = ask("llama3-8b")
    assert run_pipeline(question, candidate(question, "fsdp=X", "X=16", Microbatching())) is None
