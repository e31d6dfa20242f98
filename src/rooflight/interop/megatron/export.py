"""A plan as a launch script of Megatron-LM's `pretrain_gpt.py`, or a sentence that says why not.

What is written is read again before it is given out: degrees, where they lie, the schedule, the
microbatches, what is recomputed and the dtype are those of the plan, or nothing is written.
"""

import shlex
from collections.abc import Sequence

from rooflight.errors import UsageError
from rooflight.hardware.slice import Slice
from rooflight.interop.framework import Export, Loss, Settings, Value, comments, load_framework
from rooflight.interop.megatron.arguments import Arguments
from rooflight.interop.megatron.read import import_megatron
from rooflight.interop.megatron.stages import GROUP, stage_settings
from rooflight.interop.roles import Roles, axes_by_key, policies, read_roles, row_of_plan, title
from rooflight.interop.round_trip import (
    ModelSizes,
    changed_layout,
    changed_parts,
    has_numbers,
    plain_sizes,
)
from rooflight.models.layout.schedules import group_size
from rooflight.models.spec import Attention, Mlp, ModelSpec, Moe
from rooflight.plan.file.record import Plan

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
    _check_hardware(roles.mesh.slice)
    axes, lost = axes_by_key(framework, roles)
    sizes = {key: roles.ways(axes.get(key, ())) for key in _SIZES}
    tensor = sizes["tensor-model-parallel-size"]
    model, unsaid = model_arguments(plan.model, seq=plan.seq, tensor=tensor)
    chosen, less = policies(framework, plan, roles)
    settings = {
        **model,
        "seq-length": plan.seq,
        **_batch(plan, roles),
        **sizes,
        **_tensor(roles),
        **_context(roles),
        **stage_settings(plan.model.num_layers, plan.stages, plan.virtual),
        **_group(plan),
        **chosen,
        **_sharded(roles),
    }
    stored = _check(plan, settings)
    stored = [] if any(loss.what.startswith("recipe") for loss in less) else stored
    losses = (*unsaid, *lost, *less, *stored, *_differs(roles))
    text = f"#!/bin/bash\n{comments(framework, title(plan), losses)}\n"
    return Export(framework, settings, text + _script(settings, roles.mesh.slice), losses)


def _check_hardware(on: Slice) -> None:
    if on.chip.torus:
        raise UsageError(
            f"Megatron-LM runs on GPUs, and the plan is for {on}",
            hint="plan on GPUs, such as --on h100:8x16, or export --to maxtext",
        )


def _check(plan: Plan, settings: Settings) -> list[Loss]:
    """Reads the settings again; what is not the plan is refused by name, but for the recipe."""
    arguments = Arguments(dict(settings), {key: f"--{key}" for key in settings})
    try:
        found = import_megatron(arguments, on=plan.placed().slice, model=plan.model)
    except UsageError as error:
        raise _refused(plan, f"{plan.layout} on mesh {plan.mesh}: {error}") from None
    changed = [*changed_layout(plan, found), *changed_parts(plan, found)]
    stored = [x for x in changed if x.what.startswith("recipe")]
    wrong = [x for x in changed if x not in stored]
    wrong += [x for x in found.losses if x.what.startswith("stages of")]
    if wrong:
        raise _refused(plan, "; ".join(f"{x.what} {x.because}" for x in wrong))
    return stored


def _refused(plan: Plan, because: str) -> UsageError:
    hint = (
        "its ranks count tensor, context, data, pipeline from the inside, and experts take tensor,"
        " context, then data ranks"
    )
    for row, other in enumerate(plan.alternatives, 2):
        if _can_run(plan, row):
            hint += f"; {other.layout} on mesh {other.mesh} lies so: --row {row}"
            break
    return UsageError(f"Megatron-LM cannot run this plan: {because}", hint=hint)


def _can_run(plan: Plan, row: int) -> bool:
    try:
        export_megatron(row_of_plan(plan, row))
    except UsageError:
        return False
    return True


