"""Launch scripts and YAML of Megatron-LM as parts of a plan: samples, flags, what is refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli.main import main
from rooflight.errors import RooflightError, UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.framework import load_framework
from rooflight.interop.imported import Imported
from rooflight.interop.megatron.read_model import layer_pattern
from rooflight.interop.megatron.stages import stage_settings
from rooflight.interop.read import guess_framework, import_config
from rooflight.models.presets import load_model

LAUNCH = Path(__file__).parent / "launch"
PARTS = (
    *("layout", "batch", "seq", "dtype", "recipe", "remat", "zero"),
    *("stages", "schedule", "microbatches", "virtual"),
)
SMALL = (
    *("num-layers=32", "hidden-size=4096", "ffn-hidden-size=14336", "num-attention-heads=32"),
    *("group-query-attention=true", "num-query-groups=8", "swiglu=true", "vocab-size=128256"),
    *("normalization=RMSNorm", "disable-bias-linear=true", "position-embedding-type=rope"),
    *("untie-embeddings-and-output-weights=true", "max-position-embeddings=8192"),
    *("seq-length=8192", "micro-batch-size=1", "global-batch-size=256", "bf16=true"),
    "make-vocab-size-divisible-by=8",
)


def launched(name: str, *words: str, on: str = "h100") -> Imported:
    return import_config([str(LAUNCH / name), *words], on=parse_slice(on))


def said(*words: str, on: str = "h100:8x4") -> Imported:
    return import_config([*SMALL, *words], framework="megatron", on=parse_slice(on))


def parts(found: Imported) -> tuple[object, ...]:
    return tuple(getattr(found, name) for name in PARTS)


def material(found: Imported) -> list[str]:
    return [loss.what for loss in found.losses if loss.is_material]


def test_a_dense_script_with_positions_and_biases() -> None:
    found = launched("gpt3-175b.sh")
    assert found.model == replace(load_model("gpt3-175b"), vocab=51_200)  # 8 ranks split it
    assert (str(found.on), str(found.mesh)) == (
        "h100:8x128",
        "P=16@spine+leaf4,Z=8@leaf8,Y=8@node",
    )
    pipe = (16, "interleaved", 1536 // 8, 96 // 16 // 3)
    assert parts(found) == ("dp=Z,sp=Y,pp=P", 1536, 2048, "f16", "18", "none", 1, *pipe)
    assert material(found) == ["recompute-modules core_attn"]
    assert found.unread == ("--lr", "--data-path", "--exit-interval")


def test_grouped_queries_uneven_stages_and_context_ranks() -> None:
    found = launched("llama3-405b.sh")
    assert found.model == load_model("llama3.1-405b")
    assert (str(found.on), str(found.mesh)) == (
        "h100:8x256",
        "P=16@spine+leaf2,Z=8@leaf8,W=2@leaf2,Y=8@node",
    )
    pipe = (16, "interleaved", 256, 4)
    assert parts(found) == ("dp=Z,cp=W,sp=Y,pp=P", 2048, 8192, "bf16", "18", "none", 1, *pipe)
    assert material(found) == ["stages of 1, 62 x 2, 1 layers"]
    assert {loss.what for loss in found.losses if not loss.is_material} == {
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--tp-comm-overlap",
    }


def test_a_variable_given_from_outside_takes_the_other_branch() -> None:
    found = launched("llama3-405b.sh", "FP8=1", "CP=4", "global-batch-size=1024")
    assert (found.dtype, found.batch) == ("fp8", 1024)
    assert found.mesh.size("W") == 4


def test_experts_on_data_ranks() -> None:
    found = launched("mixtral-8x7b.sh")
    assert found.model == load_model("mixtral-8x7b")
    assert (str(found.on), str(found.mesh)) == (
        "h100:8x8",
        "P=4@leaf4,Z=2@leaf2,X=4@node4,Y=2@node2",
    )
    pipe = (4, "1f1b", 32, 1)
    assert parts(found) == ("dp=ZX,sp=Y,ep=X,pp=P", 256, 4096, "bf16", "18", "block", 1, *pipe)
    assert material(found) == ["line 24"]


def test_latent_attention_and_experts_over_nodes() -> None:
    found = launched("deepseek-v3.sh", on="h100:8x128")
    assert found.model == load_model("deepseek-v3")
    assert str(found.mesh) == "P=16@spine+leaf4,Z=64@leaf8+node"
    pipe = (16, "1f1b", 128, 1)
    assert parts(found) == ("dp=Z,ep=Z,pp=P", 8192, 4096, "fp8", "18", "dots", 1, *pipe)
    assert material(found) == [
        "remat dots",
        "fp8-recipe blockwise",
        "stages of 15 x 4, 1 layers",
        "--mtp-num-layers",
    ]


YAML = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  # sizes
  --num-layers: 32
  --hidden-size: 4096
  --ffn-hidden-size: 14336
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --swiglu: true
  --normalization: RMSNorm
  --disable-bias-linear: true
  --untie-embeddings-and-output-weights: true
  --position-embedding-type: rope
  --vocab-size: 128256
  --max-position-embeddings: 8192
  --seq-length: 8192
  --micro-batch-size: 1
  --global-batch-size: 256
  --tensor-model-parallel-size: 4
  --sequence-parallel: true
  --qk-layernorm: false
  --use-distributed-optimizer: true
  --bf16: true
  --auto-detect-ckpt-format:
    true
  --data-path: ${DATA_BLEND}
METRICS:
  - "iteration-time"
"""
BRIDGE = """
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  sequence_parallel: true
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
dataset:
  seq_length: 4096
train:
  global_batch_size: 64
  micro_batch_size: 1
ddp:
  use_distributed_optimizer: true
mixed_precision:
  bf16: true
"""


