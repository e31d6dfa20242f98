"""`ServingLayout`: how a served model is split, in ways: `tp=8,dp=4,ep=32,kv=batch`.

In: numbers of ways. Out: mesh axes and the rules of a `graph.Layout`. The axes, outermost first:

    P   pipeline stages                R   positions of a prompt (context parallel)
    W   the model dim of weights       X   sequences (data-parallel attention)
    Z   tensor parallel past the kv heads: query heads, and the cache as `kv` says
    Y   tensor parallel over kv heads

Experts are split `ep` ways over the axes of tokens first, and their width over what is left.

`Precision`: what weights, caches and activations are stored in, and what is computed in. The three
are independent: int8 weights may be multiplied in bf16, and a bf16 model may keep an fp8 cache.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from rooflight.algebra.notation import Axes
from rooflight.dtypes import DTYPES, Dtype, parse_dtype
from rooflight.errors import ParseError, ShardingError, UnknownNameError, UsageError
from rooflight.models.layout.rules import Layout, Rule
from rooflight.models.spec import ModelSpec, Moe

KvSplit = Literal["heads", "batch", "sequence"]
KV_SPLITS: tuple[KvSplit, ...] = ("heads", "batch", "sequence")
Phase = Literal["prefill", "generate"]
_HINT = "write tp=8 or tp=8,dp=4,ep=32 or tp=16,kv=batch"


@dataclass(frozen=True, slots=True)
class ServingLayout:
    """Ways of each scheme; attention runs on pp * ws * cp * dp * tp chips, and so do experts.

    >>> str(parse_serving_layout("tp=16,kv=batch")), ServingLayout(tp=8, dp=4, ep=32).num_chips
    ('tp=16,kv=batch', 32)
    """

    tp: int = 1  # tensor: kv heads, then query heads; widths
    pp: int = 1  # pipeline stages
    dp: int = 1  # sequences in attention; dense layers are replicated
    ep: int = 1  # experts; their width takes the other chips of dp and tp
    ws: int = 1  # the model dim of weights: 2D weight-stationary
    cp: int = 1  # positions of a prompt, in prefill only
    kv: KvSplit = "heads"  # what the cache is split by where tp is more than the kv heads

    def __post_init__(self) -> None:
        ways = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "kv"}
        bad = next((name for name, n in ways.items() if n < 1), None)
        if bad:
            raise ShardingError(f"{bad}={ways[bad]} splits nothing", hint=f"write {bad}=1 or more")
        if (self.cp * self.dp * self.tp) % self.ep:
            raise ShardingError(
                f"{self.cp * self.dp * self.tp} chips of attention cannot hold ep={self.ep} parts",
                hint=f"make ep a divisor of dp * tp, such as ep={self.dp * self.tp}",
            )

    def __str__(self) -> str:
        parts = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)]
        default = [f"{f.name}={f.default}" for f in fields(self)]
        changed = [p for p, d in zip(parts, default, strict=True) if p != d]
        return ",".join(changed) or "tp=1"

    @property
    def num_chips(self) -> int:
        return self.pp * self.ws * self.cp * self.dp * self.tp


def parse_serving_layout(text: str) -> ServingLayout:
    """Reads `NAME=WAYS,...`."""
    names = [f.name for f in fields(ServingLayout)]
    ways: dict[str, int] = {}
    kv: KvSplit = "heads"
    for part in text.split(","):
        name, equals, value = (p.strip() for p in part.partition("="))
        if name not in names:
            raise UnknownNameError("serving scheme", name, names)
        if name == "kv":
            if value not in KV_SPLITS:
                raise UnknownNameError("split of the cache", value, KV_SPLITS)
            kv = next(k for k in KV_SPLITS if k == value)
        elif not equals or not value.isdecimal() or len(value) > 6:
            raise ParseError(f"{part!r} is not SCHEME=WAYS", hint=_HINT)
        else:
            ways[name] = int(value)
    return ServingLayout(**ways, kv=kv)


def mesh_axes(layout: ServingLayout, model: ModelSpec) -> dict[str, int]:
    """Every mesh axis with its size, outermost first; those of one way are left out."""
    return {name: size for name, size, _ in _cut(layout, model) if size > 1}


def rules(layout: ServingLayout, model: ModelSpec, phase: Phase) -> Layout:
    """The layout as rules over mesh axes.

    A prefill leaves the cache split by heads: one prompt has no batch to split.
    """
    cut = [(name, in_experts) for name, size, in_experts in _cut(layout, model) if size > 1]
    axes = {letter: tuple(name for name, _ in cut if name[0] == letter) for letter in "PWRXZY"}
    tokens, tensor = axes["R"] + axes["X"], axes["Y"] + axes["Z"]
    experts = [name for name, in_experts in cut if in_experts]
    others = tuple(name for name, in_experts in cut if not in_experts and name[0] in "RXZY")
    # Where tokens and experts share an axis they exchange; such axes go innermost to be moved.
    held = tuple(sorted(experts, key=lambda a: a in tokens))
    routed = {"E": held, "C": tuple(a for a in tokens if a not in held and a not in others)}
    inner = dict.fromkeys(("F", "Fs", "V", "N"), tensor) | {"K": axes["Y"], "G": axes["Z"]}
    inner |= {"Fe": others, "E": held}
    weight = inner | {"D": axes["W"]}
    where = {"B": axes["X"], "T": axes["R"]} | routed
    kept = _kept(axes, layout.kv if phase == "generate" else "heads")
    return Layout(
        text=str(layout),
        weight=weight,
        stream=where | {"D": axes["W"]},
        inner=inner | where,
        scores={**kept, "T": axes["R"]},
        stages=axes["P"],
        cache=kept if phase == "generate" else None,
        combines=True,
    )


def _kept(axes: dict[str, Axes], kv: KvSplit) -> Rule:
    """The scores, and the cache they are made from."""
    tensor = axes["Y"] + axes["Z"]
    if kv == "heads":
        return {"B": axes["X"], "K": axes["Y"], "G": axes["Z"], "N": tensor}
    whole: Rule = {"B": axes["X"], "K": axes["Y"], "N": axes["Y"]}
    if kv == "batch":
        return {**whole, "B": axes["X"] + axes["Z"]}
    return {**whole, "S": axes["Z"]}


def _cut(layout: ServingLayout, model: ModelSpec) -> Iterator[tuple[str, int, bool]]:
    """Axes with their sizes and whether experts are split over them."""
    heads = _head_ways(layout, model)
    yield "P", layout.pp, False
    yield "W", layout.ws, False
    left = layout.ep
    sizes = {"R": layout.cp, "X": layout.dp, "Z": layout.tp // heads, "Y": heads}
    for name, size in sizes.items():
        taken = math.gcd(size, left)
        if taken != left and taken != size:
            raise ShardingError(
                f"ep={layout.ep} cuts {name}={size} of {layout} in uneven parts",
                hint="make ep a multiple or a divisor of dp",
            )
        left //= taken
        if 1 < taken < size:
            yield name, taken, True
            yield f"{name}2", size // taken, False
        else:
            yield name, size, taken > 1


def _head_ways(layout: ServingLayout, model: ModelSpec) -> int:
    """The part of tensor parallelism that splits kv heads; latents have none to split."""
    if any(b.attention.latent for b in model.blocks):
        return layout.tp if layout.kv == "heads" else 1
    return math.gcd(layout.tp, *(b.attention.num_kv_heads for b in model.blocks))


def check_one_engine(split: ServingLayout) -> None:
    """Raises for a layout of several engines."""
    if split.pp * split.dp * split.cp > 1:
        raise UsageError(
            f"an engine under {split} would split layers, sequences or positions of a prompt",
            hint=f"use tp, ws and ep, such as tp={split.num_chips}; run each part of dp as a"
            " server of its own, behind `rooflight route`",
        )


_OF_EXPERTS = "@experts"
_NOT_EXPERTS = ("embedding", "attention", "mlp", "shared", "router", "head")


@dataclass(frozen=True, slots=True)
class Precision:
    """Element formats of a served model.

    >>> parse_precision("int8/bf16/bf16").weights.name, parse_precision("int8").compute
    ('int8', 'int8')
    >>> parse_precision("mxfp4@experts/bf16").of_part("attention").name
    'bf16'
    """

    weights: Dtype = DTYPES["bf16"]
    kv: Dtype = DTYPES["bf16"]
    compute: str = "bf16"  # of matmuls with weights; attention is computed as activations are kept
    activations: Dtype = DTYPES["bf16"]
    whole: tuple[str, ...] = ()  # parts whose weights stay as activations are: ("head",)

    def __str__(self) -> str:
        part = _OF_EXPERTS if self.whole == _NOT_EXPERTS else ""
        return f"{self.weights.name}{part}/{self.kv.name}/{self.compute}"

    def of_part(self, part: str) -> Dtype:
        """What the weights of a part of the model are stored in."""
        return self.activations if part in self.whole else self.weights

    def compute_of(self, part: str) -> str:
        """The dtype that matmuls with the weights of a part run in."""
        return self.activations.name if part in self.whole else self.compute


def precision_of(model: ModelSpec, dtypes: str | None) -> Precision:
    """As asked; or as engines serve the published weights, with a cache in bf16.

    >>> from rooflight.models.presets import load_model
    >>> [str(precision_of(load_model(name), None)) for name in ("deepseek-v3", "llama3-8b")]
    ['fp8/bf16/fp8', 'bf16/bf16/bf16']
    """
    published = f"{model.weights}/bf16/{model.weights.removesuffix(_OF_EXPERTS)}"
    found = parse_precision(published if dtypes is None else dtypes)
    if found.whole and not any(isinstance(block.mlp, Moe) for block in model.blocks):
        raise UsageError(f"{model.name} has no experts", hint=f"write {found.weights.name} alone")
    return found


def parse_precision(text: str) -> Precision:
    """Reads WEIGHTS[@experts][/KV[/COMPUTE]]; what is left out is as the weights, but caches.

    Engines keep the cache of 4-bit floats in fp8; int4 is of weights alone, and leaves it in bf16.

    >>> [str(parse_precision(text)) for text in ("nvfp4", "int4", "fp8")]
    ['nvfp4/fp8/nvfp4', 'int4/bf16/int4', 'fp8/fp8/fp8']
    """
    parts = text.split("/")
    if len(parts) > 3:
        raise ParseError(f"{text!r} names {len(parts)} dtypes", hint="write int8 or int8/bf16/bf16")
    first, *rest = (p.strip() for p in parts)
    if first.partition("@")[1:] not in (("", ""), ("@", "experts")):
        raise ParseError(
            f"{first!r} names a part", hint="write mxfp4@experts: no other part is known"
        )
    names = [parse_dtype(p).name for p in (first.removesuffix(_OF_EXPERTS), *rest)]
    kept = names[0]
    if DTYPES[kept].bits < 8:
        kept = "bf16" if kept.startswith("int") else "fp8"
    weights, kv, compute = (*names, *[kept, names[0]][len(names) - 1 :])
    whole = _NOT_EXPERTS if first.endswith(_OF_EXPERTS) else ()
    return Precision(DTYPES[weights], DTYPES[kv], compute, whole=whole)