def _group(plan: Plan) -> Settings:
    """Microbatches that pass a chunk in a row, where they are not as many as stages."""
    group = group_size(plan.stages, plan.microbatches)
    if plan.schedule != "interleaved":
        return {}
    if plan.microbatches % group:
        because = f"{plan.microbatches} microbatches are not whole groups of {plan.stages} or more"
        raise _refused(plan, f"interleaved, {because}")
    return {} if group == plan.stages else {GROUP: group}


def _batch(plan: Plan, roles: Roles) -> Settings:
    ranks = roles.ways(roles.serving("dp", "fsdp"))
    size, broken = divmod(plan.batch, ranks * plan.microbatches)
    if broken or not size:
        raise _refused(
            plan,
            f"{plan.microbatches} microbatches of {plan.batch} sequences on each of {ranks} data"
            " ranks are not whole sequences",
        )
    return {"micro-batch-size": size, "global-batch-size": plan.batch}


def _tensor(roles: Roles) -> Settings:
    settings: Settings = {}
    if roles.serving("tp", "sp"):
        settings["sequence-parallel"] = True
    tensor, experts = set(roles.serving("tp", "sp", "mp")), set(roles.serving("ep"))
    if tensor & experts:
        settings["expert-tensor-parallel-size"] = roles.ways(tensor - experts)
    return settings


def _context(roles: Roles) -> Settings:
    """Keys and values are gathered, as a plain cp does, or passed around a ring."""
    if roles.serving("ulysses"):
        return {"cp-comm-type": "a2a"}
    how = "p2p" if roles.modes.get("cp") == "ring" else "all_gather"
    return {"cp-comm-type": how} if roles.serving("cp") else {}


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


def _script(settings: Settings, on: Slice) -> str:
    """The arguments one on a line, and the command that each node runs."""
    nodes = on.num_chips // on.shape[0]
    lines = [f"    {_argument(key, value)}" for key, value in settings.items()]
    return "\n".join(
        (
            "# Each node runs this with its NODE_RANK and the MASTER_ADDR of the first; arguments",
            "# of the data, the tokenizer and the optimizer come after its name.",
            *_environment(settings),
            f"GPUS_PER_NODE={on.shape[0]}",
            f"NNODES={nodes}",
            *("ARGS=(", *lines, ")"),
            "torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES \\",
            "    --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} \\",
            "    --master-port ${MASTER_PORT:-29500} \\",
            '    pretrain_gpt.py "${ARGS[@]}" "$@"\n',
        )
    )


def _environment(settings: Settings) -> Sequence[str]:
    """What Megatron-LM asserts before Blackwell, and forbids with FSDP."""
    splits = max(
        int(settings[key]) for key in ("tensor-model-parallel-size", "context-parallel-size")
    )
    if splits == 1 or "use-megatron-fsdp" in settings:
        return ()
    return ("export CUDA_DEVICE_MAX_CONNECTIONS=1",)


# The sizes of a model as arguments of Megatron-LM.

_MULTIPLE = 128  # of which, times the tensor ranks, the vocabulary is made a multiple


def model_arguments(model: ModelSpec, *, seq: int, tensor: int) -> tuple[Settings, list[Loss]]:
    """The arguments of a decoder with one kind of attention, and what they leave out."""
    longest = max(seq, model.max_seq or 0, model.num_positions)
    sizes, losses = plain_sizes(model, positions=longest)
    width = sizes.mlp or (sizes.moe.expert if sizes.moe else None)
    assert width is not None, "a layer has an MLP or experts"
    settings: Settings = {
        "num-layers": sizes.num_layers,
        "hidden-size": model.d_model,
        "ffn-hidden-size": width.width,
        **_attention(sizes.attention),
        **(_experts(sizes, sizes.moe) if sizes.moe else {}),
        "vocab-size": model.vocab,
        **_padding(model, tensor),
        "max-position-embeddings": longest,
        **_positions(model, sizes.attention),
        "normalization": "RMSNorm" if model.norm.kind == "rms" else "LayerNorm",
    }
    if width.is_gated:
        settings["swiglu"] = True
    if not model.is_tied:
        settings["untie-embeddings-and-output-weights"] = True
    return settings | _biases(sizes, width), losses + _unsaid(model, sizes)


