"""Plans in the words of MaxText, torchtitan and Megatron-LM; what they cannot say is listed."""

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.export import export_plan
from rooflight.interop.framework import FRAMEWORKS, Export, load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.read_maxtext import import_maxtext
from rooflight.interop.read_torchtitan import import_torchtitan
from rooflight.interop.settings import read_flat_toml, read_flat_yaml
from rooflight.models.huggingface.read import model_from_hf
from rooflight.models.layout.rules import SCHEMES, parse_layout
from rooflight.models.presets import load_model, model_names
from rooflight.plan.file.record import Plan

from .plans import piped, plan_of

HYBRID = plan_of("dp=Z,fsdp=X,sp=Y", "Z=2,X=8,Y=8@node")
CHIPS = 128


def lost(export: Export) -> list[str]:
    return [loss.what for loss in export.losses if loss.is_material]


def test_maxtext_gets_an_axis_inside_a_slice_and_across_slices() -> None:
    plan = plan_of("dp=Z,fsdp=X,tp=Y", "Z=2@dcn,X=64@x+y,Y=4@z", on="2*v5p:8x8x4")
    found = export_plan(plan, to="maxtext")
    degrees = {k: v for k, v in found.settings.items() if "parallelism" in k and v != 1}
    assert degrees == {
        "dcn_data_parallelism": 2,
        "ici_fsdp_parallelism": 64,
        "ici_tensor_parallelism": 4,
    }
    assert found.settings["per_device_batch_size"] == 512 / 512
    assert found.is_faithful


def test_an_axis_that_leaves_a_node_is_split_between_ici_and_dcn() -> None:
    found = export_plan(plan_of("fsdp=X", "X=128@leaf+node"), to="maxtext").settings
    assert (found["ici_fsdp_parallelism"], found["dcn_fsdp_parallelism"]) == (8, 16)
    assert found["hardware"] == "gpu"


def test_torchtitan_gets_the_tables_of_a_job() -> None:
    text = export_plan(replace(HYBRID, microbatches=4), to="torchtitan").text
    assert tomllib.loads(text) == {
        "model": {"name": "llama3", "flavor": "70B"},
        "training": {
            "seq_len": 4096,
            "local_batch_size": 512 // 16 // 4,
            "global_batch_size": 512,
            "dtype": "float32",
            "mixed_precision_param": "bfloat16",
        },
        "parallelism": {
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 8,
            "tensor_parallel_degree": 8,
            "context_parallel_degree": 1,
            "pipeline_parallel_degree": 1,
            "expert_parallel_degree": 1,
        },
        "activation_checkpoint": {"mode": "full"},
    }


def test_megatron_gets_a_3d_plan_with_nothing_lost() -> None:
    plan = plan_of("pp=P,dp=Z,sp=Y", "P=4,Z=4,Y=8@node", model="llama3-70b")
    plan = replace(
        piped(plan, stages=4, schedule="interleaved", microbatches=16, virtual=5), zero=1
    )
    found = export_plan(replace(plan, recipe="18"), to="megatron")
    assert lost(found) == []
    lines = [line.strip() for line in found.text.splitlines()]
    for line in (
        "--tensor-model-parallel-size 8",
        "--sequence-parallel",
        "--pipeline-model-parallel-size 4",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--micro-batch-size 8",
        "--global-batch-size 512",
        "--use-distributed-optimizer",
        "--num-query-groups 8",
        "--ffn-hidden-size 28672",
    ):
        assert line in lines
    assert not any("fsdp" in line for line in lines)


def test_megatron_gets_latent_attention_and_leading_dense_layers() -> None:
    plan = plan_of("dp=X,sp=Y,ep=X", "X=16,Y=8@node", model="deepseek-v3")
    found = export_plan(replace(plan, recipe="18", zero=1), to="megatron").settings
    assert found["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert (found["ffn-hidden-size"], found["moe-ffn-hidden-size"]) == (18432, 2048)
    assert (found["kv-lora-rank"], found["qk-pos-emb-head-dim"]) == (512, 64)
    assert (found["expert-model-parallel-size"], found["num-experts"]) == (16, 256)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 4, "vocab_size": 320}