def test_yaml_of_the_functional_tests(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text(YAML)
    found = import_config([str(path)], on=parse_slice("h100:8x4"))
    assert found.framework.name == "megatron" and found.model == load_model("llama3-8b")
    assert (found.layout, found.zero, found.microbatches) == ("dp=Z,sp=Y", 1, 32)
    assert found.unread == ("--auto-detect-ckpt-format", "--data-path")


def test_yaml_that_overrides_a_recipe_needs_its_model(tmp_path: Path) -> None:
    path = tmp_path / "override.yaml"
    path.write_text(BRIDGE)
    with pytest.raises(UsageError, match="sizes of the model") as caught:
        import_config([str(path)], on=parse_slice("h100:8x2"))
    assert "--model" in caught.value.hint
    model = load_model("llama3.2-1b")
    found = import_config([str(path)], on=parse_slice("h100:8x2"), model=model)
    pipe = (2, "interleaved", 16, 4)
    assert parts(found) == ("dp=Z,sp=Y,pp=P", 64, 4096, "bf16", "18", "block", 1, *pipe)
    assert found.is_faithful and found.unread == ()


def test_keys_of_two_sections_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "override.yaml"
    path.write_text(BRIDGE.replace("dataset:\n  seq_length: 4096", "dataset:\n  seq_length: 8192"))
    with pytest.raises(UsageError, match=r"dataset\.seq_length is 8192"):
        import_config([str(path)], on=parse_slice("h100:8x2"), model=load_model("llama3.2-1b"))


# Words, and the parts that they change.
CHANGES: dict[str, dict[str, object]] = {
    "tensor-model-parallel-size=8": {"layout": "dp=Z,mp=Y"},
    "tensor-model-parallel-size=8 sequence-parallel=true": {"layout": "dp=Z,sp=Y"},
    "context-parallel-size=8 cp-comm-type=a2a": {"layout": "dp=Z,ulysses=Y"},
    "use-megatron-fsdp=true": {"layout": "fsdp=X", "zero": 1},
    "use-megatron-fsdp=true num-distributed-optimizer-instances=4": {"layout": "dp=Z,fsdp=X"},
    "use-torch-fsdp2=true": {"layout": "fsdp=X"},
    "use-megatron-fsdp=true data-parallel-sharding-strategy=optim_grads": {
        "layout": "dp=Z",
        "zero": 2,
    },
    "use-distributed-optimizer=true": {"zero": 1},
    "grad-reduce-in-bf16=true": {"recipe": "16"},
    "bf16=false": {"dtype": "f32", "recipe": "f32"},
    "bf16=false fp16=true": {"dtype": "f16"},
    "fp8-format=e4m3 fp8-recipe=mxfp8": {"dtype": "mxfp8"},
    "fp8-format=hybrid": {"dtype": "fp8"},
    "fp4-format=e2m1": {"dtype": "nvfp4"},
    "recompute-granularity=full recompute-method=block recompute-num-layers=32": {"remat": "block"},
    "global-batch-size=64 micro-batch-size=2": {"batch": 64, "microbatches": 1},
    "pipeline-model-parallel-size=4": {"stages": 4, "schedule": "1f1b", "microbatches": 32},
    "pipeline-model-parallel-size=4 num-layers-per-virtual-pipeline-stage=2": {
        "schedule": "interleaved",
        "virtual": 4,
    },
    "pipeline-model-parallel-size=4 pipeline-model-parallel-layout=Et*8|(t*8|)*2t*8L": {
        "schedule": "1f1b",
        "virtual": 1,
    },
    "pipeline-model-parallel-size=2 use-tp-pp-dp-mapping=true": {"layout": "dp=Z,pp=P"},
    "num-experts=8 expert-model-parallel-size=8": {"layout": "dp=ZX,ep=X"},
    "num-experts=8 expert-model-parallel-size=8 tensor-model-parallel-size=4"
    " sequence-parallel=true expert-tensor-parallel-size=1": {"layout": "dp=ZX,sp=Y,ep=XY"},
    "num-experts=8 expert-model-parallel-size=2 tensor-model-parallel-size=4"
    " sequence-parallel=true expert-tensor-parallel-size=2": {"layout": "dp=Z,sp=YW,ep=Y"},
    "num-experts=8 expert-model-parallel-size=4 context-parallel-size=2 cp-comm-type=all_gather": {
        "layout": "dp=ZX,cp=Y,ep=XY"
    },
}


@pytest.mark.parametrize("words", CHANGES)
def test_flags_mean_parts_of_a_plan(words: str) -> None:
    dispatch = ("moe-token-dispatcher-type=alltoall",)
    found = said(*words.split(), *dispatch)
    assert {name: getattr(found, name) for name in CHANGES[words]} == CHANGES[words]
    assert material(found) == []


# Words that a plan says otherwise, and what is listed for them.
DIFFERS = {
    "context-parallel-size=2": "cp-comm-type p2p",
    "context-parallel-size=2 cp-comm-type=all_gather use-megatron-fsdp=true": "context ranks",
    "recompute-granularity=full recompute-method=uniform recompute-num-layers=4": (
        "recompute full uniform 4"
    ),
    "recompute-granularity=full recompute-method=block recompute-num-layers=3": (
        "recompute full block 3"
    ),
    "recompute-granularity=selective recompute-modules=moe_act": "recompute-modules moe_act",
    "num-experts=8 expert-model-parallel-size=8": "moe-token-dispatcher-type allgather",
    "num-distributed-optimizer-instances=2": "num-distributed-optimizer-instances",
    "pipeline-model-parallel-size=2 decoder-first-pipeline-num-layers=15": (
        "stages of 15, 17 layers"
    ),
    "pipeline-model-parallel-size=2 num-virtual-stages-per-pipeline-rank=2"
    " microbatch-group-size-per-virtual-pipeline-stage=4": "groups of 4 microbatches",
    "optimizer=muon": "optimizer",
    "cpu-offloading=true": "cpu-offloading",
}


@pytest.mark.parametrize("words", DIFFERS)
def test_what_means_something_else_here_is_listed(words: str) -> None:
    assert material(said(*words.split())) == [DIFFERS[words]]


REFUSED = {
    "tensor-model-parallel-size=3": "must divide the 32 GPUs",
    "global-batch-size=33": "must be a multiple of 1 sequences on each of 32",
    "micro-batch-size=0": "--micro-batch-size must be a whole number",
    "num-layers=many": "--num-layers must be a whole number",
    "pipeline-model-parallel-size=32 num-layers=33": "33 layers must be a multiple of the 32",
    "pipeline-model-parallel-size=4 num-layers-per-virtual-pipeline-stage=3": "must be a multiple",
    "pipeline-model-parallel-size=4 pipeline-model-parallel-layout=Et*8|x": "pipeline layout",
    "pipeline-model-parallel-size=4 pipeline-model-parallel-layout=Et*8|t*8L": "16 layers must be",
    "pipeline-model-parallel-size=4 pipeline-model-parallel-layout=(t*9999|)*9999": "more than",
    "num-experts=8 moe-layer-freq=([0]*9999)*9999": "more than",
    "num-experts=8 moe-layer-freq=[0]*3+[1]": "a list of 32",
    "num-experts=8 moe-layer-freq=__import__('os')": "a list of 32",
    "num-experts=8 expert-model-parallel-size=8 tensor-model-parallel-size=4"
    " expert-tensor-parallel-size=3": "experts would take parts",
    "num-experts=8 expert-model-parallel-size=2 tensor-model-parallel-size=8"
    " expert-tensor-parallel-size=1": "experts would take parts",
    "use-megatron-fsdp=true num-distributed-optimizer-instances=3": "must divide the 32",
    "no/such/file.sh": "cannot read",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_plan_is_refused_with_a_hint(words: str) -> None:
    with pytest.raises(UsageError) as caught:
        said(*words.split())
    assert REFUSED[words] in str(caught.value) and caught.value.hint


def test_a_slice_of_tpus_is_refused() -> None:
    with pytest.raises(UsageError, match="runs on GPUs"):
        said(on="v5e:4x4")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.sh"
    path.write_text(text)
    return str(path)


def test_a_size_that_a_command_prints_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "torchrun pretrain_gpt.py --num-layers $(cat layers) --bf16")
    with pytest.raises(UsageError, match="--num-layers is what a command prints") as caught:
        import_config([path], on=parse_slice("h100:8"))
    assert "num-layers=" in caught.value.hint


def test_a_size_that_nobody_sets_is_asked_for(tmp_path: Path) -> None:
    sizes = "--hidden-size 64 --num-attention-heads 4 --vocab-size 64"
    path = write(tmp_path, f"torchrun pretrain_gpt.py --num-layers $LAYERS {sizes}")
    with pytest.raises(UsageError, match=r"--num-layers has no value.*nobody sets: LAYERS"):
        import_config([path], on=parse_slice("h100:8"))
    rest = ["seq-length=64", "micro-batch-size=1", "max-position-embeddings=64"]
    found = import_config([path, "LAYERS=3", *rest], on=parse_slice("h100:8"))
    assert found.model.num_layers == 3


@pytest.mark.parametrize(
    "text",
    [
        "echo hello",
        "python train.py --lr 1",
        "for tp in 1 2; do torchrun pretrain_gpt.py --num-layers 2; done",
        "torchrun pretrain_gpt.py --num-layers 2; torchrun pretrain_gpt.py --num-layers 4",
    ],
)
def test_a_script_must_start_one_training(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the script starts") as caught:
        import_config([write(tmp_path, text)], on=parse_slice("h100:8"))
    assert "pretrain_gpt.py" in caught.value.hint


def test_the_vocabulary_may_be_asked_for(tmp_path: Path) -> None:
    words = [word for word in SMALL if not word.startswith("vocab-size")]
    found = import_config(words, framework="megatron", on=parse_slice("h100:8"))
    assert found.model.name == "llama3-8b"  # by its other sizes
    other = [*words, "hidden-size=2048"]
    with pytest.raises(UsageError, match="size of the vocabulary"):
        import_config(other, framework="megatron", on=parse_slice("h100:8"))


def test_a_named_model_stands_above_the_sizes_of_the_file() -> None:
    model = load_model("llama3-70b")
    found = import_config(SMALL, framework="megatron", on=parse_slice("h100:8"), model=model)
    assert found.model == model
    assert "--num-layers" in {loss.what for loss in found.losses} and found.is_faithful


def test_experts_are_placed_where_the_model_is_named() -> None:
    model = load_model("mixtral-8x7b")
    words = ("expert-model-parallel-size=8", "moe-token-dispatcher-type=flex")
    found = import_config(
        [*SMALL, *words], framework="megatron", on=parse_slice("h100:8"), model=model
    )
    assert found.layout == "dp=Z,ep=Z"


def test_ranks_that_do_not_fill_nodes_evenly_are_a_loss() -> None:
    found = said(
        "pipeline-model-parallel-size=3", "num-layers=33", "global-batch-size=256", on="h100:8x48"
    )
    assert found.mesh.size("P") == 3
    assert material(found) == [f"mesh {found.mesh}"]  # 16 nodes a stage, 24 to a leaf


def test_a_file_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("model_name: llama3-8b\nici_fsdp_parallelism: -1\n")
    (tmp_path / "run.yaml").write_text(BRIDGE)
    names = {"base.yml": "maxtext", "run.yaml": "megatron"}
    assert {n: guess_framework(["steps=1", str(tmp_path / n)]) for n in names} == names
    assert guess_framework(["job.toml"]) == "torchtitan"
    with pytest.raises(UsageError, match="whose configuration"):
        guess_framework(["steps=1"])


def test_layers_are_cut_as_a_plan_cuts_them() -> None:
    assert stage_settings(32, 4, 1) == {}
    assert stage_settings(32, 4, 2) == {"num-layers-per-virtual-pipeline-stage": 4}
    assert stage_settings(7, 2, 2) == {"pipeline-model-parallel-layout": "E(t*2|)*3t*1L"}


def test_patterns_of_experts() -> None:
    assert layer_pattern("[0]*1+[1]*3", 4) == (False, True, True, True)
    assert layer_pattern("([0,1])*2", 4) == (False, True, False, True)
    assert layer_pattern(1, 3) == (True,) * 3


def test_every_flag_that_is_read_or_told_has_one_place() -> None:
    framework = load_framework("megatron")
    tables = (framework.defaults, framework.not_modelled, framework.noted, framework.synonyms)
    names = [name for table in tables for name in table]
    assert len(set(names)) == len(names)
    targets = {name.removeprefix("not ") for name in framework.synonyms.values()}
    assert targets <= set(framework.defaults)


def test_the_command_reads_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(LAUNCH / "gpt3-175b.sh"), "--on", "h100"]) == 1
    shown = capsys.readouterr()
    assert "layout        dp=Z,sp=Y,pp=P\n" in shown.out
    assert "\nnoted:\n  vocab-size 50257: 51200 rows there" in shown.out
    assert shown.out.endswith("not read: --lr, --data-path, --exit-interval\n")
    assert shown.err == ""  # no preset has this vocabulary
    assert main(["import", str(LAUNCH / "deepseek-v3.sh"), "--on", "h100:8x128"]) == 1
    shown = capsys.readouterr()
    command = shown.err.removeprefix("next: rooflight ").split()
    assert main([*command, "--json"]) in (0, 1)


def test_errors_of_the_command_end_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "train.sh", "--on", "h100:8"]) == RooflightError.exit_code + 1
    assert "hint: give a file of Megatron-LM" in capsys.readouterr().err


def test_a_pipe_or_a_large_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "large.sh").write_text("#" * (1 << 20) + "\n")
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "escape.sh").write_text("torchrun pretrain_gpt.py --num-layers 2 --\x1b[31m")
    for name in ("pipe.sh", "large.sh", "binary.sh", "escape.sh", "none.sh"):
        with pytest.raises(UsageError, match="cannot read"):
            import_config([str(tmp_path / name)], on=parse_slice("h100:8"))