def _padding(model: ModelSpec, tensor: int) -> Settings:
    """The largest multiple up to the default that leaves the vocabulary as it is, else 1."""
    fits = [n for n in (128, 64, 32, 16, 8, 4, 2) if model.vocab % (n * tensor) == 0]
    multiple = fits[0] if fits else 1
    return {} if multiple == _MULTIPLE else {"make-vocab-size-divisible-by": multiple}


def _positions(model: ModelSpec, attention: Attention) -> Settings:
    """The base of rotary positions is written where it was read; a preset has sizes alone."""
    if model.num_positions:
        return {"position-embedding-type": "learned_absolute"}
    if attention.rope is None:
        return {"position-embedding-type": "none"}
    rotary: Settings = {"position-embedding-type": "rope"}
    if has_numbers(model):
        rotary["rotary-base"] = round(attention.rope.theta)  # an int there
    return rotary


def _attention(attention: Attention) -> Settings:
    settings: Settings = {"num-attention-heads": attention.num_heads}
    if attention.qk_norm:
        settings["qk-layernorm"] = True
    latent = attention.latent
    if latent is None:
        shared = attention.num_kv_heads < attention.num_heads
        groups: Settings = {"num-query-groups": attention.num_kv_heads}
        grouped: Settings = {"group-query-attention": True, **groups} if shared else {}
        return settings | grouped | {"kv-channels": attention.head_dim}
    ranks: Settings = {"q-lora-rank": latent.query_rank} if latent.query_rank else {}
    return settings | {
        "multi-latent-attention": True,
        **ranks,
        "kv-lora-rank": latent.kv_rank,
        "qk-head-dim": attention.head_dim,
        "qk-pos-emb-head-dim": latent.rope_dim,
        "v-head-dim": latent.value_dim,
    }


def _experts(sizes: ModelSizes, moe: Moe) -> Settings:
    settings: Settings = {
        "num-experts": moe.num_experts,
        "moe-router-topk": moe.experts_per_token,
        "moe-ffn-hidden-size": moe.expert.width,
        "moe-token-dispatcher-type": "alltoall",
    }
    if moe.shared:
        settings["moe-shared-expert-intermediate-size"] = moe.shared.width
    if moe.has_shared_gate:
        settings["moe-shared-expert-gate"] = True
    if sizes.num_dense:
        routed = sizes.num_layers - sizes.num_dense
        settings["moe-layer-freq"] = f"([0]*{sizes.num_dense}+[1]*{routed})"
    return settings


def _biases(sizes: ModelSizes, mlp: Mlp) -> Settings:
    attention = sizes.attention
    if mlp.has_bias and attention.qkv_bias and attention.out_bias:
        return {}
    settings: Settings = {"disable-bias-linear": True}
    return settings | ({"add-qkv-bias": True} if attention.qkv_bias else {})


def _unsaid(model: ModelSpec, sizes: ModelSizes) -> list[Loss]:
    attention, mlp = sizes.attention, sizes.mlp
    some = [attention.out_bias, mlp.has_bias if mlp else False]
    what = f"model {model.name}"
    losses = [Loss(what, _numbers(model), is_material=False)]
    if any(some) and not (all(some) and attention.qkv_bias):
        losses.append(Loss(what, "there is one switch for all biases but those of q, k and v"))
    return losses


def _numbers(model: ModelSpec) -> str:
    if has_numbers(model):
        return "of what is no size only the base of rotary positions is written, if there is one"
    return "the base of rotary positions is not known; a model from a config.json has it"
