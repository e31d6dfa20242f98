"""A MaxText configuration as the parts of a plan."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.interop.framework import FrameworkSpec, Loss, load_framework
from rooflight.interop.imported import (
    Degree,
    Imported,
    find_model,
    hybrid,
    inside,
    layout_text,
    name_axes,
    name_of,
)
from rooflight.interop.settings import Flat, text, whole
from rooflight.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Repeat

# Every axis that a plan can use, in the order of MaxText's mesh.
KEYS = ("data", "pipeline", "fsdp", "context", "tensor", "tensor_sequence", "expert")
_DEGREE = re.compile(r"(ici|dcn)_(\w+)_parallelism")
_SCHEMES: dict[str, tuple[str, ...]] = {
    "data": ("dp",),
    "pipeline": ("pp",),
    "fsdp": ("fsdp",),
    "context": ("cp",),
    "tensor": ("tp",),
    "tensor_sequence": ("sp",),
    "expert": ("fsdp", "ep"),
}
_SIZES = (
    *("decoder_block", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads"),
    *("base_mlp_dim", "base_num_decoder_layers", "head_dim", "vocab_size", "num_experts"),
    *("num_experts_per_tok", "logits_via_embedding"),
)
_TEXTS = ("decoder_block", "logits_via_embedding")
_RULES = ("mesh_axes", "logical_axis_rules")  # what splits what
_PLAIN = ("llama2", "mistral", "mixtral")  # decoder blocks whose sizes say all


def import_maxtext(settings: Flat, *, on: Slice, model: ModelSpec | None = None) -> Imported:
    """Reads settings over MaxText's defaults; `model` stands for one that we have no name of."""
    framework = load_framework("maxtext")
    values = {**framework.defaults, **settings}
    axes = name_axes(_degrees(values, on))
    named = model is not None or text(values, "model_name") != "default"
    model = model or _model(framework, values)
    pipe = _pipeline(values, model, on)
    remat, kept = name_of(framework, "remats", values, what="remat", fallback="block")
    kept += recomputed_experts(model, remat)
    recipe, stored = name_of(framework, "recipes", values, what="recipe", fallback="f32")
    dtype, element = name_of(framework, "dtypes", values, what="dtype", fallback="bf16")
    zero, _ = name_of(framework, "zeros", values, what="zero stage", fallback="0")
    meant = (*_differs(framework, values, axes), *_overridden(settings, named))
    losses = (*pipe.losses, *kept, *stored, *element, *meant)
    return Imported(
        framework,
        model,
        on,
        layout_text(axes, {"cp": "ring"} if _is_ring(values) else None),
        hybrid(axes, on),
        _batch(values, on),
        whole(values, "max_target_length"),
        dtype,
        recipe,
        remat,
        int(zero),
        pipe.stages,
        pipe.schedule,
        pipe.microbatches,
        pipe.virtual,
        losses,
        tuple(key for key in settings if not _is_read(framework, key, named)),
    )


def recomputed_experts(model: ModelSpec, remat: str) -> list[Loss]:
    """The policy `minimal` names the matmuls of dense MLPs, not those of experts."""
    routed = any(isinstance(block.mlp, Moe) for block in model.blocks)
    because = "MaxText's minimal recomputes the matmuls of experts"
    return [Loss("remat dots", because)] if routed and remat == "dots" else []


def _is_read(framework: FrameworkSpec, key: str, named: bool) -> bool:
    """Sizes beside the name of a model are not: MaxText itself refuses them."""
    if named and key in _SIZES:
        return False
    return key in framework.defaults or _DEGREE.fullmatch(key) is not None or key == "base_config"


def _overridden(settings: Flat, named: bool) -> list[Loss]:
    """What a file may change that is taken as MaxText ships it."""
    sizes = [key for key in _SIZES if key in settings] if named else []
    rules = [key for key in _RULES if key in settings]
    return [Loss(key, "the model is taken as it is known by its name") for key in sizes] + [
        Loss(key, "not read; taken for that of base.yml") for key in rules
    ]


