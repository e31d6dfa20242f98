"""Models as records: patterns of layers, presets and their names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import UnknownNameError, UsageError
from rooflight.specs import Attention, Block, Mlp, Moe, load_model, model_from_hf, model_names
from rooflight.specs.model import NORM_PLACES, ModelSpec, Norm, repeats

from .hf_configs import CONFIGS

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


@pytest.mark.parametrize("name", model_names())
def test_a_preset_names_its_source_and_the_day(name: str) -> None:
    model = load_model(name)
    assert model.title and model.source and model.source.title
    assert model.source.url.startswith("https://") and model.source.checked
    assert all(set(block.norms) <= set(NORM_PLACES) for block in model.blocks)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-3-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("llama_3.1_405b", "llama3.1-405b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("GPT-3", "gpt3-175b"),
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
