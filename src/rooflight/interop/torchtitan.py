"""A plan as a torchtitan job: one TOML file, as torchtitan read them until February 2026."""

from rooflight.interop.framework import Export, Loss, Settings, Value, comments, load_framework
from rooflight.interop.read_torchtitan import LOOPED, import_torchtitan
from rooflight.interop.roles import Roles, axes_by_key, policies, read_roles, their_model, title
from rooflight.interop.round_trip import unstated
from rooflight.plan.file.record import Plan

_DEGREES = (
    *("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree"),
    *("context_parallel_degree", "pipeline_parallel_degree", "expert_parallel_degree"),
)


def export_torchtitan(plan: Plan) -> Export:
    """The tables model, training, parallelism and activation_checkpoint of a job."""
    framework = load_framework("torchtitan")
    roles = read_roles(plan.layout, plan.placed())
    axes, lost = axes_by_key(framework, roles)
    model, unsaid = _model(plan)
    chosen, less = policies(framework, plan, roles)
    batch, broken = _batch(plan, roles)
    piped, uneven = _pipeline(plan)
    settings = {
        **model,
        "training.seq_len": plan.seq,
        **batch,
        **{f"parallelism.{key}": roles.ways(axes.get(key, ())) for key in _DEGREES},
        **_experts(roles),
        **_context(roles),
        **piped,
        **chosen,
    }
    losses = [*unsaid, *lost, *less, *broken, *uneven, *_partly(roles)]
    on = roles.mesh.slice
    losses += unstated(
        plan, lambda: import_torchtitan({**settings}, on=on, model=plan.model), losses
    )
    text = f"{comments(framework, title(plan), losses)}\n{_toml(settings)}"
    return Export(framework, settings, text, tuple(losses))


def _model(plan: Plan) -> tuple[Settings, list[Loss]]:
    name = their_model(load_framework("torchtitan"), plan.model)
    if name is None:
        because = "torchtitan keeps sizes in Python, under a name and a flavor"
        return {}, [Loss(f"model {plan.model.name}", because)]
    family, _, flavor = name.partition("/")
    return {"model.name": family, "model.flavor": flavor}, []


def _context(roles: Roles) -> Settings:
    """Its all-to-all of one block per round is the ring's hop."""
    is_ring = roles.modes.get("cp") == "ring"
    return {"parallelism.context_parallel_rotate_method": "alltoall"} if is_ring else {}


def _batch(plan: Plan, roles: Roles) -> tuple[Settings, list[Loss]]:
    """Sequences of a data-parallel rank at once; what is left is accumulated."""
    ranks = roles.ways(roles.serving("dp", "fsdp"))
    accumulated = plan.microbatches if plan.stages == 1 else 1
    local, broken = divmod(plan.batch, ranks * accumulated)
    what = f"{plan.batch} sequences over {ranks} data-parallel ranks, {accumulated} times"
    losses = [Loss(what, "is not a whole number of sequences")] if broken or not local else []
    local = max(1, local)
    settings: Settings = {
        "training.local_batch_size": local,
        "training.global_batch_size": plan.batch,
    }
    if plan.stages > 1:
        size, rest = divmod(local, plan.microbatches)
        settings["parallelism.pipeline_parallel_microbatch_size"] = max(1, size)
        because = "is not a whole number of sequences each"
        losses += [Loss(f"{plan.microbatches} microbatches of {local}", because)] if rest else []
    return settings, losses


def _pipeline(plan: Plan) -> tuple[Settings, list[Loss]]:
    """Layers as evenly as they go, the embedding and the head not counted as layers."""
    if plan.stages == 1:
        return {}, []
    settings: Settings = {
        "parallelism.pipeline_parallel_first_stage_less_layers": 0,
        "parallelism.pipeline_parallel_last_stage_less_layers": 0,
    }
    if plan.virtual == (2 if plan.schedule in LOOPED else 1):  # what it takes if not told
        return settings, []
    cuts = plan.stages * plan.virtual
    layers = -(-plan.model.num_layers // cuts)
    settings["parallelism.pipeline_parallel_layers_per_stage"] = layers
    because = f"at {layers} layers per stage, {plan.model.num_layers} layers are not so many stages"
    uneven = -(-plan.model.num_layers // layers) != cuts
    return settings, [Loss(f"{plan.stages} x {plan.virtual} stages", because)] if uneven else []


def _experts(roles: Roles) -> Settings:
    """Experts borrow ranks of the tensor axis (and then are whole) or leave it to split them."""
    if not roles.serving("ep"):
        return {}
    tensor = roles.serving("tp", "sp", "mp")
    borrowed = set(tensor) & set(roles.serving("ep"))
    return {"parallelism.expert_tensor_parallel_degree": 1 if borrowed else roles.ways(tensor)}


def _partly(roles: Roles) -> list[Loss]:
    tensor, experts = roles.serving("tp", "sp", "mp"), set(roles.serving("ep"))
    if not experts & set(tensor) or experts >= set(tensor):
        return []
    return [Loss("ep", "experts take all the tensor-parallel ranks or none of them")]


def _toml(settings: Settings) -> str:
    """Keys are `table.key`; tables in the order in which they first appear."""
    tables: dict[str, list[str]] = {}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, []).append(f"{name} = {_value(value)}")
    return "\n".join(f"[{table}]\n" + "\n".join(rows) + "\n" for table, rows in tables.items())


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)