@pytest.mark.parametrize("theta", (10_000.0, 500_000.0))
def test_the_base_of_rotary_positions_is_written_where_a_config_has_it(
    theta: float, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "rope_theta": theta}))
    found = export_plan(replace(HYBRID, model=load_model(str(tmp_path))), to="megatron")
    assert found.settings["rotary-base"] == theta
    assert f"    --rotary-base {theta:.0f}\n" in found.text
    assert not any("not known" in loss.because for loss in found.losses)


def test_the_base_of_rotary_positions_of_a_preset_is_not_known() -> None:
    found = export_plan(HYBRID, to="megatron")
    assert "rotary-base" not in found.settings
    assert [x.is_material for x in found.losses if "base of rotary" in x.because] == [False]


def test_positions_that_are_not_rotary_are_not_written_as_such() -> None:
    alibi = replace(HYBRID, model=model_from_hf(MPT))
    assert export_plan(alibi, to="megatron").settings["position-embedding-type"] == "none"
    learned = replace(HYBRID, model=load_model("gpt3-175b"))
    found = export_plan(learned, to="megatron").settings
    assert found["position-embedding-type"] == "learned_absolute"


# A layout, and whether each framework says it all.
FAITHFUL = {
    "fsdp=X": "maxtext torchtitan megatron",
    "dp=X": "maxtext torchtitan megatron",
    "fsdp=X,tp=Y": "maxtext",
    "fsdp=X,sp=Y": "maxtext torchtitan megatron",
    "fsdp=X,mp=Y": "megatron",
    "fsdp=X,cp=Y": "",
    "dp=X,cp=Y": "megatron",
    "dp=X,ulysses=Y": "megatron",
    "fsdp=X,ep=X": "maxtext torchtitan megatron",
    "fsdp=X,sp=Y,ep=X": "maxtext torchtitan megatron",
    "fsdp=X,sp=Y,ep=Y": "torchtitan megatron",
    "dp=X,ep=X": "megatron",
    "fsdp=X,ws=Y": "",
    "fsdp=X,ep=Y": "",
}


@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("layout", FAITHFUL)
def test_a_framework_says_a_layout_or_lists_what_it_cannot(layout: str, to: str) -> None:
    mesh = "X=16,Y=8@node" if "Y" in layout else "X=128"
    plan = plan_of(layout, mesh, model="deepseek-v3")
    plan = replace(plan, recipe="18" if to == "megatron" else "f32")
    assert _is_faithful(plan, to) == (to in FAITHFUL[layout].split())


def _is_faithful(plan: Plan, to: str) -> bool:
    """Megatron-LM refuses what another would list."""
    try:
        return export_plan(plan, to=to).is_faithful
    except UsageError as error:
        assert to == "megatron" and error.hint
        return False


def test_experts_on_tensor_ranks_are_whole_there() -> None:
    plan = plan_of("fsdp=X,sp=Y,ep=Y", "X=16,Y=8@node", model="deepseek-v3")
    found = export_plan(plan, to="torchtitan").settings
    assert found["parallelism.expert_parallel_degree"] == 8
    assert found["parallelism.expert_tensor_parallel_degree"] == 1
    inside = export_plan(replace(plan, layout="fsdp=X,sp=Y,ep=X"), to="torchtitan").settings
    assert inside["parallelism.expert_parallel_degree"] == 16
    assert inside["parallelism.expert_tensor_parallel_degree"] == 8


