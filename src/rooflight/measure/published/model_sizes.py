"""A model of a rows file as a `ModelSpec`.

In: the sizes that a file or a row states. Out: a spec, and what had to be assumed. Sizes that no
file states come from `models.toml`, else from the preset of that name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rooflight.errors import UsageError
from rooflight.measure.published.rows import Fields, PublishedRun, read_facts
from rooflight.models.presets import find_preset
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Repeat, repeats
from rooflight.plan.file.codec import decode

_SIZES = ("layers", "d_model")
_NO_WIDTH = 8  # stands for no feed-forward layer; divides over tensor ways
_VOCAB = 32_000  # where nobody says; a small part of a large model's work


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A model, and what its sizes assume."""

    spec: ModelSpec
    assumed: tuple[str, ...]

    @property
    def is_moe(self) -> bool:
        return any(isinstance(block.mlp, Moe) for block in self.spec.blocks)


def sized_model(row: PublishedRun, models: Mapping[str, Fields]) -> SizedModel:
    """The model that a row ran: its own sizes, else the file's, else ours, else a preset's.

    A run of one's own has its model whole. Raises `UsageError` where nobody states the sizes.
    """
    if "spec" in models.get(row.model, {}):
        return SizedModel(decode(ModelSpec, models[row.model]["spec"]), ())
    sizes: dict[str, object] = {**models.get(row.model, {}), **row.table("dims")}
    known = read_facts("models").get(row.model, {})
    assumed = [f"sizes of {row.model} from {known['source']}"] if "d_model" in known else []
    sizes |= known
    cut = row.fields.get("layers_run")
    if any(name not in sizes for name in _SIZES):
        return _preset(row, None if cut is None else int(cut))
    if "vocab" not in sizes:
        sizes["vocab"] = _VOCAB
        assumed.append(f"a vocabulary of {_VOCAB}")
    if cut is not None:
        sizes |= _cut(sizes, int(cut))
        assumed.append("one dense layer, 16 kv heads of 405B, as its launch scripts say")
    return SizedModel(_spec(row.model, _Sizes(sizes)), tuple(assumed))


def _preset(row: PublishedRun, cut: int | None) -> SizedModel:
    spec = find_preset(row.model)
    if spec is None:
        raise UsageError(f"nobody states the sizes of {row.model}", hint="add them to models:")
    assumed = [f"sizes of {row.model} from the preset {spec.name}"]
    if cut is not None:
        spec = replace(spec, layers=repeats(spec.layer_blocks[:cut]))
        assumed.append(f"its first {cut} layers")
    return SizedModel(replace(spec, name=row.model), (*assumed, *spec.not_understood))


def _cut(sizes: Fields, layers: int) -> dict[str, object]:
    """A model cut to its first layers, as SimuMax runs them."""
    found: dict[str, object] = {"layers": layers}
    if "experts" in sizes:
        found["dense_layers"] = 1
    elif sizes.get("kv_heads") == 8 and sizes.get("heads") == 128:
        found["kv_heads"] = 16
    return found


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes by name, with the defaults that follow from others."""

    fields: Fields

    def number(self, name: str, default: int = 0) -> int:
        return int(self.fields.get(name) or default)

    @property
    def head_dim(self) -> int:
        heads = self.number("heads")
        return self.number("head_dim", self.number("d_model") // heads if heads else 128)

    @property
    def heads(self) -> int:
        return self.number("heads", self.number("d_model") // self.head_dim)

    @property
    def is_gated(self) -> bool:
        """Two matrices where the width is four times the model's, unless the file says."""
        stated = self.fields.get("gated_mlp")
        is_plain = self.number("d_ff") == 4 * self.number("d_model")
        return not is_plain if stated is None else bool(stated)


def _spec(name: str, sizes: _Sizes) -> ModelSpec:
    layers = sizes.number("layers")
    blocks = [_block(sizes, index) for index in range(layers)]
    extra = sizes.number("attention_layers")
    if extra:
        heads = sizes.number("attention_heads")
        plain = Attention(
            heads, sizes.number("attention_kv_heads"), sizes.number("attention_head_dim")
        )
        every = layers // extra
        blocks = [
            b
            for index, block in enumerate(blocks)
            for b in (
                (block, Block(plain, Mlp(_NO_WIDTH, is_gated=False)))
                if index % every == every - 1 and index // every < extra
                else (block,)
            )
        ]
    found: tuple[Repeat, ...] = repeats(blocks)
    is_tied = bool(sizes.fields.get("tied", False))
    vocab = sizes.number("vocab")
    return ModelSpec(name, name, sizes.number("d_model"), vocab, found, is_tied=is_tied)


def _block(sizes: _Sizes, index: int) -> Block:
    every = sizes.number("global_every")
    window = sizes.number("window") or None
    if every and index % every == every - 1:
        window = None
    attention = _attention(sizes, window)
    has_experts = index >= sizes.number("dense_layers") and (
        index % sizes.number("moe_every", 1) == sizes.number("moe_every", 1) - 1
    )
    if sizes.number("experts") and has_experts:
        return Block(attention, _experts(sizes))
    return Block(attention, Mlp(sizes.number("d_ff"), is_gated=sizes.is_gated))


def _attention(sizes: _Sizes, window: int | None) -> Attention:
    heads = sizes.heads
    if sizes.number("kv_lora"):
        latent = Latent(
            sizes.number("q_lora") or None,
            sizes.number("kv_lora"),
            sizes.number("qk_rope"),
            sizes.number("v_head"),
        )
        return Attention(heads, heads, sizes.number("qk_nope"), latent=latent)
    return Attention(heads, sizes.number("kv_heads", heads), sizes.head_dim, window=window)


def _experts(sizes: _Sizes) -> Moe:
    """A capacity above 1 computes that many more rows, whether or not tokens fill them."""
    gated = sizes.is_gated
    width = sizes.number("moe_d_ff", sizes.number("d_ff"))
    shared = sizes.number("shared_d_ff", width * sizes.number("shared_experts"))
    chosen = float(sizes.fields.get("capacity_factor") or 1.0) * sizes.number("topk")
    return Moe(
        sizes.number("experts"),
        round(chosen),
        Mlp(width, is_gated=gated),
        Mlp(shared, is_gated=gated) if shared else None,
    )
