"""A plan as a MaxText configuration: one flat YAML file.

An axis is `ici_..._parallelism` inside a slice or node times `dcn_..._parallelism` across them.
MaxText lays the axes of a slice on its torus itself, so where they lie is not written.
"""

from rooflight.algebra.notation import Axes
from rooflight.interop.framework import Export, Loss, Settings, Value, comments, load_framework
from rooflight.interop.read_maxtext import KEYS, import_maxtext, recomputed_experts
from rooflight.interop.roles import Roles, axes_by_key, policies, read_roles, their_model, title
from rooflight.interop.round_trip import ModelSizes, plain_sizes, unstated
from rooflight.models.spec import Mlp, ModelSpec, Moe
from rooflight.plan.file.record import Plan


def export_maxtext(plan: Plan) -> Export:
    """The settings that differ from MaxText's defaults, and the degrees, which are all written."""
    framework = load_framework("maxtext")
    roles = read_roles(plan.layout, plan.placed())
    axes, lost = axes_by_key(framework, roles)
    named = their_model(framework, plan.model)
    model, unsaid = ({"model_name": named}, []) if named else _model(plan.model)
    chosen, less = policies(framework, plan, roles)
    piped, uneven = _pipeline(plan)
    spread, moved = _context(roles)
    settings = {
        **model,
        "hardware": "tpu" if roles.mesh.slice.chip.torus else "gpu",
        "max_target_length": plan.seq,
        **_batch(plan, roles),
        **_degrees(roles, axes),
        **piped,
        **spread,
        "allow_split_physical_axes": _splits(roles),
        **chosen,
    }
    recomputed = recomputed_experts(plan.model, plan.remat)
    losses = [*unsaid, *lost, *less, *recomputed, *uneven, *moved, _placement(roles)]
    on = roles.mesh.slice
    losses += unstated(
        plan,
        lambda: import_maxtext({**settings}, on=on, model=plan.model),
        losses,
        is_placed=False,  # jax lays the axes of a slice
    )
    body = "\n".join(f"{key}: {_yaml(value)}" for key, value in settings.items())
    text = f"{comments(framework, title(plan), losses)}\nbase_config: base.yml\n{body}\n"
    return Export(framework, settings, text, tuple(losses))


def _degrees(roles: Roles, axes: dict[str, Axes]) -> Settings:
    found: Settings = {}
    for reach in ("ici", "dcn"):
        for key in KEYS:
            used = axes.get(key, ())
            outer = roles.outer_ways(used)
            ways = outer if reach == "dcn" else roles.ways(used) // outer
            found[f"{reach}_{key}_parallelism"] = ways
    return found


def _batch(plan: Plan, roles: Roles) -> Settings:
    """A step is per_device_batch_size * devices * gradient_accumulation_steps sequences."""
    accumulated = plan.microbatches if plan.stages == 1 else 1
    each = plan.batch / roles.mesh.slice.num_chips / accumulated
    return {"per_device_batch_size": each, "gradient_accumulation_steps": accumulated}


def _pipeline(plan: Plan) -> tuple[Settings, list[Loss]]:
    """Layers a stage and microbatches; all stages are alike in MaxText."""
    if plan.stages == 1:
        return {"scan_layers": True}, []
    layers, left = divmod(plan.model.num_layers, plan.stages * plan.virtual)
    losses: list[Loss] = []
    if left or not layers:
        because = f"{plan.model.num_layers} layers are not so many equal stages"
        losses.append(Loss(f"{plan.stages} x {plan.virtual} stages", because))
    if plan.microbatches % plan.stages:
        because = f"not a multiple of the {plan.stages} stages"
        losses.append(Loss(f"{plan.microbatches} microbatches", because))
    settings: Settings = {
        "scan_layers": False,  # base.yml: the iterations of the pipeline are scanned instead
        "num_layers_per_pipeline_stage": max(1, layers),
        "num_pipeline_microbatches": plan.microbatches,
    }
    return settings, losses


def _context(roles: Roles) -> tuple[Settings, list[Loss]]:
    """Heads for positions is a strategy of the context axis, with needs of its own."""
    keys, heads = roles.serving("cp"), roles.serving("ulysses")
    if not heads:
        plain = roles.modes.get("cp", "all_gather")
        return ({"context_parallel_strategy": plain} if keys else {}), []
    losses: list[Loss] = []
    if keys:
        losses.append(Loss("cp and ulysses", "one context axis has one strategy"))
    if not roles.mesh.slice.chip.torus:
        losses.append(Loss("ulysses", "MaxText has it on TPUs only"))
    strategy: Settings = {"context_parallel_strategy": "ulysses"}
    return strategy | {"attention": "flash", "use_tokamax_splash": True}, losses


def _splits(roles: Roles) -> bool:
    """Whether an axis lies on a part of a torus axis."""
    whole = {dim.name: dim.size for dim in roles.mesh.slice.dims}
    parts = [part for axis in roles.schemes for part in roles.mesh.segments[axis]]
    return any(part.size < whole[part.dim] for part in parts)


def _placement(roles: Roles) -> Loss:
    because = "MaxText lets jax lay its axes on the slice"
    return Loss(f"mesh {roles.mesh}", because, is_material=False)


def _model(model: ModelSpec) -> tuple[Settings, list[Loss]]:
    """A model that MaxText has no file of, by its sizes."""
    sizes, losses = plain_sizes(model)
    attention, mlp = sizes.attention, sizes.moe.expert if sizes.moe else sizes.mlp
    assert mlp is not None, "a layer has an MLP or experts"
    settings: Settings = {
        "decoder_block": "mixtral" if sizes.moe else "llama2",
        "base_emb_dim": model.d_model,
        "base_num_query_heads": attention.num_heads,
        "base_num_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "base_mlp_dim": mlp.width,
        "base_num_decoder_layers": sizes.num_layers,
        "vocab_size": model.vocab,
        "logits_via_embedding": model.is_tied,
    }
    if sizes.moe:
        settings["base_moe_mlp_dim"] = mlp.width
        settings["num_experts"] = sizes.moe.num_experts
        settings["num_experts_per_tok"] = sizes.moe.experts_per_token
    return settings, [*losses, *_not_llama(model, sizes, mlp), _numbers(model)]


def _not_llama(model: ModelSpec, sizes: ModelSizes, mlp: Mlp) -> list[Loss]:
    """What the llama2 and mixtral blocks of MaxText do not have."""
    attention, moe = sizes.attention, sizes.moe
    odd = {
        "latent attention": attention.latent is not None,
        "norms of queries and keys": attention.qk_norm is not None,
        "biases": attention.qkv_bias or attention.out_bias or mlp.has_bias,
        "an MLP without a gate": not mlp.is_gated,
        "shared experts": moe is not None and moe.shared is not None,
        "leading dense layers": isinstance(moe, Moe) and sizes.num_dense > 0,
        "layer norm": model.norm.kind != "rms",
    }
    return [Loss(f"model {model.name}", f"{what} are not written") for what in odd if odd[what]]


def _numbers(model: ModelSpec) -> Loss:
    because = "only sizes are written: not the base of rotary positions and the like"
    return Loss(f"model {model.name}", because, is_material=False)


def _yaml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)
