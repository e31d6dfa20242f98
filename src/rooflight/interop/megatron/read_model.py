"""The model that Megatron-LM's arguments describe: one of ours with these sizes, or a new one."""

import re
from collections.abc import Mapping
from dataclasses import replace

from rooflight.errors import ParseError, UsageError
from rooflight.interop.framework import Loss
from rooflight.models.presets import load_model, model_names
from rooflight.models.spec import (
    Activation,
    Attention,
    Block,
    Latent,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    Rope,
    repeats,
)

_PATTERN = re.compile(r"[\[\]()0-9,+*\s]{1,4000}")
_MOST = 10_000  # layers
_DEEPEST = 8

_REQUIRED = ("num-layers", "hidden-size", "num-attention-heads")
_VOCABULARIES = {"GPT2BPETokenizer": 50_257}
_PADDED = 128  # what a vocabulary is rounded up to
_UNKNOWN = 1  # a vocabulary that nobody said


def read_model(values: Mapping[str, object]) -> tuple[ModelSpec, list[Loss]]:
    """A decoder with one kind of attention; the tokenizer may leave the vocabulary open."""
    if any(values[key] == "" for key in _REQUIRED):
        missing = ", ".join(f"--{key}" for key in _REQUIRED if values[key] == "")
        raise UsageError(
            f"the sizes of the model are not there: {missing}",
            hint="name the model with --model, a preset or a config.json",
        )
    vocab = optional(values, "vocab-size") or _VOCABULARIES.get(str(values["tokenizer-type"]))
    spec = _by_sizes(values, vocab or _UNKNOWN)
    ours = _preset(spec, any_vocab=vocab is None)
    if vocab is not None:
        return _padded(values, replace(ours or spec, vocab=vocab))
    if ours is None:
        raise UsageError(
            "the size of the vocabulary is not there: it is in the files of the tokenizer",
            hint="add it as a word: vocab-size=128256",
        )
    because = f"not given; that of {ours.name}, whose other sizes these are"
    return ours, [Loss("vocab-size", because, is_material=False)]


