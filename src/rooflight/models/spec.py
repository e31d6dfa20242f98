"""`ModelSpec`: a decoder by its sizes, layer by layer; what one needs to count and to program it.

In: a preset (`presets.py`) or a Hugging Face config (`huggingface.py`). Out: frozen records. The
sizes have the book's letters beside them (chapter 4); what nobody stated is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rooflight.errors import UsageError
from rooflight.hardware.chip import Source

# block_in: one norm for both halves of a parallel block.
NormPlace = Literal["attention_in", "attention_out", "mlp_in", "mlp_out", "block_in"]
# clipped_swiglu: (up + 1) * gate * sigmoid(1.702 gate), both clipped first (gpt-oss).
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "clipped_swiglu"]
_LATER = {"may_be_absent": True}  # from a plan file, where it is the default
_LONGEST_PATTERN = 16  # layers; Gemma 3 repeats every 6


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation over the model dim: RMS or layer norm, with or without its vectors."""

    kind: Literal["rms", "layer"] = "rms"
    has_scale: bool = True
    has_bias: bool = False
    eps: float = 1e-5
    adds_one: bool = False  # the stored scale is the factor less one


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched to sequences longer than those first trained on."""

    kind: Literal["linear", "llama3", "yarn", "longrope", "unknown"]  # unknown is only planned
    factor: float
    original_seq: int = 8192
    low: float = 1.0  # llama3: full stretch below this many turns in the original length
    high: float = 4.0  # llama3: none above
    beta_fast: float = 32.0  # yarn: none above this many turns
    beta_slow: float = 1.0  # yarn: full stretch below
    attention_factor: float = 1.0  # yarn, longrope: on both the rotated queries and keys
    truncates: bool = True  # yarn: the ramp begins and ends at whole frequencies
    # longrope: the stretch of each pair, within the original length; others hold beyond it
    factors: tuple[float, ...] = field(default=(), metadata=_LATER)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: pairs of a head's elements rotated by position / theta^(2i/dim)."""

    theta: float = 10_000.0
    dim: int | None = None  # the part of a head that turns, its first elements; None is all
    is_interleaved: bool = False  # pairs are neighbours; else one of each half
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values come from one small vector per token."""

    query_rank: int | None  # Q; None where queries come straight from the model dim
    kv_rank: int  # R
    rope_dim: int  # P, the rotary part of a head; its key is shared by all heads
    value_dim: int  # Hv


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one layer. With `latent`, `head_dim` is the part without positions."""

    num_heads: int  # N
    num_kv_heads: int  # K; 1 is MQA, N is MHA
    head_dim: int  # H
    window: int | None = None  # a query sees this many positions, itself included; None sees all
    latent: Latent | None = None
    shares_kv: bool = False  # reads the keys and values of an earlier layer
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "all"] | None = None  # over each head, or over all heads together
    has_sinks: bool = False  # one learned logit a head that takes attention away
    rope: Rope | None = Rope()
    scale: float | None = None  # of the scores; None is 1/sqrt(head size)
    softcap: float | None = None  # scores are c tanh(scores / c)
    has_alibi: bool = False  # scores fall with distance, each head at its own rate

    def __post_init__(self) -> None:
        sizes = (self.num_heads, self.num_kv_heads, self.head_dim)
        if min(sizes) < 1 or self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"{self.num_heads} query heads do not share {self.num_kv_heads} kv heads",
                hint="make the number of query heads a multiple of the number of kv heads",
            )
        if self.window is not None and self.window < 1:
            raise UsageError(
                f"an attention window of {self.window} sees nothing",
                hint="leave the window out where a layer sees all positions",
            )
        factors = self.rope.scaling.factors if self.rope and self.rope.scaling else ()
        whole = self.latent.rope_dim if self.latent else self.head_dim
        turned = (self.rope.dim if self.rope else None) or whole
        if factors and 2 * len(factors) != turned:
            raise UsageError(
                f"{len(factors)} factors of longrope for the {turned // 2} pairs of a head",
                hint="give one factor for each pair of elements that turns",
            )


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward layer: two matrices, three if gated."""

    width: int  # F
    is_gated: bool = True
    has_bias: bool = False
    activation: Activation = "silu"
    limit: float | None = None  # clipped_swiglu: gate and up are clipped to it


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts, each token to a few of them, and experts that every token visits."""

    num_experts: int  # E
    experts_per_token: int  # k
    expert: Mlp
    shared: Mlp | None = None  # all shared experts as one wide one
    has_shared_gate: bool = False
    has_router_bias: bool = False
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalizes: bool = True  # the weights of the chosen experts sum to one
    scale: float = 1.0  # times this
    num_groups: int = 1  # experts in groups, of which a token may use only the best few
    groups_per_token: int = 1
    group_score: Literal["max", "top2"] = "max"
    has_choice_bias: bool = False  # added to scores where experts are chosen, not where weighed

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise UsageError(
                f"a token cannot visit {self.experts_per_token} of {self.num_experts} experts",
                hint="give between 1 and the number of experts",
            )


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: attention, then (or, if parallel, beside it) a feed-forward layer."""

    attention: Attention
    mlp: Mlp | Moe
    norms: tuple[NormPlace, ...] = ("attention_in", "mlp_in")
    is_parallel: bool = False


@dataclass(frozen=True, slots=True)
class Repeat:
    """A pattern of blocks, repeated: one block 80 times, or five local and one global 10 times."""

    blocks: tuple[Block, ...]
    times: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    >>> mlp, attention = Mlp(16384), Attention(32, 8, 256)
    >>> spec = ModelSpec("toy", "Toy", 4096, 32128, (Repeat((Block(attention, mlp),), 64),))
    >>> spec.num_layers, spec.block_counts
    (64, (64,))
    """

    name: str
    title: str
    d_model: int  # D
    vocab: int  # V
    layers: tuple[Repeat, ...]
    norm: Norm = Norm()
    has_final_norm: bool = True
    is_tied: bool = False  # the output head is the embedding table again
    head_bias: bool = False
    num_positions: int = 0  # rows of a table of learned positions
    embedding_scale: float | None = None  # times the looked-up vectors
    softcap: float | None = None  # logits are c tanh(logits / c)
    max_seq: int | None = None
    dtype: str | None = None
    source: Source | None = None
    not_understood: tuple[str, ...] = ()  # what the file says and this record does not hold
    residual_scale: float | None = field(default=None, metadata=_LATER)  # of what a half adds
    logit_scale: float | None = field(default=None, metadata=_LATER)
    weights: str = field(default="bf16", metadata=_LATER)  # as published: fp8, mxfp4@experts

    def __post_init__(self) -> None:
        # They are written into comments, pages and logs of many formats, each a line.
        for name in (self.name, self.title):
            if not name.isprintable():
                raise UsageError(
                    f"{name!r} cannot be the name of a model: it has characters that are not shown",
                    hint="give it a name of one line",
                )

    @property
    def unnamed(self) -> "ModelSpec":
        """What its program is made of, without what it is called and how it may be used."""
        own = replace(self, name="", title="", source=None, not_understood=(), weights="")
        return replace(own, max_seq=None, dtype=None)

    @property
    def layer_blocks(self) -> tuple[Block, ...]:
        """The block of every layer, from the first to the last."""
        return tuple(b for run in self.layers for b in run.blocks * run.times)

    @property
    def num_layers(self) -> int:
        """L."""
        return sum(len(run.blocks) * run.times for run in self.layers)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The different blocks, in order of appearance."""
        return tuple(dict.fromkeys(b for run in self.layers for b in run.blocks))

    @property
    def block_counts(self) -> tuple[int, ...]:
        """How many layers have each of `blocks`."""
        every = self.layer_blocks
        return tuple(every.count(block) for block in self.blocks)


def repeats(blocks: Sequence[Block]) -> tuple[Repeat, ...]:
    """Writes a list of layers as few repeated patterns.

    >>> a = Block(Attention(8, 8, 64, window=128), Mlp(512))
    >>> b = Block(Attention(8, 8, 64), Mlp(512))
    >>> [(len(r.blocks), r.times) for r in repeats([a, a, b] * 4 + [a])]
    [(3, 4), (1, 1)]
    """
    found: list[Repeat] = []
    rest = tuple(blocks)
    while rest:
        periods = range(1, min(len(rest), _LONGEST_PATTERN) + 1)
        covered = {p: p * _times(rest, p) for p in periods if p == 1 or _times(rest, p) > 1}
        period = max(covered, key=lambda p: (covered[p], -p))
        found.append(Repeat(rest[:period], covered[period] // period))
        rest = rest[covered[period] :]
    return tuple(found)


def _times(blocks: tuple[Block, ...], period: int) -> int:
    """How often the first `period` blocks follow each other from the start."""
    times = 1
    while blocks[period * times : period * (times + 1)] == blocks[:period]:
        times += 1
    return times
