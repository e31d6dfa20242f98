"""Configurations of MaxText and torchtitan as parts of a plan; round trips; what is refused.

The inputs say what files of those repositories say at the commits of `frameworks.toml`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import ParseError, RooflightError, UsageError
from rooflight.hardware.slice import parse_slice
from rooflight.interop.export import export_plan
from rooflight.interop.imported import Imported
from rooflight.interop.read import import_config
from rooflight.interop.settings import read_flat_yaml
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan

from .plans import piped, plan_of

# torchtitan/models/llama3/train_configs/llama3_405b.toml, a preset for 128 GPUs
LLAMA_405B = """
[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
steps = 3000
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""

# src/maxtext/configs/gpu/models/llama3_70b.yml
LLAMA_70B = """
base_config: "base.yml"
# the model's own sizes are in another file
model_name: "llama3-70b"
hardware: "gpu"
steps: 30
per_device_batch_size: 4
max_target_length: 8192
remat_policy: "full"
use_iota_embed: true
"""


def read(tmp_path: Path, text: str, *words: str, framework: str, on: str) -> Imported:
    (tmp_path / "config").write_text(text)
    config = [str(tmp_path / "config"), *words]
    return import_config(config, framework=framework, on=parse_slice(on))


def test_a_job_of_torchtitan_fills_its_ranks(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA_405B, framework="torchtitan", on="h100:8x16")
    assert (found.layout, str(found.mesh)) == ("fsdp=X,sp=Y", "X=16@leaf,Y=8@node")
    assert (found.model, found.batch, found.seq) == (load_model("llama3.1-405b"), 32, 8192)
    assert (found.remat, found.recipe, found.dtype) == ("block", "f32", "bf16")
    assert [loss.what for loss in found.losses] == ["model.converters"]
    assert found.unread == ("training.steps",)


def test_a_file_of_maxtext_and_words_after_it(tmp_path: Path) -> None:
    words = ("dcn_fsdp_parallelism=16", "ici_fsdp_parallelism=8", "dcn_data_parallelism=1")
    found = read(tmp_path, LLAMA_70B, *words, framework="maxtext", on="h100:8x16")
    assert (found.layout, str(found.mesh)) == ("fsdp=X", "X=128@leaf+node")
    assert (found.batch, found.seq, found.remat) == (512, 8192, "block")
    assert found.is_faithful and found.unread == ("hardware", "steps", "use_iota_embed")


def test_defaults_of_maxtext_share_out_slices_by_data_and_chips_by_fsdp() -> None:
    found = import_config(
        ["model_name=mixtral-8x7b"], framework="maxtext", on=parse_slice("2*v5e:16x16")
    )
    assert (found.layout, str(found.mesh)) == ("dp=Z,fsdp=X", "Z=2@dcn,X=256@x+y")
    assert found.batch == 12 * 512


def test_sizes_make_a_plain_decoder(tmp_path: Path) -> None:
    sizes = """
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
num_experts: 8
num_experts_per_tok: 2
decoder_block: "mixtral"
"""
    found = read(tmp_path, sizes, framework="maxtext", on="v5e:4x4").model
    ours = load_model("mixtral-8x7b")
    assert found.layers == ours.layers and (found.d_model, found.vocab) == (4096, 32000)


def test_sizes_beside_a_name_are_not_passed_over() -> None:
    words = ["model_name=mixtral-8x7b", "base_num_decoder_layers=4", "logical_axis_rules=[]"]
    found = import_config(words, framework="maxtext", on=parse_slice("v5e:4x4"))
    assert {x.what for x in found.losses} == {"base_num_decoder_layers", "logical_axis_rules"}
    assert not found.is_faithful


PATTERNS = {  # layouts that both frameworks can say, as the search writes them
    "fsdp=X": "X=128",
    "dp=Z,fsdp=X": "Z=4,X=32",
    "fsdp=X,sp=Y": "X=16,Y=8@node",
    "dp=Z,fsdp=X,sp=Y": "Z=2,X=8,Y=8@node",
    "fsdp=X,ep=X": "X=128",
    "fsdp=X,sp=Y,ep=X": "X=16,Y=8@node",
    "dp=Z,fsdp=X,ep=X": "Z=2,X=64",
    "fsdp=X,cp=Y": "X=32,Y=4",
    "fsdp=XY,ep=Y": "X=4,Y=32",
}


def words_of(plan: Plan, to: str) -> list[str]:
    return [f"{key}={value}" for key, value in export_plan(plan, to=to).settings.items()]


def assert_same(found: Imported, plan: Plan) -> None:
    same = ("layout", "batch", "seq", "dtype", "recipe", "remat", "stages", "schedule")
    for name in (*same, "microbatches", "virtual"):
        assert getattr(found, name) == getattr(plan, name), name
    assert found.mesh.segments == plan.placed().segments
    assert found.model.layers == plan.model.layers


@pytest.mark.parametrize("to", ["maxtext", "torchtitan"])
@pytest.mark.parametrize("layout", PATTERNS)
def test_what_is_exported_is_imported_again_the_same(layout: str, to: str) -> None:
    plan = plan_of(layout, PATTERNS[layout], model="deepseek-v3")
    plan = replace(plan, microbatches=4)
    assert_same(import_config(words_of(plan, to), framework=to, on=parse_slice(plan.slice)), plan)


def test_tensor_parallelism_with_its_stream_along_d_comes_back_from_maxtext() -> None:
    plan = plan_of("fsdp=X,tp=Y", "X=64@x+y,Y=4@z", on="v5p:8x8x4")
    found = import_config(
        words_of(plan, "maxtext"), framework="maxtext", on=parse_slice(plan.slice)
    )
    assert_same(found, plan)


@pytest.mark.parametrize(
    ("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-v", 2)]
)
def test_pipelines_come_back_from_torchtitan(schedule: str, virtual: int) -> None:
    plan = plan_of("fsdp=X,sp=Y,pp=P", "P=4,X=4,Y=8@node")
    plan = piped(plan, stages=4, schedule=schedule, microbatches=16, virtual=virtual)
    words = words_of(plan, "torchtitan")
    assert_same(import_config(words, framework="torchtitan", on=parse_slice(plan.slice)), plan)


