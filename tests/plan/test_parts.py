"""The parts of a step: nothing is lost between the graph and what a calibration prices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.network import collective_time
from rooflight.dtypes import DTYPES
from rooflight.hardware.catalog import load_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import Slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.training.forecast.calibrated import ROOF, part_table
from rooflight.plan.training.forecast.step import step_breakdown
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.time.parts import TrainingRun, training_parts
from rooflight.plan.training.time.step_time import training_step
from rooflight.plan.training.time.traffic import sent_once
from rooflight.plan.training.time.work import Parts

LAYOUTS = (
    ("fsdp=X", "X=64", "v5e:8x8"),
    ("fsdp=X,tp=Y", "X=16,Y=4", "v5p:4x4x4"),
    ("dp=X,sp=Y", "X=8,Y=8", "h100:8x8"),
    ("dp=X,cp=C,sp=Y", "X=4,C=2,Y=8", "h100:8x8"),
)


def run_of(layout: str, mesh: str, on: str, model: str = "llama3-8b") -> TrainingRun:
    graph = model_graph(load_model(model))
    return TrainingRun(graph, parse_layout(layout), parse_mesh(mesh, on=on), 64, 4096)


def flops(parts: Parts) -> float:
    return parts.peak_flops * sum(w.count * w.flops_s for w in parts.works)


@pytest.mark.parametrize("where", LAYOUTS, ids=lambda w: w[0])
def test_matmuls_are_the_models_own_flops(where: tuple[str, str, str]) -> None:
    parts = training_parts(run_of(*where))
    assert flops(parts) == pytest.approx(parts.model_flops, rel=1e-6)


@pytest.mark.parametrize("where", LAYOUTS, ids=lambda w: w[0])
def test_microbatches_change_no_matmuls(where: tuple[str, str, str]) -> None:
    run = run_of(*where)
    cut = training_parts(replace(run, batch=256, micro=Microbatching(4)))
    assert flops(cut) == pytest.approx(4 * flops(training_parts(run)), rel=1e-6)


def test_recomputing_layers_does_the_forward_pass_of_layers_again() -> None:
    run = run_of(*LAYOUTS[0])
    plain, again = (training_parts(replace(run, remat=REMATS[r])) for r in ("none", "block"))
    assert 1.2 < flops(again) / flops(plain) < 4 / 3


def test_frozen_weights_save_a_third_of_weight_matmuls() -> None:
    run = run_of(*LAYOUTS[0])
    frozen = training_parts(replace(run, freezes_weights=True))
    saved = 1 - flops(frozen) / flops(training_parts(run))
    assert 0.28 < saved < 1 / 3
    assert not any(w.once for w in frozen.works)


def test_narrow_matmuls_take_less_time_and_more_casts() -> None:
    run = run_of("dp=X,sp=Y", "X=8,Y=8", "h100:8x8")
    wide, narrow = (training_parts(replace(run, compute=DTYPES[d])) for d in ("bf16", "fp8"))
    times = [part_table([p]).seconds(ROOF) for p in (wide, narrow)]
    assert times[1].matmuls < 0.6 * times[0].matmuls
    assert times[1].memory > times[0].memory


@pytest.mark.parametrize("where", LAYOUTS, ids=lambda w: w[0])
def test_the_roofs_agree_with_the_step_time_of_the_planner(where: tuple[str, str, str]) -> None:
    run = run_of(*where)
    step = training_step(
        run.graph, run.layout, mesh=run.mesh, batch=64, seq=4096, dtype=DTYPES["bf16"]
    )
    matmuls = part_table([training_parts(run)]).seconds(ROOF).matmuls[0]
    assert matmuls == pytest.approx(step.matmuls_s, rel=1e-6)


def test_a_pipeline_loses_the_time_of_its_bubble() -> None:
    run = run_of("pp=P,dp=X", "P=8,X=8", "h100:8x8")
    parts = training_parts(replace(run, batch=256, micro=Microbatching(32)))
    found = part_table([parts]).seconds(ROOF)
    assert found.bubble[0] == pytest.approx(7 / 32 * (found.matmuls + found.memory)[0])


@given(st.integers(1, 32), st.sampled_from(("X=64", "X=8,Y=8")))
def test_a_token_is_never_sent_to_a_unit_twice(k: int, mesh: str) -> None:
    group = parse_mesh(mesh, on="h100:8x8").group("X")
    plain = collective_time("all_to_all", 1e9, group)
    once = sent_once(plain, group, k)
    assert once.bandwidth_s <= plain.bandwidth_s * (1 + 1e-12)
    assert once.bandwidth_s >= plain.bandwidth_s / k * (1 - 1e-12)


def test_what_is_sent_once_is_the_mean_over_routings() -> None:
    group = parse_mesh("X=8", on="h100:8").group("X")
    plain = collective_time("all_to_all", 1e9, group)
    ratio = sent_once(plain, group, 2).bandwidth_s / plain.bandwidth_s
    pairs = [(a, b) for a in range(8) for b in range(8)]  # the two chips of a token, home is 0
    distinct = sum(len({a, b} - {0}) for a, b in pairs)
    copies = sum((a != 0) + (b != 0) for a, b in pairs)
    assert ratio == pytest.approx(distinct / copies)


def test_a_plain_all_to_all_sends_every_copy_and_waits_where_nothing_hides_it() -> None:
    mesh = parse_mesh("X=16", on="h100:8x2")
    graph = model_graph(load_model("qwen3-30b-a3b"))
    once = TrainingRun(graph, parse_layout("dp=X,ep=X"), mesh, 16, 4096)
    plain = replace(once, sends_once=False)
    sent = [
        sum(t.count * t.bandwidth_s for t in training_parts(run).traffic if t.is_exchange)
        for run in (once, plain)
    ]
    assert sent[1] == pytest.approx(sent[0] * 4 / (1 - 2**-8))  # 8 copies, half of them far
    hidden = {**ROOF, "overlap_experts": 1.0}
    for run, is_shown in ((plain, False), (replace(plain, hides_exchanges=False), True)):
        parts = training_parts(run)
        one, many = step_breakdown(parts, hidden), part_table([parts]).seconds(hidden)
        assert one.exposed_s == pytest.approx(float(many.exposed[0]))
        assert (one.exposed_s > sent[1]) == is_shown


def test_a_host_sums_gradients_whole_and_gathers_weights_on_top() -> None:
    """XLA has no reduce-scatter for CPUs: what a TPU sends once, a host sends one and a half."""
    chip = replace(load_chip("h100"), kind="cpu")
    sent: dict[str, float] = {}
    for one in (load_chip("h100"), chip):
        mesh = parse_mesh("X=8", on=Slice(one, (8,)))
        run = TrainingRun(model_graph(load_model("llama3-8b")), parse_layout("dp=X"), mesh, 64, 512)
        traffic = [t for t in training_parts(run).traffic if t.once]
        sent[one.kind] = sum(t.count * t.bandwidth_s for t in traffic)
    assert sent["cpu"] == pytest.approx(1.5 * sent["gpu"], rel=0.01)
