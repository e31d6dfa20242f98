"""Fleets as commands of engines and as a manifest: what they say, and what they cannot."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rooflight.cli.main import main
from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.serving import ServedFleet, export_commands, read_fleet, servers

FLEET = ServedFleet(
    model="llama3-8b",
    on=parse_slice("h100:4"),
    ways={"tp": 2, "pp": 2},
    kv_split="heads",
    weights="fp8",
    kv="fp8",
    compute="fp8",
    replicas=4,
    prefill_replicas=0,
    max_rows=256,
    max_step_tokens=2048,
    block_tokens=128,
    longest=1280,
    is_cached=True,
    spare=1,
    drain_s=30,
)


def test_vllm_has_a_flag_for_everything_said() -> None:
    found = export_commands(FLEET, servers()["vllm"])
    line = found.text.splitlines()[-1]
    assert not found.losses and line.startswith("vllm serve llama3-8b ")
    for words in (
        "--tensor-parallel-size 2",
        "--pipeline-parallel-size 2",
        "--max-num-seqs 256",
        "--max-num-batched-tokens 2048",
        "--max-model-len 1280",
        "--kv-cache-dtype fp8",
        "--enable-prefix-caching",
    ):
        assert words in line


def test_draft_tokens_come_from_a_layer_or_from_a_model() -> None:
    layer = replace(FLEET, ways={"tp": 4}, draft_tokens=3)
    model = replace(layer, draft_model="llama3.2-1b")
    said = {
        name: [export_commands(fleet, engine).text.splitlines()[-1] for fleet in (layer, model)]
        for name, engine in servers().items()
    }
    by_layer, by_model = (json.loads(shlex.split(line)[-1]) for line in said["vllm"])
    assert by_layer == {"method": "mtp", "num_speculative_tokens": 3}
    assert by_model["model"] == "llama3.2-1b" and by_model["num_speculative_tokens"] == 3
    assert "--speculative-algorithm NEXTN --speculative-num-steps 3" in said["sglang"][0]
    assert "--speculative-draft-model-path llama3.2-1b" in said["sglang"][1]
    assert all("--speculative-num-draft-tokens 4" in line for line in said["sglang"])


def test_redundant_experts_are_eplb_where_experts_are_split() -> None:
    fleet = replace(FLEET, model="deepseek-v3", ways={"dp": 8, "ep": 8}, redundant_experts=32)
    known = servers()
    told = "--enable-eplb --eplb-config '{\"num_redundant_experts\":32}'"
    assert told in export_commands(fleet, known["vllm"]).text
    told = "--enable-eplb --ep-num-redundant-experts 32"
    assert told in export_commands(fleet, known["sglang"]).text
    assert "eplb" not in export_commands(replace(fleet, redundant_experts=None), known["vllm"]).text
    few = {"dp": 8, "ep": 4}  # vLLM would have 8 ranks, over which 288 experts were not counted
    for other in ({"ways": {"tp": 8}}, {"ways": few}, {"on": parse_slice("v6e:8")}):
        without = export_commands(replace(fleet, **other), known["vllm"])
        assert "eplb" not in without.text
        assert "EPLB" in [loss.what for loss in without.losses]


def test_adapters_are_slots_of_a_rank_that_the_engine_knows() -> None:
    fleet = replace(FLEET, adapters={"count": 50, "rank": 24, "resident": 8})
    vllm, sglang = (export_commands(fleet, servers()[name]) for name in ("vllm", "sglang"))
    assert "--enable-lora --max-loras 8 --max-lora-rank 32 --max-cpu-loras 50" in vllm.text
    told = "--max-loras-per-batch 8 --max-lora-rank 24 --max-loaded-loras 50"
    assert f"--enable-lora {told} --lora-target-modules all" in sglang.text
    assert "the adapters" in [loss.what for loss in vllm.losses]
    assert "lora" not in export_commands(FLEET, servers()["vllm"]).text


def test_a_model_without_a_layer_that_proposes_needs_the_checkpoint_of_one() -> None:
    layer = replace(FLEET, ways={"tp": 4}, draft_tokens=3)
    (lost,) = export_commands(layer, servers()["vllm"]).losses
    assert lost.what == "a layer that proposes"
    for fleet in (replace(layer, model="deepseek-v3"), replace(layer, draft_model="llama3.2-1b")):
        assert not export_commands(fleet, servers()["vllm"]).losses


def test_sglang_counts_the_chips_of_all_attention_ranks_as_tp() -> None:
    experts = replace(FLEET, ways={"dp": 8, "ep": 8}, on=parse_slice("h200:8"))
    line = export_commands(experts, servers()["sglang"]).text.splitlines()[-1]
    for words in ("--tp-size 8", "--dp-size 8", "--ep-size 8", "--enable-dp-attention"):
        assert words in line
    assert "--max-running-requests 256" in line and "--chunked-prefill-size 2048" in line


def test_vllm_counts_rows_and_tokens_of_each_rank() -> None:
    experts = replace(FLEET, ways={"dp": 8, "ep": 8}, on=parse_slice("h200:8"))
    line = export_commands(experts, servers()["vllm"]).text.splitlines()[-1]
    for words in ("--data-parallel-size 8", "--max-num-seqs 32", "--max-num-batched-tokens 256"):
        assert words in line
    assert "--enable-expert-parallel" in line


def test_vllm_splits_over_devices_of_which_a_chip_may_have_two() -> None:
    text = export_commands(replace(FLEET, on=parse_slice("tpu7x:2x2x1")), servers()["vllm"]).text
    assert "--tensor-parallel-size 4 --pipeline-parallel-size 2" in text


def test_weights_as_they_are_published_need_no_flag() -> None:
    fleet = replace(FLEET, weights="mxfp4", compute="mxfp4")
    text = export_commands(fleet, servers()["vllm"]).text
    published = export_commands(replace(fleet, is_published=True), servers()["vllm"])
    assert "--quantization mxfp4" in text and "--quantization" not in published.text
    assert "weights in mxfp4" not in published.text


def test_separated_replicas_get_a_command_each() -> None:
    apart = replace(FLEET, prefill_replicas=3)
    text = export_commands(apart, servers()["sglang"]).text
    assert "# 3 x h100:4: prefill" in text and "# 1 x h100:4: generate" in text
    assert "--disaggregation-mode prefill" in text and "--disaggregation-mode decode" in text


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"ways": {"tp": 2, "ws": 2}}, "ws=2"),
        ({"kv_split": "batch"}, "kv=batch"),
        ({"ways": {"tp": 2, "dp": 2, "ep": 2}}, "ep=2"),
        ({"kv": "int4"}, "cache in int4"),
        ({"weights": "int4"}, "weights in int4"),
        ({"weights": "int8", "compute": "int8"}, "matmuls in int8"),
        ({"on": parse_slice("v5e:2x2"), "prefill_replicas": 1}, "disaggregated replicas"),
    ],
)
def test_what_vllm_cannot_say_is_listed(changes: dict[str, Any], what: str) -> None:
    found = export_commands(replace(FLEET, **changes), servers()["vllm"])
    assert [loss.what for loss in found.losses] == [what] and f"# lost: {what}" in found.text


@pytest.mark.parametrize("to", ["vllm", "megatron"])
def test_a_gateway_without_a_manifest_is_refused(
    to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "fleet.json", "--to", to, "--gateway", "front"]) == 2
    assert "--gateway is of a manifest" in capsys.readouterr().err


def test_a_file_without_a_fleet_says_how_to_write_one(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    for text in ("", "[]", json.dumps({"fleet": None}), json.dumps({"fleet": {"layout": "x"}})):
        path.write_text(text)
        with pytest.raises(UsageError, match="holds no fleet"):
            read_fleet(str(path))