def test_more_stages_a_rank_come_back_from_torchtitan() -> None:
    plan = plan_of("fsdp=X,pp=P", "P=4,X=32")
    plan = piped(plan, stages=4, schedule="interleaved", microbatches=16, virtual=5)
    words = words_of(plan, "torchtitan")
    assert_same(import_config(words, framework="torchtitan", on=parse_slice(plan.slice)), plan)


def test_a_pipeline_comes_back_from_maxtext() -> None:
    plan = plan_of("fsdp=X,pp=P", "P=4@leaf4,X=32@leaf4+node")
    plan = piped(plan, stages=4, schedule="gpipe", microbatches=16)
    words = words_of(plan, "maxtext")
    assert_same(import_config(words, framework="maxtext", on=parse_slice(plan.slice)), plan)


REFUSED = {
    "maxtext": (
        "model_name=gemma-2b",
        "decoder_block=gpt3",
        "ici_fsdp_parallelism=3",
        "ici_tensor_parallelism=-1",
        "ici_fsdp_transpose_parallelism=2",
        "ici_tensor_parallelism=0",
        "ici_tensor_parallelism=many",
        "per_device_batch_size=0.01",
        "per_device_batch_size=-1",
        "no/such/file",
    ),
    "torchtitan": (
        "model.flavor=9B",
        "model.flavor=9",
        "parallelism.tensor_parallel_degree=3",
        "parallelism.data_parallel_shard_degree=4",
        "parallelism.expert_parallel_degree=3",
        "training.global_batch_size=7",
        "training.seq_len=0",
        "no/such/file",
    ),
}


@pytest.mark.parametrize(("framework", "word"), [(f, w) for f, ws in REFUSED.items() for w in ws])
def test_what_makes_no_plan_is_refused_with_a_hint(framework: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        first = "model.flavor=8B" if framework == "torchtitan" else "steps=1"
        import_config([first, word], framework=framework, on=parse_slice("h100:8"))
    assert caught.value.hint


NOT_FLAT = {
    "line 2 is not `key: value`": "a: 1\n  b: 2",
    "line 1 is not `key: value`": "- a",
    "line 2 sets a again": "a: 1\na: 2",
    "line 1 has a value that is not read": "a: &anchor 1",
    "the list of line 2 has no end": "b: 1\na: [1,\n2",
    "has no end": 'a: "b',
}


@pytest.mark.parametrize("message", NOT_FLAT)
def test_yaml_that_is_not_flat_is_refused_by_its_line(message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read_flat_yaml(NOT_FLAT[message])


_values = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9))


@given(st.dictionaries(st.from_regex(r"\A[a-z_][a-z0-9_]*\Z"), _values))
def test_scalars_of_flat_yaml_come_back(values: dict[str, bool | int | float]) -> None:
    text = "\n".join(f"{key}: {value!r}  # why" for key, value in values.items())
    assert read_flat_yaml(text) == values


@settings(max_examples=300)
@given(st.text(alphabet="ab:=[]{}#'\" \n-1.e_&", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_flat_yaml(text)
    except RooflightError as error:
        assert error.hint