def _degrees(values: Mapping[str, object], on: Slice) -> list[Degree]:
    chips = inside(on).num_chips
    inner = _filled(values, "ici", chips, f"chips of {inside(on)}")
    outer = _filled(values, "dcn", on.num_chips // chips, f"slices or nodes of {on}")
    context = text(values, "context_parallel_strategy")
    schemes = _SCHEMES | ({"context": ("ulysses",)} if context == "ulysses" else {})
    return [Degree(schemes[key], outer[key], inner[key]) for key in KEYS]


def _is_ring(values: Mapping[str, object]) -> bool:
    return text(values, "context_parallel_strategy") == "ring"


def _filled(values: Mapping[str, object], reach: str, total: int, what: str) -> dict[str, int]:
    """The degrees inside or across; one of them may be -1, which is what the others leave."""
    found = {key: 1 for key in KEYS}
    for name in values:
        match = _DEGREE.fullmatch(name)
        if match and match[1] == reach:
            found[match[2]] = whole(values, name, least=-1)
    odd = [key for key, ways in found.items() if ways != 1 and key not in KEYS]
    if odd:
        raise UsageError(
            f"{reach}_{odd[0]}_parallelism is {found[odd[0]]}; no layout here has such an axis",
            hint=f"leave it at 1; known are {', '.join(KEYS)}",
        )
    open_keys = [key for key in KEYS if found[key] == -1]
    rest, left = divmod(total, math.prod(n for n in found.values() if n != -1))
    if len(open_keys) == 1 and not left and rest:
        return found | {open_keys[0]: rest}
    if open_keys or math.prod(found.values()) != total:
        said = ", ".join(f"{key} {n}" for key, n in found.items() if n != 1) or "all 1"
        raise UsageError(
            f"the {reach}_ degrees ({said}) do not multiply to the {total} {what}",
            hint="change them or --on; one of them may be -1, the rest",
        )
    return found


def _batch(values: Mapping[str, object], on: Slice) -> int:
    each = values["per_device_batch_size"]
    if not isinstance(each, int | float) or isinstance(each, bool) or not 0 < each < 10**9:
        raise UsageError(f"per_device_batch_size is {each!r}", hint="give sequences, such as 4")
    sequences = each * on.num_chips * whole(values, "gradient_accumulation_steps")
    if sequences != int(sequences):
        raise UsageError(
            f"per_device_batch_size {each} on {on.num_chips} chips is {sequences} sequences",
            hint="choose one that makes whole sequences",
        )
    return int(sequences)


@dataclass(frozen=True, slots=True)
class _Pipe:
    """Stages, and the microbatches that pass them or are accumulated."""

    stages: int
    schedule: str | None
    microbatches: int
    virtual: int
    losses: tuple[Loss, ...] = ()


def _pipeline(values: Mapping[str, object], model: ModelSpec, on: Slice) -> _Pipe:
    """MaxText runs all forwards and then all backwards; stages may repeat in a circle."""
    stages = next(d.ways for d in _degrees(values, on) if d.schemes == ("pp",))
    accumulated = whole(values, "gradient_accumulation_steps")
    if stages == 1:
        return _Pipe(1, None, accumulated, 1)
    asked = whole(values, "num_pipeline_microbatches", least=-1)
    microbatches = stages if asked == -1 else asked
    layers = whole(values, "num_layers_per_pipeline_stage")
    virtual, left = divmod(model.num_layers, stages * layers)
    losses: list[Loss] = []
    if left or not virtual or values["pipeline_parallel_layers"] != -1:
        because = f"{layers} layers per stage; stages are taken to share the layers evenly"
        losses.append(Loss(f"{model.num_layers} layers on {stages} stages", because))
    if accumulated > 1:
        losses.append(Loss("gradient_accumulation_steps", "taken for more microbatches"))
    if virtual <= 1:
        return _Pipe(stages, "gpipe", microbatches * accumulated, 1, tuple(losses))
    because = "all forwards, then all backwards; taken for interleaved, which holds less"
    losses.append(Loss(f"a pipeline of {virtual} repeats", because))
    return _Pipe(stages, "interleaved", microbatches * accumulated, virtual, tuple(losses))


def _differs(
    framework: FrameworkSpec, values: Mapping[str, object], axes: Mapping[str, Degree]
) -> list[Loss]:
    rows = [framework.axis_row(frozenset(d.schemes)) for d in axes.values()]
    losses = [Loss(f"{'+'.join(r.schemes)} axis", r.differs) for r in rows if r and r.differs]
    if text(values, "quantization"):
        losses.append(Loss(f"quantization {values['quantization']}", "taken for none"))
    if text(values, "custom_mesh_and_rule"):
        because = "its rules are not read; taken for those of base.yml"
        losses.append(Loss(f"custom_mesh_and_rule {values['custom_mesh_and_rule']}", because))
    if values["context_parallel_strategy"] == "usp":
        because = "taken for gathered keys and values"
        losses.append(Loss(f"context by {values['context_parallel_strategy']}", because))
    return losses


def _model(framework: FrameworkSpec, values: Mapping[str, object]) -> ModelSpec:
    """One of ours, or a plain decoder by its sizes."""
    name = text(values, "model_name")
    if name != "default":
        return find_model(framework, name)
    block = text(values, "decoder_block")
    if block not in _PLAIN:
        raise UsageError(
            f"the sizes of a {block!r} decoder do not say what its layers are",
            hint=f"name the model with --model; sizes suffice for {', '.join(_PLAIN)}",
        )
    size = {key: whole(values, key) for key in _SIZES if key not in _TEXTS}
    heads = Attention(size["base_num_query_heads"], size["base_num_kv_heads"], size["head_dim"])
    mlp = Mlp(size["base_mlp_dim"])
    experts, each = size["num_experts"], size["num_experts_per_tok"]
    layer = Block(heads, Moe(experts, each, mlp) if experts > 1 else mlp)
    return ModelSpec(
        name="maxtext",
        title=f"a {block} decoder by its sizes",
        d_model=size["base_emb_dim"],
        vocab=size["vocab_size"],
        layers=(Repeat((layer,), size["base_num_decoder_layers"]),),
        is_tied=values["logits_via_embedding"] is True,
    )
