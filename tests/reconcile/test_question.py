"""A row as a question: chips, layouts, batches and conventions as their sources mean them."""

from typing import Any

import pytest

from rooflight.errors import UsageError
from rooflight.measure.published.degrees import Degrees, mesh_axes, read_degrees
from rooflight.measure.published.question import ReplayQuestion, ask
from rooflight.measure.published.replay import ask_rows, convention, measured_seconds
from rooflight.measure.published.rows import PublishedFile, PublishedRun, shipped_rows
from rooflight.models.graph.count import training_flops

BASE: dict[str, Any] = {
    "id": "row",
    "kind": "train",
    "source": "maxtext-v5e",
    "model": "llama2-7b",
    "chip": "tpu_v5e",
    "chips": 256,
    "layout": {"fsdp": 256},
    "batch": {"global_seqs": 512, "seq_len": 2048},
    "dtype": {"compute": "bf16"},
    "remat": "full",
    "measured": {"step_s": 2.0},
}


def question(**changed: Any) -> ReplayQuestion:
    return ask(PublishedRun(BASE | changed), shipped_rows().models)


def test_two_jax_devices_of_a_chip_are_one_chip() -> None:
    layout = {"fsdp": 128, "dp": 1, "tp": 1, "over": "jax devices (2 per chip)"}
    found = question(chip="tpu_v7x", chips=64, topology="4x4x4", layout=layout)
    assert found.run.mesh.axes == {"X": 64} and found.run.layout.text == "fsdp=X"


def test_sequences_of_a_device_are_counted_by_devices() -> None:
    layout = {"fsdp": 128, "over": "jax devices (2 per chip)"}
    batch = {"per_device_seqs": 2, "seq_len": 4096}
    found = question(chip="tpu_v7x", chips=64, topology="4x4x4", layout=layout, batch=batch)
    assert found.run.batch == 256


def test_replicas_across_slices_lie_on_the_data_centre_network() -> None:
    found = question(
        chips=512, slices=2, topology="16x16", layout={"dcn_dp": 2, "fsdp": 256, "tp": 1}
    )
    assert str(found.run.mesh) == "R=2@dcn,X=256@x+y"
    assert found.run.layout.text == "dp=R,fsdp=X"


def test_a_megatron_layout_becomes_axes_from_pipeline_to_tensor() -> None:
    found = question(
        source="megatron-bridge",
        model="llama3.1-405b",
        chip="h100_sxm",
        chips=1024,
        layout={"tp": 8, "pp": 8, "cp": 2, "vp": 7, "ep": 1, "dp": 8},
        batch={"global_seqs": 1536, "micro": 1, "seq_len": 8192},
        dtype={"compute": "fp8-cs"},
        remat=None,
    )
    run = found.run
    assert run.mesh.axes == {"P": 8, "X": 8, "C": 2, "Y": 8}
    assert run.mesh.group("Y").fans[0].dim == "node"  # tensor parallelism stays in a node
    assert (run.micro.count, run.micro.virtual, run.micro.schedule) == (192, 7, "interleaved")
    assert run.compute.name == "fp8"
    assert "recomputation: none" in found.assumed


def test_experts_take_data_ways_and_then_tensor_ways() -> None:
    axes, layout = mesh_axes(Degrees(tensor=2, shards=32, experts=64), 512)
    assert axes == {"E": 32, "Y": 2} and layout == "dp=E,ep=EY,sp=Y"


def test_model_parallel_ways_fill_a_node_first() -> None:
    row = PublishedRun(BASE | {"layout": {"model_parallel": 64, "dp": 6}})
    found = read_degrees(row, 384, 1, 1)
    assert (found.tensor, found.stages, found.data) == (8, 8, 6)


def test_a_release_chooses_the_version_of_an_engine() -> None:
    layout = {"tp": 1, "pp": 1, "dp": 8}
    row = {"source": "megatron-bridge", "chip": "gb200", "chips": 8, "layout": layout}
    engines = [question(**row, release=release).engine for release in ("26.04", "26.08")]
    assert engines == ["megatron@25.09", "megatron@26.06"]


@pytest.mark.parametrize(
    ("changed", "why"),
    (
        ({"chips": None}, "how many chips"),
        ({"batch": None}, "does not say the batch"),
        ({"model": "nobody-knows"}, "sizes of nobody-knows"),
        ({"layout": {"tp": 3}}, "do not divide"),
        ({"batch": {"global_seqs": 100, "seq_len": 2048}}, "do not divide 100 sequences"),
        ({"dtype": {"compute": "int3"}}, "int3"),
    ),
)
def test_a_row_that_cannot_be_asked_says_why(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        question(**changed)


def test_step_time_tokens_and_flops_of_one_run_agree() -> None:
    asked = question()
    run, chips = asked.run, 256
    flops = training_flops(run.graph, batch=run.batch, seq=run.seq, causal=False)
    stated = {
        "step_s": {"step_s": 2.0},
        "tokens": {"tokens_per_s_per_chip": run.batch * run.seq / 2.0 / chips},
        "flops": {"tflops_per_chip": float(flops) / 2.0 / chips / 1e12},
    }
    for measured in stated.values():
        row = question(measured=measured, flops="attention counted full (non-causal)")
        assert measured_seconds(row)[0] == pytest.approx(2.0)


def test_a_utilisation_without_its_convention_is_refused() -> None:
    with pytest.raises(UsageError, match="not how the source counts them"):
        measured_seconds(question(measured={"mfu": 0.4}))


@pytest.mark.parametrize(
    ("words", "name"),
    (
        ("causal-halved attention (checked)", "causal attention"),
        ("maxtext-pre2025-07: attention counted full (non-causal)", "full attention"),
        ("hardware FLOPs incl. recompute", "hardware"),
        ("megatron full attention", "full attention"),
    ),
)
def test_conventions_by_their_words(words: str, name: str) -> None:
    assert convention(words) == name


def test_a_topology_is_read_up_to_its_first_word() -> None:
    found = question(topology="16x16 as published, perhaps")
    assert str(found.run.mesh.slice) == "tpu_v5e:16x16"


@pytest.mark.parametrize(
    "changed",
    (
        {"batch": {"global_seqs": "many", "seq_len": 2048}},
        {"layout": {"fsdp": 256, "tp": "two"}},
        {"measured": {"step_s": "fast"}},
        {"measured": {"step_s": 0.0}},
        {"measured": {}},
        {"topology": 16},
        {"remat": {"policy": "custom", "save_on_device": 3}},
        {"dtype": {"compute": []}},
        {"chips": "all"},
        {"slices": 3},
    ),
)
def test_a_row_with_fields_of_another_type_is_answered_or_refused(changed: dict[str, Any]) -> None:
    asked = ask_rows(PublishedFile({}, shipped_rows().models, (PublishedRun(BASE | changed),)))
    assert len(asked.cases) + len(asked.refusals) == 1


def test_a_microbenchmark_without_its_sizes_is_refused() -> None:
    row = PublishedRun({**BASE, "kind": "micro", "model": "gemm", "op": {"m": 8}})
    asked = ask_rows(PublishedFile({}, {}, (row,)))
    assert "cannot be read" in asked.refusals[0].because
