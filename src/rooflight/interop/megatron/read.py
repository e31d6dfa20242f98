"""Arguments of Megatron-LM as the parts of a plan.

Ranks count tensor, context, data, pipeline from the inside (`tp-cp-ep-dp-pp`). Experts have a grid
of their own over the same ranks: their tensor ranks inside, then experts, then copies. So experts
take tensor ranks that their own tensor parallelism leaves, then context ranks, then data ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice, parse_slice
from rooflight.interop.framework import FrameworkSpec, Loss, load_framework
from rooflight.interop.imported import (
    Degree,
    Imported,
    layout_text,
    name_axes,
    row_major,
    straddles,
)
from rooflight.interop.megatron.arguments import Arguments, flag_of
from rooflight.interop.megatron.read_model import count, optional, read_model
from rooflight.interop.megatron.stages import GROUP, Chunks, read_chunks, uneven_loss
from rooflight.models.layout.schedules import group_size
from rooflight.models.spec import ModelSpec, Moe

_SIZES = (
    *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups"),
    *("kv-channels", "num-experts", "moe-ffn-hidden-size", "vocab-size"),
)
_FSDP = ("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2")
_DISPATCHERS = ("alltoall", "flex")
_MOST_OF_IT = frozenset(("mlp", "moe"))  # modules without which little of a layer is saved


def import_megatron(found: Arguments, *, on: Slice, model: ModelSpec | None = None) -> Imported:
    """Reads arguments over Megatron-LM's defaults; `model` stands for what they say of one."""
    framework = load_framework("megatron")
    values = {**framework.defaults, **found.settings}
    on, placed = _hardware(found, on)
    model, sized = (model, _overridden(found)) if model else read_model(values)
    ranks = _ranks(values, on, is_routed=any(isinstance(b.mlp, Moe) for b in model.blocks))
    chunks = read_chunks(values, model.num_layers, ranks.pipe)
    batch, microbatches = _batch(values, ranks)
    axes = name_axes(ranks.degrees)
    mesh = row_major(axes, on)
    remat, kept = _remat(framework, values, chunks)
    dtype, element = _dtype(values)
    losses = (
        *(*found.losses, *placed, *sized, *kept, *element, *uneven_loss(chunks)),
        *straddles(mesh),
        *_differs(values, ranks, microbatches, chunks.virtual),
        *_not_modelled(framework, found),
    )
    return Imported(
        framework,
        model,
        on,
        layout_text(axes),
        mesh,
        batch,
        count(values, "seq-length"),
        dtype,
        _recipe(values),
        remat,
        _zero(values),
        ranks.pipe,
        None if ranks.pipe == 1 else "interleaved" if chunks.virtual > 1 else "1f1b",
        microbatches,
        chunks.virtual,
        losses,
        _unread(framework, found),
    )