def _padded(values: Mapping[str, object], model: ModelSpec) -> tuple[ModelSpec, list[Loss]]:
    """A vocabulary is padded there; here only where the tensor ranks could not split it."""
    ranks = count(values, "tensor-model-parallel-size")
    multiple = count(values, "make-vocab-size-divisible-by") * ranks
    padded = -(-model.vocab // multiple) * multiple
    if padded == model.vocab:
        return model, []
    what, so = f"vocab-size {model.vocab}", model.vocab % ranks == 0
    because = f"{padded} rows there, a multiple of {multiple}, {'but not' if so else 'and'} here"
    return model if so else replace(model, vocab=padded), [Loss(what, because, is_material=False)]


def _by_sizes(values: Mapping[str, object], vocab: int) -> ModelSpec:
    num_layers = count(values, "num-layers")
    attention, mlp, moe = _attention(values), _mlp(values), _moe(values)
    routed = layer_pattern(values["moe-layer-freq"], num_layers) if moe else (False,) * num_layers
    learned = values["position-embedding-type"] == "learned_absolute" and not _is_rotary(values)
    has_table = learned and values["no-position-embedding"] is not True
    longest = optional(values, "max-position-embeddings")
    is_rms = values["normalization"] == "RMSNorm"
    return ModelSpec(
        name="megatron",
        title="a decoder by its sizes",
        d_model=count(values, "hidden-size"),
        vocab=vocab,
        layers=repeats([Block(attention, moe if moe and r else mlp) for r in routed]),
        norm=Norm() if is_rms else Norm(kind="layer", has_bias=True),
        is_tied=values["untie-embeddings-and-output-weights"] is not True,
        num_positions=(longest or 0) if has_table else 0,
        max_seq=longest,
    )


def _is_rotary(values: Mapping[str, object]) -> bool:
    return values["use-rotary-position-embeddings"] is True or (
        values["position-embedding-type"] in ("rope", "yarn", "mrope")
    )


def _attention(values: Mapping[str, object]) -> Attention:
    heads = count(values, "num-attention-heads")
    has_bias = values["disable-bias-linear"] is not True
    rope = Rope(float(count(values, "rotary-base"))) if _is_rotary(values) else None
    if values["multi-latent-attention"] is True:
        latent = Latent(
            optional(values, "q-lora-rank"),
            count(values, "kv-lora-rank"),
            count(values, "qk-pos-emb-head-dim"),
            count(values, "v-head-dim"),
        )
        head_dim = count(values, "qk-head-dim")
        return Attention(heads, heads, head_dim, latent=latent, rope=rope)
    groups = count(values, "num-query-groups") if values["group-query-attention"] is True else heads
    return Attention(
        heads,
        groups,
        optional(values, "kv-channels") or max(1, count(values, "hidden-size") // heads),
        qkv_bias=has_bias or values["add-qkv-bias"] is True,
        out_bias=has_bias,
        qk_norm="head" if values["qk-layernorm"] is True else None,
        rope=rope,
    )


def _mlp(values: Mapping[str, object]) -> Mlp:
    hidden, is_gated = count(values, "hidden-size"), values["swiglu"] is True
    width = optional(values, "ffn-hidden-size")
    if width is None:
        width = max(1, int(8 * hidden / 3 / 64) * 64) if is_gated else 4 * hidden
    activation: Activation = "silu" if is_gated else "gelu"
    if values["squared-relu"] is True:
        activation = "relu"
    has_bias = values["disable-bias-linear"] is not True
    return Mlp(width, is_gated or values["quick-geglu"] is True, has_bias, activation)


def _moe(values: Mapping[str, object]) -> Moe | None:
    if values["num-experts"] in ("", 0, 1):
        return None
    mlp = _mlp(values)
    shared = optional(values, "moe-shared-expert-intermediate-size")
    return Moe(
        count(values, "num-experts"),
        count(values, "moe-router-topk"),
        replace(mlp, width=optional(values, "moe-ffn-hidden-size") or mlp.width),
        replace(mlp, width=shared) if shared else None,
        has_shared_gate=values["moe-shared-expert-gate"] is True,
    )


def _preset(spec: ModelSpec, *, any_vocab: bool) -> ModelSpec | None:
    """One of ours with the same sizes, the one as long as this if there are two."""
    every = [load_model(name) for name in model_names()]
    near = [m for m in every if (m.num_layers, m.d_model) == (spec.num_layers, spec.d_model)]
    same = [m for m in near if shape(m, any_vocab=any_vocab) == shape(spec, any_vocab=any_vocab)]
    return max(same, key=lambda m: m.max_seq == spec.max_seq, default=None)


def shape(model: ModelSpec, *, any_vocab: bool = False) -> tuple[object, ...]:
    """What decides the cost of a model: its sizes, and not its functions or positions."""
    blocks = tuple(
        (
            replace(b.attention, rope=None, scale=None, softcap=None, has_alibi=False),
            _plain(b.mlp),
            b.norms,
            b.is_parallel,
        )
        for b in model.layer_blocks
    )
    vocab = None if any_vocab else -(-model.vocab // _PADDED)  # some files have it padded
    ends = (model.is_tied, model.head_bias, model.num_positions, model.norm.kind)
    return model.d_model, vocab, ends, blocks


def _plain(mlp: Mlp | Moe) -> Mlp | Moe:
    if isinstance(mlp, Mlp):
        return replace(mlp, activation="silu", limit=None)
    shared = replace(mlp.shared, activation="silu", limit=None) if mlp.shared else None
    expert = replace(mlp.expert, activation="silu", limit=None)
    gate = mlp.has_shared_gate
    return Moe(mlp.num_experts, mlp.experts_per_token, expert, shared, has_shared_gate=gate)


def count(values: Mapping[str, object], key: str) -> int:
    """A flag that must be a whole number of 1 or more."""
    value = values[key]
    if isinstance(value, int) and value is not True and value >= 1:
        return value
    got = "nothing" if value is True or value == "" else repr(value)
    raise ParseError(
        f"--{key} must be a whole number of 1 or more, got {got}",
        hint=f"add it as a word, such as {key}=8, or set the variable that it reads",
    )


def optional(values: Mapping[str, object], key: str) -> int | None:
    return None if values[key] in ("", None) else count(values, key)


def layer_pattern(value: object, num_layers: int) -> tuple[bool, ...]:
    """Which layers `--moe-layer-freq` gives experts: every Nth, or a list.

    >>> layer_pattern("([0]*2+[1])*2", 6), layer_pattern(2, 4)
    ((False, False, True, False, False, True), (True, False, True, False))
    """
    if isinstance(value, int) and value is not True and value >= 1:
        return tuple(i % value == 0 for i in range(num_layers))
    text = re.sub(r"\s", "", str(value))
    found, rest = _sum(text, 0) if _PATTERN.fullmatch(text) else ([], "?")
    if rest or len(found) != num_layers:
        got = f"{len(found)} of them" if not rest else repr(str(value)[:80])
        raise ParseError(
            f"--moe-layer-freq must be a number or a list of {num_layers} 0 and 1, got {got}",
            hint=f"write ([0]*1+[1]*{num_layers - 1})",
        )
    return tuple(n != 0 for n in found)


_Rest = tuple[list[int], str]


def _sum(text: str, depth: int) -> _Rest:
    found, rest = _times(text, depth)
    while rest[:1] == "+":
        more, rest = _times(rest[1:], depth)
        found = _bounded(found, 1, more)
    return found, rest


def _times(text: str, depth: int) -> _Rest:
    found, rest = _list(text, depth)
    while match := re.match(r"\*(\d{1,5})", rest):
        found, rest = _bounded(found, int(match[1]), []), rest[match.end() :]
    return found, rest


def _bounded(found: list[int], times: int, more: list[int]) -> list[int]:
    if len(found) * times + len(more) > _MOST:
        raise ParseError(f"--moe-layer-freq is a list of more than {_MOST}", hint="shorten it")
    return found * times + more


def _list(text: str, depth: int) -> _Rest:
    match = re.match(r"\[([01](?:,[01])*)\]", text)
    if match:
        return [int(n) for n in match[1].split(",")], text[match.end() :]
    if text[:1] == "(" and depth < _DEEPEST:
        found, rest = _sum(text[1:], depth + 1)
        if rest[:1] == ")":
            return found, rest[1:]
    return [], "?"