def test_a_tensor_axis_between_nodes_is_not_where_ranks_would_lie() -> None:
    plan = plan_of("fsdp=X,sp=Y", "X=8@node,Y=16@leaf")
    assert lost(export_plan(plan, to="torchtitan")) == [f"mesh {plan.mesh}"]
    with pytest.raises(UsageError, match="X=8@node,Y=16@leaf becomes fsdp=X,sp=Y on mesh"):
        export_plan(plan, to="megatron")


def test_axes_that_share_a_node_may_nest_either_way_behind_its_switch() -> None:
    one = plan_of("dp=Z,sp=Y", "Z=64@leaf+node4,Y=2@node", on="h100:8x16")
    other = plan_of("dp=Z,sp=Y", "Y=2@node2,Z=64@leaf+node", on="h100:8x16")
    assert one.mesh != other.mesh
    for to in ("torchtitan", "megatron"):
        settings = [export_plan(replace(p, recipe="18"), to=to).settings for p in (one, other)]
        assert settings[0] == settings[1]


def test_a_schedule_a_recipe_or_a_policy_that_is_not_there_is_listed() -> None:
    plan = plan_of("pp=P,fsdp=X,sp=Y", "P=4,X=4,Y=8@node", model="llama3-70b")
    plan = replace(piped(plan, stages=4, schedule="zb-h1", microbatches=16), remat="offload")
    assert lost(export_plan(plan, to="torchtitan")) == ["remat offload", "schedule zb-h1"]
    with pytest.raises(UsageError) as caught:
        export_plan(plan, to="megatron")
    assert "remat offload becomes none; schedule zb-h1 becomes 1f1b" in str(caught.value)
    assert lost(export_plan(plan, to="maxtext")) == ["schedule zb-h1"]


def test_experts_are_computed_again_where_maxtext_keeps_matmuls() -> None:
    plan = replace(plan_of("fsdp=X", "X=128", model="mixtral-8x7b"), remat="dots")
    assert lost(export_plan(plan, to="maxtext")) == ["remat dots"]
    dense = replace(plan, model=load_model("llama3-8b"))
    assert lost(export_plan(dense, to="maxtext")) == []


def test_copies_inside_split_weights_are_not_where_ranks_would_lie() -> None:
    plan = replace(plan_of("dp=Z,fsdp=X", "X=16@leaf,Z=8@node"), recipe="18")
    assert f"mesh {plan.mesh}" in lost(export_plan(plan, to="torchtitan"))
    with pytest.raises(UsageError, match="dp=Z,fsdp=X on mesh"):
        export_plan(plan, to="megatron")


def test_layers_that_are_not_equal_stages_are_listed() -> None:
    plan = plan_of("pp=P,fsdp=X", "P=4,X=32", model="deepseek-v3")  # 61 layers
    plan = piped(plan, stages=4, schedule="gpipe", microbatches=16)
    assert lost(export_plan(plan, to="maxtext")) == ["4 x 1 stages"]
    assert lost(export_plan(plan, to="torchtitan")) == []  # its stages may differ by a layer


def test_a_plan_for_tpus_is_not_one_for_gpu_frameworks() -> None:
    plan = plan_of("fsdp=X", "X=16", on="v5e:4x4")
    assert lost(export_plan(plan, to="torchtitan")) == ["slice v5e:4x4"]


def test_a_model_without_a_name_there_goes_by_its_sizes_or_is_listed() -> None:
    model = replace(load_model("mixtral-8x7b"), name="mine")
    found = export_plan(replace(HYBRID, model=model), to="maxtext")
    assert found.is_faithful and found.settings["num_experts"] == 8
    assert "model_name" not in found.settings
    assert lost(export_plan(replace(HYBRID, model=model), to="torchtitan")) == ["model mine"]
    odd = export_plan(replace(HYBRID, model=load_model("phi3-mini")), to="maxtext")
    assert set(lost(odd)) <= {"model phi3-mini"}


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_written_or_what_is_left_out_is_listed(name: str) -> None:
    model = load_model(name)
    windowed = any(block.attention.window for block in model.blocks)
    found = export_plan(replace(HYBRID, model=model, recipe="18"), to="megatron")
    assert found.settings["num-layers"] == model.num_layers
    assert any("windows" in loss.because for loss in found.losses) == windowed


