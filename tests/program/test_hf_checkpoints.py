"""Checkpoints as they are found: other forms, packed weights, parts we leave out, and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("safetensors")

import jax.numpy as jnp
import safetensors.numpy

from rooflight.errors import UsageError
from rooflight.models.huggingface.read import model_from_hf
from rooflight.program.checkpoint.export import Made, write_checkpoint
from rooflight.program.checkpoint.files import INDEX, TensorEntry, open_checkpoint
from rooflight.program.checkpoint.match import Stores, match, published
from rooflight.program.checkpoint.names import PREFIXES
from rooflight.program.checkpoint.read import read_block
from rooflight.program.model.params import Specs, tensor_specs

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Config = dict[str, Any]  # JSON

SIZES: Config = {
    "hidden_size": 160,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
EXPERTS: Config = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL: Config = {"model_type": "mixtral", **SIZES, **EXPERTS}
GPT_OSS: Config = {"model_type": "gpt_oss", **SIZES, **EXPERTS}
LLAMA: Config = {"model_type": "llama", **SIZES}
TIED: Config = {**LLAMA, "tie_word_embeddings": True}
GEMMA: Config = {"model_type": "gemma3_text", **SIZES}
DEEPSEEK: Config = {
    "model_type": "deepseek_v3",
    **{k: v for k, v in SIZES.items() if k != "head_dim"},
    "q_lora_rank": 136,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 40,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def specs_of(config: Config) -> Specs:
    return tensor_specs(model_from_hf(config))


def random_arrays(config: Config) -> Arrays:
    """Tensors with the names and shapes that the family publishes."""
    rng = np.random.default_rng(0)
    stores = published(config["model_type"], specs_of(config))
    shapes = {p.name: s.form.shape(s.sizes) for s in stores.every() for p in s.places()}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def values_of(stores: Stores, entries: dict[str, TensorEntry]) -> Arrays:
    """All of our weights, whole, by the place of their block and their name."""
    named = {f"frame {n}": s for n, s in stores.frame.items()}
    for i, run in enumerate(stores.layers):
        named |= {f"{i}.{j} {n}": s for j, block in enumerate(run) for n, s in block.items()}
    return {
        name: read_block(s, tuple((0, n) for n in s.spec.shape), np.dtype(np.float32), entries)
        for name, s in named.items()
    }


def read(folder: Path, config: Config) -> tuple[Arrays, dict[str, str]]:
    entries = open_checkpoint(folder)
    stores, left_out = match(config["model_type"], specs_of(config), entries)
    return values_of(stores, entries), dict(left_out)


def saved(folder: Path, arrays: Arrays) -> Path:
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return folder


def assert_same(one: Arrays, other: Arrays) -> None:
    assert set(one) == set(other)
    assert [n for n in one if not np.array_equal(one[n], other[n])] == []


def stacked_experts(arrays: Arrays) -> Arrays:
    """Mixtral's experts in one tensor a layer, the rows of all gates before those of all ups."""
    out = {n: a for n, a in arrays.items() if "block_sparse_moe" not in n}
    for layer in range(SIZES["num_hidden_layers"]):
        old, new = f"model.layers.{layer}.block_sparse_moe.", f"model.layers.{layer}.mlp."
        w1, w2, w3 = (
            np.stack([arrays[f"{old}experts.{e}.w{i}.weight"] for e in range(4)]) for i in (1, 2, 3)
        )
        out[f"{new}experts.gate_up_proj"] = np.concatenate([w1, w3], 1)
        out[f"{new}experts.down_proj"] = w2
        out[f"{new}gate.weight"] = arrays[f"{old}gate.weight"]
    return out


def test_experts_in_one_tensor_are_those_that_have_one_each(tmp_path: Path) -> None:
    arrays = random_arrays(MIXTRAL)
    apart, _ = read(saved(tmp_path / "a", arrays), MIXTRAL)
    together, left_out = read(saved(tmp_path / "b", stacked_experts(arrays)), MIXTRAL)
    assert_same(apart, together)
    assert not left_out