def _hardware(found: Arguments, on: Slice) -> tuple[Slice, list[Loss]]:
    """A chip alone takes its nodes from the script; else what is given stands."""
    if on.chip.torus:
        raise UsageError(
            f"Megatron-LM runs on GPUs, got {on}", hint="give GPUs, such as --on h100:8x16"
        )
    if not found.gpus or not found.nodes:
        return on, []
    nodes = f"x{found.nodes}" if found.nodes > 1 else ""
    said = f"{found.gpus}{nodes}"
    if on.num_chips == 1:
        return parse_slice(f"{on.chip.name}:{said}"), []
    if on.num_chips == found.gpus * found.nodes:
        return on, []
    what = f"{found.nodes} nodes of {found.gpus} GPUs"
    return on, [Loss(what, f"taken for the {on.num_chips} of {on}", is_material=False)]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Degrees, outermost first, and those that others are counted from."""

    degrees: tuple[Degree, ...]
    tensor: int
    pipe: int
    context: int
    data: int


def _ranks(values: Mapping[str, object], on: Slice, *, is_routed: bool) -> _Ranks:
    tensor, pipe, context = (
        count(values, f"{name}-parallel-size")
        for name in ("tensor-model", "pipeline-model", "context")
    )
    data, left = divmod(on.num_chips, tensor * pipe * context)
    if left or not data:
        raise UsageError(
            f"tensor {tensor} x pipeline {pipe} x context {context} ranks must divide the"
            f" {on.num_chips} GPUs of {on}",
            hint=f"give --on a multiple of {tensor * pipe * context} GPUs",
        )
    copies, weights = _sharding(values, data)
    experts = _experts(values, tensor, context, data // copies) if is_routed else _ExpertRanks()
    tensors = "sp" if values["sequence-parallel"] is True else "mp"
    gathers = "ulysses" if values["cp-comm-type"] == "a2a" else "cp"
    shards = data // copies // experts.data
    inner = (
        *(Degree((weights,), 1, shards), Degree((weights, "ep"), 1, experts.data)),
        *(Degree((gathers,), 1, context // experts.context),),
        *(Degree((gathers, "ep"), 1, experts.context), Degree((tensors, "ep"), 1, experts.tensor)),
        Degree((tensors,), 1, tensor // experts.tensor),
    )
    outer = (Degree(("pp",), 1, pipe), Degree(("dp",), 1, copies))
    if values["use-tp-pp-dp-mapping"] is True:
        outer = (Degree(("dp",), 1, copies), inner[0], Degree(("pp",), 1, pipe))
        inner = inner[1:]
    return _Ranks((*outer, *inner), tensor, pipe, context, data)


def _sharding(values: Mapping[str, object], data: int) -> tuple[int, str]:
    """Copies of what is split, and the scheme of the data ranks within one."""
    splits = any(values[key] is True for key in _FSDP)
    if not splits or values["data-parallel-sharding-strategy"] != "optim_grads_params":
        return 1, "dp"
    copies = count(values, "num-distributed-optimizer-instances")
    if data % copies:
        raise UsageError(
            f"{copies} instances of the optimizer must divide the {data} data-parallel ranks",
            hint="change --num-distributed-optimizer-instances",
        )
    return copies, "fsdp"


@dataclass(frozen=True, slots=True)
class _ExpertRanks:
    """How many ranks of each kind experts take."""

    tensor: int = 1
    context: int = 1
    data: int = 1


def _experts(values: Mapping[str, object], tensor: int, context: int, data: int) -> _ExpertRanks:
    ways = count(values, "expert-model-parallel-size")
    split = optional(values, "expert-tensor-parallel-size") or tensor
    if ways == 1 and split == tensor:
        return _ExpertRanks()
    from_tensor, odd = divmod(tensor, split)
    rest, left = divmod(ways, max(1, from_tensor))
    from_context = next((n for n in (context, rest) if not context % n and not rest % n), 0)
    if odd or left or not rest or not from_context or data % (rest // from_context):
        raise UsageError(
            f"{ways} expert ranks with {split} tensor ranks each, beside {tensor} tensor,"
            f" {context} context and {data} data ranks: experts would take parts of tensor or"
            " context ranks, which no layout here does",
            hint=f"make --expert-model-parallel-size a multiple of {max(1, from_tensor)} that the"
            " context and data ranks share out",
        )
    return _ExpertRanks(from_tensor, from_context, rest // from_context)


def _batch(values: Mapping[str, object], ranks: _Ranks) -> tuple[int, int]:
    """Sequences per step, and microbatches."""
    size = count(values, "micro-batch-size")
    batch = optional(values, "global-batch-size") or _last_of_schedule(values)
    batch = batch or size * ranks.data
    microbatches, left = divmod(batch, size * ranks.data)
    if left or not microbatches:
        nearest = max(1, microbatches) * size * ranks.data
        raise UsageError(
            f"a global batch of {batch} must be a multiple of {size} sequences on each of"
            f" {ranks.data} data-parallel ranks",
            hint=f"give --on other GPUs, or global-batch-size={nearest}",
        )
    return batch, microbatches


def _last_of_schedule(values: Mapping[str, object]) -> int | None:
    """`0:384 200B:768` ends with 768."""
    last = str(values["step-batch-size-schedule"]).rpartition(":")[2]
    return int(last) if last.isdecimal() and len(last) < 10 and int(last) else None


def _remat(
    framework: FrameworkSpec, values: Mapping[str, object], chunks: Chunks
) -> tuple[str, list[Loss]]:
    how = str(values["recompute-granularity"])
    if values["recompute-activations"] is True:
        how = "selective"
    if not how:
        return "none", []
    if how == "selective":
        return _selective(framework, values)
    layers = optional(values, "recompute-num-layers") or 1
    what = f"recompute {how} {values['recompute-method']} {layers}"
    if values["recompute-method"] == "block" and layers < max(chunks.layers):
        nearest = "block" if 2 * layers >= max(chunks.layers) else "none"
        because = f"of the {max(chunks.layers)} layers of a chunk; taken for remat {nearest} of all"
        return nearest, [Loss(what, because)]
    if values["recompute-method"] == "uniform" and layers > 1:
        because = f"the input of one layer in {layers} is saved; taken for that of each"
        return "block", [Loss(what, because)]
    return "block", []


def _selective(framework: FrameworkSpec, values: Mapping[str, object]) -> tuple[str, list[Loss]]:
    """What is recomputed: attention, norms, or modules that a plan does not tell apart."""
    modules = str(values["recompute-modules"]).strip("[]").replace(",", " ").split()
    row = next(r for r in framework.tables["remats"] if r.name == "dots")
    what = f"recompute-modules {' '.join(modules)}"
    if set(modules) == set(str(row.settings["recompute-modules"]).split()):
        return "dots", [Loss("remat dots", row.differs)]
    if set(modules) <= {"core_attn"}:
        return "none", [Loss(what, "attention is recomputed there; here its result is saved")]
    nearest = "block" if _MOST_OF_IT & set(modules) else "none"
    return nearest, [Loss(what, f"not one that we have; taken for remat {nearest}")]


def _dtype(values: Mapping[str, object]) -> tuple[str, list[Loss]]:
    if values["fp4-format"]:
        return "nvfp4", []
    if values["fp8-format"]:
        recipe = str(values["fp8-recipe"])
        if recipe == "mxfp8":
            return "mxfp8", []
        because = "taken for one scale per tensor"
        plain = recipe in ("delayed", "tensorwise")
        return "fp8", [] if plain else [Loss(f"fp8-recipe {recipe}", because)]
    names = {"bf16": "bf16", "fp16": "f16"}
    return next((ours for key, ours in names.items() if values[key] is True), "f32"), []


def _recipe(values: Mapping[str, object]) -> str:
    """Without a flag gradients of bf16 are added up in fp32."""
    if not any(values[key] for key in ("bf16", "fp16", "fp8-format", "fp4-format")):
        return "f32"
    return "16" if values["grad-reduce-in-bf16"] is True else "18"


def _zero(values: Mapping[str, object]) -> int:
    fsdp = any(values[key] is True for key in _FSDP)
    if fsdp and values["data-parallel-sharding-strategy"] == "optim_grads":
        return 2
    return int(fsdp or values["use-distributed-optimizer"] is True)


def _overridden(found: Arguments) -> list[Loss]:
    sizes = [key for key in _SIZES if key in found.settings]
    because = "the model is the one that was named"
    return [Loss(f"--{key}", because, is_material=False) for key in sizes]


def _differs(
    values: Mapping[str, object], ranks: _Ranks, microbatches: int, virtual: int
) -> list[Loss]:
    """Flags that are read and mean a little else here."""
    used = {scheme for degree in ranks.degrees if degree.ways > 1 for scheme in degree.schemes}
    ring = values["cp-comm-type"] not in ("a2a", "all_gather", "allgather")
    whole = ranks.data == 1 or values["num-distributed-optimizer-instances"] == 1
    dispatcher = values["moe-token-dispatcher-type"]
    group, ours = optional(values, GROUP) or ranks.pipe, group_size(ranks.pipe, microbatches)
    found: list[Loss] = []
    if ranks.context > 1 and ring:
        because = "taken for gathered keys and values, as are the runs that forecasts rest on"
        found.append(Loss(f"cp-comm-type {values['cp-comm-type']}", because))
    if ranks.context > 1 and "fsdp" in used:
        because = "weights are split over them as well, as over the data ranks"
        found.append(Loss("context ranks", because))
    if "ep" in used and dispatcher not in _DISPATCHERS:
        found.append(Loss(f"moe-token-dispatcher-type {dispatcher}", "taken for alltoall"))
    if virtual > 1 and group != ours:
        found.append(Loss(f"groups of {group} microbatches", f"taken for groups of {ours}"))
    if "fsdp" not in used and not whole:
        because = "the optimizer is taken to be split over all data ranks"
        found.append(Loss("num-distributed-optimizer-instances", because))
    return found


def _not_modelled(framework: FrameworkSpec, found: Arguments) -> list[Loss]:
    losses: list[Loss] = []
    for key, written in found.names.items():
        flag = flag_of(written)
        value = found.settings.get(key)
        if value is None or (flag == "optimizer" and value == "adam"):
            continue
        if flag in framework.not_modelled:
            losses.append(Loss(written, framework.not_modelled[flag]))
        elif flag in framework.noted:
            losses.append(Loss(written, framework.noted[flag], is_material=False))
    return losses


def _unread(framework: FrameworkSpec, found: Arguments) -> tuple[str, ...]:
    """Flags that decide nothing of this; those that do and are not read are losses."""
    told = {loss.what for loss in _not_modelled(framework, found)}
    names = ((key, written) for key, written in found.names.items() if key in found.settings)
    return tuple(w for key, w in names if w not in told and key not in framework.defaults)
