"""A torchtitan job as the parts of a plan."""

from collections.abc import Mapping

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.interop.framework import FrameworkSpec, Loss, load_framework
from rooflight.interop.imported import (
    Degree,
    Imported,
    find_model,
    layout_text,
    name_axes,
    name_of,
    row_major,
    straddles,
)
from rooflight.interop.settings import Flat, text, whole
from rooflight.models.spec import ModelSpec

LOOPED = ("interleaved", "zb-v", "dualpipe")  # schedules with several stages per rank
_P = "parallelism."
_ROTATE = _P + "context_parallel_rotate_method"


def import_torchtitan(settings: Flat, *, on: Slice, model: ModelSpec | None = None) -> Imported:
    """Reads settings over torchtitan's defaults; `model` stands for one that we have no name of."""
    framework = load_framework("torchtitan")
    values = {**framework.defaults, **settings}
    if model is None:
        name, flavor = text(values, "model.name"), text(values, "model.flavor")
        model = find_model(framework, f"{name}/{flavor}")
    axes = name_axes(_degrees(values, on))
    stages = whole(values, _P + "pipeline_parallel_degree")
    batch, microbatches, gathered = _batch(values, _data_ways(axes), stages)
    schedule, virtual, odd = _pipeline(framework, values, model) if stages > 1 else (None, 1, [])
    remat, kept = name_of(framework, "remats", values, what="remat", fallback="block")
    recipe, stored = name_of(framework, "recipes", values, what="recipe", fallback="f32")
    dtype, element = name_of(framework, "dtypes", values, what="dtype", fallback="bf16")
    mesh = row_major(axes, on)
    meant = (*_differs(framework, values, axes), *straddles(mesh))
    losses = (*odd, *gathered, *kept, *stored, *element, *meant)
    return Imported(
        framework,
        model,
        on,
        layout_text(axes, {"cp": "ring"} if text(values, _ROTATE) == "alltoall" else None),
        mesh,
        batch,
        whole(values, "training.seq_len"),
        dtype,
        recipe,
        remat,
        0,
        stages,
        schedule,
        microbatches,
        virtual,
        losses,
        tuple(key for key in settings if key not in framework.defaults),
    )


def _degrees(values: Mapping[str, object], on: Slice) -> list[Degree]:
    """Outermost first, as ranks are numbered. Experts take the inner ranks of what they borrow."""
    pipe = whole(values, _P + "pipeline_parallel_degree")
    copies = whole(values, _P + "data_parallel_replicate_degree")
    context = whole(values, _P + "context_parallel_degree")
    tensor = whole(values, _P + "tensor_parallel_degree")
    shard = _shard(values, on, pipe * copies * context * tensor)
    from_shard, from_tensor = _experts(values, shard, context, tensor)
    return [
        Degree(("pp",), 1, pipe),
        Degree(("dp",), 1, copies),
        Degree(("fsdp",), 1, shard // from_shard),
        Degree(("fsdp", "ep"), 1, from_shard),
        Degree(("cp",), 1, context),
        Degree(("sp", "ep") if from_tensor > 1 else ("sp",), 1, tensor),
    ]


def _shard(values: Mapping[str, object], on: Slice, others: int) -> int:
    """-1 is what the other degrees leave of the ranks."""
    asked = whole(values, _P + "data_parallel_shard_degree", least=-1)
    shard = on.num_chips // others if asked == -1 else asked
    if shard * others != on.num_chips or not shard:
        raise UsageError(
            f"the degrees multiply to {max(1, shard) * others}, {on} has {on.num_chips} chips",
            hint="change --on, or make data_parallel_shard_degree -1, the rest",
        )
    return shard


def _experts(
    values: Mapping[str, object], shard: int, context: int, tensor: int
) -> tuple[int, int]:
    """How many ranks experts borrow from FSDP and from tensor parallelism."""
    ways = whole(values, _P + "expert_parallel_degree")
    split = whole(values, _P + "expert_tensor_parallel_degree")
    from_tensor = tensor if ways > 1 and split == 1 else 1
    from_shard, left = divmod(ways, from_tensor)
    if ways > 1 and (left or shard % max(1, from_shard) or (context > 1 and from_shard > 1)):
        raise UsageError(
            f"expert_parallel_degree {ways} takes parts of the tensor or context ranks,"
            " which no layout here does",
            hint=f"make it a multiple of {from_tensor} that divides the FSDP ranks ({shard})",
        )
    return from_shard, from_tensor


def _data_ways(axes: Mapping[str, Degree]) -> int:
    ways = 1
    for degree in axes.values():
        ways *= degree.ways if {"dp", "fsdp"} & set(degree.schemes) else 1
    return ways


def _batch(values: Mapping[str, object], ranks: int, stages: int) -> tuple[int, int, list[Loss]]:
    """Sequences per step, microbatches, and what is lost: passes over a pipeline are one longer."""
    local = whole(values, "training.local_batch_size")
    asked = whole(values, "training.global_batch_size", least=-1)
    batch = local * ranks if asked == -1 else asked
    passes, left = divmod(batch, local * ranks)
    if left or not passes:
        raise UsageError(
            f"a global batch of {batch} is not a multiple of {local} on each of {ranks} ranks",
            hint=f"make training.global_batch_size {max(1, passes) * local * ranks}",
        )
    if stages == 1:
        return batch, passes, []
    size = whole(values, _P + "pipeline_parallel_microbatch_size")
    if local % size:
        raise UsageError(
            f"local_batch_size {local} is not a multiple of the microbatch size {size}",
            hint=f"make parallelism.pipeline_parallel_microbatch_size a divisor of {local}",
        )
    because = "taken for one pass of as many microbatches"
    losses = [Loss(f"{passes} passes over the pipeline", because)] if passes > 1 else []
    return batch, passes * (local // size), losses


def _pipeline(
    framework: FrameworkSpec, values: Mapping[str, object], model: ModelSpec
) -> tuple[str, int, list[Loss]]:
    """The schedule and its stages per rank."""
    schedule, losses = name_of(
        framework, "schedules", values, what="schedule", fallback="interleaved"
    )
    if text(values, _P + "pipeline_parallel_schedule_csv"):
        losses.append(Loss("pipeline_parallel_schedule_csv", "a table of one's own is not read"))
    virtual = 2 if schedule in LOOPED else 1
    layers = values[_P + "pipeline_parallel_layers_per_stage"]
    if layers:
        each = whole(values, _P + "pipeline_parallel_layers_per_stage")
        stages = whole(values, _P + "pipeline_parallel_degree")
        ends = [f"{_P}pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last")]
        counted = model.num_layers + sum(0 if values[k] == 0 else whole(values, k) for k in ends)
        virtual, left = divmod(-(-counted // each), stages)
        if left or not virtual:
            raise UsageError(
                f"{counted} layers at {each} per stage are not a multiple of {stages} stages",
                hint="change parallelism.pipeline_parallel_layers_per_stage",
            )
    return schedule, virtual, losses


def _differs(
    framework: FrameworkSpec, values: Mapping[str, object], axes: Mapping[str, Degree]
) -> list[Loss]:
    rows = [framework.axis_row(frozenset(d.schemes)) for d in axes.values()]
    losses = [Loss(f"{'+'.join(r.schemes)} axis", r.differs) for r in rows if r and r.differs]
    if values["model.converters"]:
        losses.append(Loss("model.converters", "matmuls are taken to be in the dtype above"))
    if values["training.enable_cpu_offload"] is True:
        losses.append(Loss("training.enable_cpu_offload", "taken for false"))
    return losses