def test_four_bit_experts_are_read_with_their_scales(tmp_path: Path) -> None:
    arrays, rng = random_arrays(GPT_OSS), np.random.default_rng(1)
    packed = {n: a for n, a in arrays.items() if not n.endswith("_proj")}
    for name in set(arrays) - set(packed):
        experts, inside, out = arrays[name].shape
        shape = (experts, out, inside // 32)
        packed[f"{name}_blocks"] = rng.integers(0, 256, (*shape, 16)).astype(np.uint8)
        packed[f"{name}_scales"] = rng.integers(120, 134, shape).astype(np.uint8)
        arrays[name] = unpacked(packed[f"{name}_blocks"], packed[f"{name}_scales"])
    plain, _ = read(saved(tmp_path / "a", arrays), GPT_OSS)
    found, left_out = read(saved(tmp_path / "b", packed), GPT_OSS)
    assert_same(plain, found)
    assert not left_out


def unpacked(blocks: Any, scales: Any) -> Any:
    """Element by element, as the format is written down, with the contracted dim first."""
    magnitudes = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    out = np.zeros((*scales.shape, 32), np.float32)
    for index in np.ndindex(*blocks.shape):
        for half in range(2):
            bits = (int(blocks[index]) >> 4 * half) & 15
            sign = -1 if bits & 8 else 1
            value = sign * magnitudes[bits & 7] * 2.0 ** (int(scales[index[:-1]]) - 127)
            out[(*index[:-1], 2 * index[-1] + half)] = value
    return out.reshape(*scales.shape[:-1], -1).transpose(0, 2, 1).copy()


def test_eight_bit_weights_are_read_with_the_scale_of_their_tile(tmp_path: Path) -> None:
    arrays, rng = random_arrays(DEEPSEEK), np.random.default_rng(1)
    packed: Arrays = {}
    for name, array in arrays.items():
        if not name.endswith("_proj.weight") and "mqa" not in name:
            packed[name] = array
            continue
        short = array.astype(jnp.float8_e4m3fn)
        tiles = [-(-n // 128) for n in array.shape]
        scales = rng.uniform(0.5, 2, tiles).astype(np.float32)
        wide = np.repeat(np.repeat(scales, 128, 0), 128, 1)[: array.shape[0], : array.shape[1]]
        packed |= {name: short, f"{name}_scale_inv": scales}
        arrays[name] = short.astype(np.float32) * wide
    assert max(a.shape[1] for n, a in packed.items() if n.endswith("_inv")) == 2
    plain, _ = read(saved(tmp_path / "a", arrays), DEEPSEEK)
    found, left_out = read(saved(tmp_path / "b", packed), DEEPSEEK)
    assert_same(plain, found)
    assert not left_out


@pytest.mark.parametrize("place", [(3, 40), (64, 128), (0, 160), (127, 131)])
@pytest.mark.parametrize("name", ["x_blocks", "x.weight"])
def test_a_part_of_a_packed_tensor_is_that_part(
    tmp_path: Path, name: str, place: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    arrays: Arrays = {
        "x_blocks": rng.integers(0, 256, (200, 5, 16)).astype(np.uint8),
        "x_scales": rng.integers(120, 134, (200, 5)).astype(np.uint8),
        "x.weight": rng.standard_normal((200, 160)).astype(jnp.float8_e4m3fn),
        "x.weight_scale_inv": rng.uniform(0.5, 2, (2, 2)).astype(np.float32),
    }
    entry = open_checkpoint(saved(tmp_path / "a", arrays))[name]
    whole = entry.read((slice(0, 200), slice(0, 160)))
    part = entry.read((slice(100, 170), slice(*place)))
    assert np.array_equal(part, whole[100:170, slice(*place)])


@pytest.mark.parametrize("prefix", PREFIXES[1:])
def test_a_text_model_inside_one_that_sees_is_read_and_the_rest_named(
    tmp_path: Path, prefix: tuple[str, str]
) -> None:
    arrays = random_arrays(GEMMA)
    inside = {n.replace("model.", prefix[0], 1): a for n, a in arrays.items()}
    inside["vision_tower.embeddings.weight"] = np.ones((2, 2), np.float32)
    plain, _ = read(saved(tmp_path / "a", arrays), GEMMA)
    found, left_out = read(saved(tmp_path / "b", inside), GEMMA)
    assert_same(plain, found)
    assert left_out == {"vision_tower.embeddings.weight": "the part that sees"}


def _with(name: str, shape: tuple[int, ...]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: np.ones(shape, np.float32)}


def _without(part: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {n: a for n, a in arrays.items() if part not in n}


@pytest.mark.parametrize(
    ("config", "name", "reason"),
    [
        (TIED, "lm_head.weight", "the same as the embedding"),
        (LLAMA, "model.layers.1.self_attn.rotary_emb.inv_freq", "computed from the config"),
    ],
)
def test_what_is_left_out_is_named_with_the_reason(
    tmp_path: Path, config: Config, name: str, reason: str
) -> None:
    arrays = _with(name, (4, 4))(random_arrays(config))
    _, left_out = read(saved(tmp_path / "a", arrays), config)
    assert left_out == {name: reason}


def test_a_layer_that_predicts_further_tokens_is_left_out_whole(tmp_path: Path) -> None:
    arrays = random_arrays(DEEPSEEK)
    extra = {n.replace("layers.1.", "layers.2."): a for n, a in arrays.items() if "layers.1." in n}
    joins = {"model.layers.2.eh_proj.weight": np.ones((160, 320), np.float32)}
    _, left_out = read(saved(tmp_path / "a", arrays | extra | joins), DEEPSEEK)
    assert set(left_out) == {*extra, *joins}
    assert set(left_out.values()) == {"an extra prediction layer"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_with("model.layers.2.mlp.up_proj.weight", (64, 160)), "model.layers.2"),
        (_with("model.layers.0.self_attn.q_proj.bias", (32,)), "q_proj.bias"),
        (_with("model.norm.weight", (161,)), "model.norm.weight"),
        (_without("layers.1.mlp"), "does not have 3 tensors"),
        (_without(""), "and 13 more"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_before_anything_is_read(
    tmp_path: Path, change: Callable[[Arrays], Arrays], problem: str
) -> None:
    folder = saved(tmp_path / "a", change(random_arrays(LLAMA)))
    with pytest.raises(UsageError, match=problem) as caught:
        match("llama", specs_of(LLAMA), open_checkpoint(folder))
    assert caught.value.hint


def test_a_family_without_names_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'qwen33'") as caught:
        published("qwen33", specs_of(LLAMA))
    assert "qwen3" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("model.safetensors", "not a header", "cannot read the weights"),
        (INDEX, "{", "must be an index"),
        (INDEX, '{"weight_map": []}', "must be an index"),
        (INDEX, '{"weight_map": {"x": "model-00001.safetensors"}}', "model-00001.safetensors"),
        ("README.md", "", "cannot read the weights"),
    ],
)
def test_a_broken_folder_is_refused_with_a_hint(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.hint


def test_scales_of_another_block_size_are_refused(tmp_path: Path) -> None:
    arrays: Arrays = {
        "x.weight": np.zeros((256, 256), jnp.float8_e4m3fn),
        "x.weight_scale_inv": np.ones((4, 4), np.float32),
    }
    with pytest.raises(UsageError, match="tiles of 128 by 128"):
        open_checkpoint(saved(tmp_path / "a", arrays))


def test_files_are_bounded_and_the_index_finds_every_tensor(tmp_path: Path) -> None:
    arrays: Arrays = {f"t{i:02}": np.full((i + 1, 100), i, np.float32) for i in range(20)}
    made = [Made(n, a.nbytes, lambda a=a: a) for n, a in arrays.items()]
    files = write_checkpoint(tmp_path, made, max_file_bytes=10_000)
    assert len(files) > 5
    assert all(f.stat().st_size < 11_000 for f in files)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
    entries = open_checkpoint(tmp_path)
    assert all(
        (entries[n].file.name, entries[n].shape) == (f, arrays[n].shape)
        for n, f in index["weight_map"].items()
    )
    found = {n: e.read((slice(0, e.shape[0]), slice(0, 100))) for n, e in entries.items()}
    assert_same(arrays, found)