def test_losses_stand_in_the_file_they_belong_to() -> None:
    found = export_plan(plan_of("fsdp=X,cp=Y", "X=16,Y=8@node"), to="torchtitan")
    assert "# lost: cp=Y: weights are split over the context ranks as well" in found.text
    assert load_framework("torchtitan").commit[:12] in found.text.splitlines()[0]


_LAYOUTS = st.sampled_from(tuple(FAITHFUL))


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    layout, inner = draw(_LAYOUTS), draw(st.sampled_from((2, 4, 8)))
    mesh = f"X={CHIPS // inner},Y={inner}" if "Y" in layout else f"X={CHIPS}"
    plan = plan_of(layout, mesh, model=draw(st.sampled_from(model_names())))
    return replace(
        plan,
        remat=draw(st.sampled_from(("none", "dots", "block", "offload", "gate+up"))),
        recipe=draw(st.sampled_from(("10", "16", "18", "f32"))),
        zero=draw(st.sampled_from((0, 1, 2))),
        microbatches=draw(st.sampled_from((1, 2, 4))),
    )


@settings(max_examples=200)
@given(_plans())
def test_degrees_multiply_to_the_chips_or_something_is_lost(plan: Plan) -> None:
    maxtext = export_plan(plan, to="maxtext")
    flat: Any = read_flat_yaml(maxtext.text)
    assert {k: flat[k] for k in maxtext.settings} == maxtext.settings
    degrees = math.prod(v for k, v in flat.items() if k.endswith("_parallelism"))
    assert degrees == CHIPS or not maxtext.is_faithful
    assert flat["per_device_batch_size"] * CHIPS * flat["gradient_accumulation_steps"] == 512
    titan = export_plan(plan, to="torchtitan")
    job: Any = read_flat_toml(titan.text)
    assert job == titan.settings
    assert _ranks(job) == CHIPS or not titan.is_faithful


def _ranks(job: dict[str, Any]) -> int:
    names = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel")
    names += ("context_parallel", "pipeline_parallel")
    return math.prod(job[f"parallelism.{name}_degree"] for name in names)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_rows_name_schemes_that_we_have_once_each(name: str) -> None:
    rows = [row.schemes for row in load_framework(name).axes]
    assert len(set(rows)) == len(rows) and all(schemes <= set(SCHEMES) for schemes in rows)
    assert set(load_framework(name).models) <= set(model_names())


RINGS = {
    "maxtext": ("context_parallel_strategy", "ring"),
    "megatron": ("cp-comm-type", "p2p"),
    "torchtitan": ("parallelism.context_parallel_rotate_method", "alltoall"),
}


@pytest.mark.parametrize("framework", RINGS)
def test_a_ring_is_written_in_the_words_of_each_framework(framework: str) -> None:
    key, value = RINGS[framework]
    ring, plain = (
        export_plan(plan_of(f"dp=Z,cp=Y{mode}", "Z=16,Y=8@node"), to=framework)
        for mode in (":ring", "")
    )
    assert ring.settings[key] == value
    assert plain.settings.get(key) != value
    assert [x.what for x in ring.losses if "ring" in x.because] == []


@pytest.mark.parametrize(
    ("framework", "read"), [("maxtext", import_maxtext), ("torchtitan", import_torchtitan)]
)
def test_a_ring_comes_back_from_the_settings_it_was_written_in(
    framework: str, read: Callable[..., Imported]
) -> None:
    plan = plan_of("dp=Z,cp=Y:ring", "Z=16,Y=8@node")
    found = export_plan(plan, to=framework).settings
    again = read({**found}, on=parse_slice(plan.slice), model=plan.model)
    assert parse_layout(again.layout).modes == {"cp": "ring"}
