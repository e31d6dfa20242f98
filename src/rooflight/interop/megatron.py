"""A plan as arguments of Megatron-LM's `pretrain_gpt.py`, one on a line."""

import shlex

from rooflight.interop.framework import Export, Loss, Settings, Value, comments, load_framework
from rooflight.interop.megatron_model import model_arguments
from rooflight.interop.policies import policies, title
from rooflight.interop.roles import Roles, axes_by_key, placement_loss, read_roles
from rooflight.records import Plan

_SIZES = (
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"),
    "expert-model-parallel-size",
)
_FSDP: Settings = {
    "use-megatron-fsdp": True,
    "data-parallel-sharding-strategy": "optim_grads_params",
    "use-distributed-optimizer": True,
    "ckpt-format": "fsdp_dtensor",
}


def export_megatron(plan: Plan) -> Export:
    """The arguments of a plan; the data-parallel size is what they leave of the ranks."""
    framework = load_framework("megatron")
    roles = read_roles(plan.layout, plan.placed())
    axes, lost = axes_by_key(framework, roles)
    model, unsaid = model_arguments(plan.model, seq=plan.seq)
    chosen, less = policies(framework, plan, roles)
    batch, broken = _batch(plan, roles)
    piped, uneven = _pipeline(plan)
    settings = {
        **model,
        "seq-length": plan.seq,
        **batch,
        **{key: roles.ways(axes.get(key, ())) for key in _SIZES},
        **_tensor(roles),
        **_context(roles),
        **piped,
        **chosen,
        **_sharded(roles),
    }
    losses = (*unsaid, *lost, *less, *broken, *uneven, *_differs(roles), *placement_loss(roles))
    lines = "\n".join(_argument(key, value) for key, value in settings.items())
    return Export(
        framework, settings, f"{comments(framework, title(plan), losses)}\n{lines}\n", losses
    )


def _batch(plan: Plan, roles: Roles) -> tuple[Settings, list[Loss]]:
    ranks = roles.ways(roles.serving("dp", "fsdp"))
    size, broken = divmod(plan.batch, ranks * plan.microbatches)
    what = f"{plan.batch} sequences, {plan.microbatches} microbatches on each of {ranks} ranks"
    losses = [Loss(what, "is not a whole number of sequences")] if broken or not size else []
    return {"micro-batch-size": max(1, size), "global-batch-size": plan.batch}, losses


def _tensor(roles: Roles) -> Settings:
    settings: Settings = {}
    if roles.serving("tp", "sp"):
        settings["sequence-parallel"] = True
    if set(roles.serving("ep")) & set(roles.serving("sp")):
        settings["expert-tensor-parallel-size"] = 1
    return settings


def _context(roles: Roles) -> Settings:
    """Keys and values are gathered, as a layout with cp does, not passed around a ring."""
    if roles.serving("ulysses"):
        return {"cp-comm-type": "a2a"}
    return {"cp-comm-type": "allgather"} if roles.serving("cp") else {}


def _pipeline(plan: Plan) -> tuple[Settings, list[Loss]]:
    if plan.stages == 1:
        return {}, []
    layers, left = divmod(plan.model.num_layers, plan.stages * plan.virtual)
    because = f"{plan.model.num_layers} layers are not so many equal stages"
    losses = [Loss(f"{plan.stages} x {plan.virtual} stages", because)] if left or not layers else []
    if plan.virtual == 1:
        return {}, losses
    return {"num-layers-per-virtual-pipeline-stage": max(1, layers)}, losses


def _sharded(roles: Roles) -> Settings:
    """Split weights; copies of what is split are whole instances of the optimizer."""
    if not roles.serving("fsdp"):
        return {}
    copies = roles.ways(roles.serving("dp"))
    more: Settings = {"num-distributed-optimizer-instances": copies} if copies > 1 else {}
    return _FSDP | more


def _differs(roles: Roles) -> list[Loss]:
    """What no single axis shows."""
    context, split = roles.serving("cp", "ulysses"), roles.serving("fsdp")
    both = roles.serving("cp") and roles.serving("ulysses")
    odd = {
        "weights are split over the context ranks as well": bool(context and split),
        "one context axis has one way to communicate": bool(both),
        "the stream is split along the sequence on all tensor ranks or on none": bool(
            roles.serving("mp") and roles.serving("sp", "tp")
        ),
    }
    return [Loss(f"mesh {roles.mesh}", because) for because in odd if odd[because]]


def _argument(key: str, value: Value) -> str:
    """As a shell takes it; `([0]*3+[1]*58)` needs quotes."""
    if value is True:
        return f"--{key}"
    return f"--{key} " + " ".join(map(shlex.quote, str(value).split()))
