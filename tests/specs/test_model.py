"""Models as records: patterns of layers, presets and their names."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import UnknownNameError, UsageError
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.count import count_params
from rooflight.models.huggingface.read import model_from_hf
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Norm, NormPlace, repeats

from .hf_configs import CONFIGS

# Billions of parameters as publishers round them; of text models without the part that sees.
PUBLISHED = {
    "llama2-7b": 6.74,
    "llama2-13b": 13.0,
    "llama2-70b": 69.0,
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3.1-8b": 8.03,
    "llama3.1-70b": 70.6,
    "llama3.1-405b": 405.9,
    "llama3.2-1b": 1.24,
    "llama3.2-3b": 3.21,
    "llama4-scout": 107.8,
    "llama4-maverick": 400.7,
    "mistral-7b": 7.24,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 141.0,
    "qwen-7b": 7.72,
    "qwen2-7b": 7.62,
    "qwen2-72b": 72.7,
    "qwen2.5-32b": 32.8,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.8,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.0,
    "qwen3-coder-480b-a35b": 480.0,
    "gemma-2b": 2.51,
    "gemma-7b": 8.54,
    "gemma2-9b": 9.24,
    "gemma2-27b": 27.2,
    "gemma3-4b": 3.88,
    "gemma3-12b": 11.8,
    "gemma3-27b": 27.0,
    "deepseek-v2": 236.0,
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671.0,
    "kimi-k2": 1026.0,
    "moonlight-16b-a3b": 16.0,
    "glm-4.5": 355.0,
    "glm-4.5-air": 106.0,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "olmo2-7b": 7.30,
    "olmo2-13b": 13.7,
    "olmo2-32b": 32.2,
    "phi3-mini": 3.82,
    "phi4": 14.7,
    "mpt-7b": 6.65,
    "mpt-30b": 30.0,
    "gpt3-175b": 175.0,
    "palm-540b": 540.4,
    "mt-nlg-530b": 530.0,
}
# Configurations that were measured and not published; the names of some are far from their sizes.
_NOT_PUBLISHED = {f"mpt-{size}" for size in ("125m", "350m", "760m", "1b", "3b", "13b", "70b")}

_BLOCKS = [Block(Attention(8, 2, 64, window=w), Mlp(256)) for w in (None, 128, 512)]


@given(st.lists(st.sampled_from(_BLOCKS), max_size=40))
def test_patterns_spell_out_the_layers_they_were_made_of(blocks: list[Block]) -> None:
    spelt = [b for run in repeats(blocks) for b in run.blocks * run.times]
    assert spelt == blocks


@given(st.lists(st.sampled_from(_BLOCKS), min_size=1, max_size=8, unique=True), st.integers(2, 20))
def test_a_repeated_pattern_is_found(pattern: list[Block], times: int) -> None:
    assert [(r.blocks, r.times) for r in repeats(pattern * times)] == [(tuple(pattern), times)]


def sizes_only(model: ModelSpec) -> ModelSpec:
    """Presets hold sizes; bases of rotary positions and the like come with a config."""

    def block(b: Block) -> Block:
        plain = replace(b.attention, rope=None, scale=None, softcap=None, has_alibi=False)
        return replace(b, attention=plain, mlp=mlp(b.mlp))

    def plain_mlp(m: Mlp) -> Mlp:
        return Mlp(m.width, m.is_gated, m.has_bias)

    def mlp(m: Mlp | Moe) -> Mlp | Moe:
        if isinstance(m, Mlp):
            return plain_mlp(m)
        sizes = m.num_experts, m.experts_per_token, plain_mlp(m.expert)
        shared = plain_mlp(m.shared) if m.shared else None
        return Moe(*sizes, shared, m.has_shared_gate, m.has_router_bias)

    layers = tuple(replace(r, blocks=tuple(map(block, r.blocks))) for r in model.layers)
    norm = Norm(model.norm.kind, model.norm.has_scale, model.norm.has_bias)
    return replace(model, layers=layers, norm=norm)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_has_the_layers_of_the_config_in_its_family(name: str) -> None:
    preset, config = (sizes_only(m) for m in (load_model(name), model_from_hf(CONFIGS[name])))
    for field in ("d_model", "vocab", "layers", "norm", "is_tied", "num_positions"):
        assert getattr(preset, field) == getattr(config, field), field
    assert preset.max_seq in (config.max_seq, None)


def test_every_preset_but_palm_is_held_against_a_config() -> None:
    assert set(model_names()) - set(CONFIGS) == {"palm-540b"}


def test_every_published_preset_has_its_published_size() -> None:
    assert set(model_names()) - set(PUBLISHED) == _NOT_PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_as_many_parameters_as_were_published_within_1_percent(name: str) -> None:
    found = count_params(model_graph(load_model(name))) / 1e9
    assert found == pytest.approx(PUBLISHED[name], rel=0.01)


def test_presets_are_listed_by_family_and_size() -> None:
    mpt = [n for n in model_names() if n.startswith("mpt-")]
    sizes = ("125m", "350m", "760m", "1b", "3b", "7b", "13b", "30b", "70b")
    assert mpt == [f"mpt-{size}" for size in sizes]


def test_another_name_of_a_family_reads_the_same() -> None:
    config = CONFIGS["kimi-k2"]
    assert model_from_hf(config | {"model_type": "kimi_k2"}) == model_from_hf(config)


def test_a_text_model_inside_one_that_sees_is_found() -> None:
    inner = CONFIGS["llama4-scout"]
    outer = {"model_type": "llama4", "text_config": inner, "vision_config": {}}
    found = model_from_hf(outer)
    assert found.layers == model_from_hf(inner).layers
    assert any("vision" in note for note in found.not_understood)
    assert any("attention_chunk_size" in note for note in found.not_understood)


@pytest.mark.parametrize("name", model_names())
def test_a_preset_names_its_source_and_the_day(name: str) -> None:
    model = load_model(name)
    assert model.title and model.source and model.source.title
    assert model.source.url.startswith("https://") and model.source.checked
    assert all(set(block.norms) <= set(get_args(NormPlace)) for block in model.blocks)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-3-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("llama_3.1_405b", "llama3.1-405b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("GPT-3", "gpt3-175b"),
        ("llama3-405b", "llama3.1-405b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("moonshotai/Moonlight-16B-A3B", "moonlight-16b-a3b"),
    ],
)
def test_a_model_is_found_in_any_spelling(text: str, name: str) -> None:
    assert load_model(text) == load_model(name)


@pytest.mark.parametrize("name", model_names())
def test_no_spelling_of_one_model_finds_another(name: str) -> None:
    assert load_model(name).name == name


def test_an_unknown_model_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("lama3-70b")
    assert "`llama3-70b`" in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        load_model("zzzzzz")
    assert "`rooflight model`" in caught.value.hint


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 3), (8, 16), (8, 0), (0, 1)])
def test_query_heads_share_kv_heads_evenly(heads: int, kv_heads: int) -> None:
    with pytest.raises(UsageError):
        Attention(heads, kv_heads, 64)


@pytest.mark.parametrize("visited", [0, 9])
def test_a_token_visits_some_of_the_experts(visited: int) -> None:
    with pytest.raises(UsageError):
        Moe(8, visited, Mlp(64))


def test_a_window_sees_something() -> None:
    with pytest.raises(UsageError):
        Attention(8, 8, 64, window=0)


@pytest.mark.parametrize("name", ["a\n- evil: true", "a\r", "\x1b[2J", "a\u2028b", "a\0"])
def test_a_name_cannot_break_out_of_the_line_that_it_is_written_in(name: str) -> None:
    """Comments of exports, pages, logs."""
    with pytest.raises(UsageError, match="cannot be the name of a model"):
        replace(load_model("llama3-8b"), name=name)


@pytest.mark.parametrize("name", ["0" * 5000, "a\0b", "./no/such/folder"])
def test_what_no_path_can_be_is_an_unknown_model(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_model(name)
