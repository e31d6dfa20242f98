"""What Hugging Face calls our weights, family by family; and what it stores that we leave out.

In: a `model_type` and a name of the graph. Out: forms (`hf_forms`), the published one first; a file
may use any of them. Names inside a layer stand without `model.layers.N.`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rooflight.errors import UnknownNameError

Forms = tuple[str, ...]


class Prefix(NamedTuple):
    """What stands before the names of a text model that may be a part of a larger one."""

    model: str
    head: str


PREFIXES = (
    Prefix("model.", ""),
    Prefix("language_model.model.", "language_model."),
    Prefix("model.language_model.", ""),
)

FRAME: Mapping[str, Forms] = {
    "embedding.W_embed": ("{model}embed_tokens.weight[V,D]",),
    "final_norm.Scale": ("{model}norm.weight[D]",),
    "head.W_head": ("{head}lm_head.weight[V,D]",),
}

_HEADS: Mapping[str, Forms] = {
    "attention.W_q": ("self_attn.q_proj.weight[K G H,D]",),
    "attention.W_k": ("self_attn.k_proj.weight[K H,D]",),
    "attention.W_v": ("self_attn.v_proj.weight[K H,D]",),
    "attention.W_o": ("self_attn.o_proj.weight[D,K G H]",),
    "attention.B_q": ("self_attn.q_proj.bias[K G H]",),
    "attention.B_k": ("self_attn.k_proj.bias[K H]",),
    "attention.B_v": ("self_attn.v_proj.bias[K H]",),
    "attention.B_o": ("self_attn.o_proj.bias[D]",),
}
_FUSED_HEADS: Mapping[str, Forms] = {
    "attention.W_q": ("self_attn.qkv_proj.weight[*K G H|K H|K H,D]",),
    "attention.W_k": ("self_attn.qkv_proj.weight[K G H|*K H|K H,D]",),
    "attention.W_v": ("self_attn.qkv_proj.weight[K G H|K H|*K H,D]",),
    "attention.W_o": ("self_attn.o_proj.weight[D,K G H]",),
}
_QK_NORMS: Mapping[str, Forms] = {
    "attention.Q_scale": ("self_attn.q_norm.weight[H]",),
    "attention.K_scale": ("self_attn.k_norm.weight[H]",),
}
_QK_NORMS_ALL: Mapping[str, Forms] = {
    "attention.Q_scale": ("self_attn.q_norm.weight[K G H]",),
    "attention.K_scale": ("self_attn.k_norm.weight[K H]",),
}
_LATENT: Mapping[str, Forms] = {
    "attention.W_dq": ("self_attn.q_a_proj.weight[Q,D]",),
    "attention.B_dq": ("self_attn.q_a_proj.bias[Q]",),
    "attention_q_norm.Scale": ("self_attn.q_a_layernorm.weight[Q]",),
    "attention.W_uq": ("self_attn.q_b_proj.weight[N H+P,Q]", "self_attn.q_proj.weight[N H+P,D]"),
    "attention.W_qr": ("self_attn.q_b_proj.weight[N H+P,Q]", "self_attn.q_proj.weight[N H+P,D]"),
    "attention.W_dkv": ("self_attn.kv_a_proj_with_mqa.weight[R+P,D]",),
    "attention.W_kr": ("self_attn.kv_a_proj_with_mqa.weight[R+P,D]",),
    "attention.B_dkv": ("self_attn.kv_a_proj_with_mqa.bias[R+P]",),
    "attention.B_kr": ("self_attn.kv_a_proj_with_mqa.bias[R+P]",),
    "attention_kv_norm.Scale": ("self_attn.kv_a_layernorm.weight[R]",),
    "attention.W_uk": ("self_attn.kv_b_proj.weight[N H+Hv,R]",),
    "attention.W_uv": ("self_attn.kv_b_proj.weight[N H+Hv,R]",),
    "attention.W_o": ("self_attn.o_proj.weight[D,N Hv]",),
    "attention.B_o": ("self_attn.o_proj.bias[D]",),
}
_NORMS: Mapping[str, Forms] = {
    "attention_in_norm.Scale": ("input_layernorm.weight[D]",),
    "mlp_in_norm.Scale": ("post_attention_layernorm.weight[D]",),
}
_SANDWICH: Mapping[str, Forms] = {
    "attention_in_norm.Scale": ("input_layernorm.weight[D]",),
    "attention_out_norm.Scale": ("post_attention_layernorm.weight[D]",),
    "mlp_in_norm.Scale": ("pre_feedforward_layernorm.weight[D]",),
    "mlp_out_norm.Scale": ("post_feedforward_layernorm.weight[D]",),
}
_GLM_SANDWICH: Mapping[str, Forms] = {
    **_NORMS,
    "attention_out_norm.Scale": ("post_self_attn_layernorm.weight[D]",),
    "mlp_out_norm.Scale": ("post_mlp_layernorm.weight[D]",),
}
_AFTER: Mapping[str, Forms] = {
    "attention_out_norm.Scale": ("post_attention_layernorm.weight[D]",),
    "mlp_out_norm.Scale": ("post_feedforward_layernorm.weight[D]",),
}
_MLP: Mapping[str, Forms] = {
    "mlp.W_gate": ("mlp.gate_proj.weight[F,D]",),
    "mlp.W_in": ("mlp.up_proj.weight[F,D]",),
    "mlp.W_out": ("mlp.down_proj.weight[D,F]",),
    "mlp.B_gate": ("mlp.gate_proj.bias[F]",),
    "mlp.B_in": ("mlp.up_proj.bias[F]",),
    "mlp.B_out": ("mlp.down_proj.bias[D]",),
}
_FUSED_MLP: Mapping[str, Forms] = {
    "mlp.W_gate": ("mlp.gate_up_proj.weight[0/2 F,D]",),
    "mlp.W_in": ("mlp.gate_up_proj.weight[1/2 F,D]",),
    "mlp.W_out": ("mlp.down_proj.weight[D,F]",),
}
# A module that has all its experts in one tensor stores them so where nobody converts them back.
_STACKED: Mapping[str, Forms] = {
    "experts.W_gate": ("mlp.experts.gate_up_proj[E,0/2 Fe,D]",),
    "experts.W_in": ("mlp.experts.gate_up_proj[E,1/2 Fe,D]",),
    "experts.W_out": ("mlp.experts.down_proj[E,D,Fe]",),
}
_MIXTRAL: Mapping[str, Forms] = {
    "router.W_router": ("block_sparse_moe.gate.weight[E,D]", "mlp.gate.weight[E,D]"),
    "experts.W_gate": ("block_sparse_moe.experts.{E}.w1.weight[Fe,D]", *_STACKED["experts.W_gate"]),
    "experts.W_in": ("block_sparse_moe.experts.{E}.w3.weight[Fe,D]", *_STACKED["experts.W_in"]),
    "experts.W_out": ("block_sparse_moe.experts.{E}.w2.weight[D,Fe]", *_STACKED["experts.W_out"]),
}
_DEEPSEEK: Mapping[str, Forms] = {
    "router.W_router": ("mlp.gate.weight[E,D]",),
    "router.B_choice": ("mlp.gate.e_score_correction_bias[E]",),
    "experts.W_gate": ("mlp.experts.{E}.gate_proj.weight[Fe,D]", *_STACKED["experts.W_gate"]),
    "experts.W_in": ("mlp.experts.{E}.up_proj.weight[Fe,D]", *_STACKED["experts.W_in"]),
    "experts.W_out": ("mlp.experts.{E}.down_proj.weight[D,Fe]", *_STACKED["experts.W_out"]),
    "shared.W_gate": ("mlp.shared_experts.gate_proj.weight[Fs,D]",),
    "shared.W_in": ("mlp.shared_experts.up_proj.weight[Fs,D]",),
    "shared.W_out": ("mlp.shared_experts.down_proj.weight[D,Fs]",),
}
_QWEN2_MOE: Mapping[str, Forms] = {
    **_DEEPSEEK,
    "shared.W_gate": ("mlp.shared_expert.gate_proj.weight[Fs,D]",),
    "shared.W_in": ("mlp.shared_expert.up_proj.weight[Fs,D]",),
    "shared.W_out": ("mlp.shared_expert.down_proj.weight[D,Fs]",),
    "shared.W_shared_gate": ("mlp.shared_expert_gate.weight[0/1,D]",),
}
# Gate and up in turn, row by row; packed four-bit blocks have the contracted dim last.
_GPT_OSS: Mapping[str, Forms] = {
    "attention.Sinks": ("self_attn.sinks[K G]",),
    "router.W_router": ("mlp.router.weight[E,D]",),
    "router.B_router": ("mlp.router.bias[E]",),
    "experts.W_gate": (
        "mlp.experts.gate_up_proj[E,D,Fe 0/2]",
        "mlp.experts.gate_up_proj_blocks[E,Fe 0/2,D]",
    ),
    "experts.W_in": (
        "mlp.experts.gate_up_proj[E,D,Fe 1/2]",
        "mlp.experts.gate_up_proj_blocks[E,Fe 1/2,D]",
    ),
    "experts.W_out": ("mlp.experts.down_proj[E,Fe,D]", "mlp.experts.down_proj_blocks[E,D,Fe]"),
    "experts.B_gate": ("mlp.experts.gate_up_proj_bias[E,Fe 0/2]",),
    "experts.B_in": ("mlp.experts.gate_up_proj_bias[E,Fe 1/2]",),
    "experts.B_out": ("mlp.experts.down_proj_bias[E,D]",),
}

LAYERS: Mapping[str, Mapping[str, Forms]] = {
    "llama": {**_HEADS, **_NORMS, **_MLP},
    "mistral": {**_HEADS, **_NORMS, **_MLP},
    "mixtral": {**_HEADS, **_NORMS, **_MIXTRAL},
    "qwen2": {**_HEADS, **_NORMS, **_MLP},
    "qwen3_moe": {**_HEADS, **_QK_NORMS, **_NORMS, **_MLP, **_DEEPSEEK},
    "qwen2_moe": {**_HEADS, **_NORMS, **_MLP, **_QWEN2_MOE},
    "glm4_moe": {**_HEADS, **_QK_NORMS, **_NORMS, **_MLP, **_DEEPSEEK},
    "gemma": {**_HEADS, **_NORMS, **_MLP},
    "gemma2": {**_HEADS, **_SANDWICH, **_MLP},
    "phi3": {**_FUSED_HEADS, **_NORMS, **_FUSED_MLP},
    "glm4": {**_HEADS, **_GLM_SANDWICH, **_FUSED_MLP},
    "granite": {**_HEADS, **_NORMS, **_MLP},
    "olmo2": {**_HEADS, **_QK_NORMS_ALL, **_AFTER, **_MLP},
    "qwen3": {**_HEADS, **_QK_NORMS, **_NORMS, **_MLP},
    "gemma3_text": {**_HEADS, **_QK_NORMS, **_SANDWICH, **_MLP},
    "deepseek_v2": {**_LATENT, **_NORMS, **_MLP, **_DEEPSEEK},
    "deepseek_v3": {**_LATENT, **_NORMS, **_MLP, **_DEEPSEEK},
    "gpt_oss": {**_HEADS, **_NORMS, **_GPT_OSS},
}
_OUTER = {"gemma3": "gemma3_text"}  # a text model inside one that also sees
_SAME = {"kimi_k2": "deepseek_v3"}  # another name of a family

# Patterns of whole names, and why a text model has no use for them.
LEFT_OUT: Mapping[str, str] = {
    r".*\.rotary_emb\.inv_freq": "computed from the config",
    r"(model\.)?(vision_tower|multi_modal_projector)\..*": "the part that sees",
}


def layer_forms(family: str) -> Mapping[str, Forms]:
    """The forms of every weight that a layer of this family may have."""
    inner = (_OUTER | _SAME).get(family, family)
    if inner not in LAYERS:
        raise UnknownNameError("family of checkpoints", family, (*LAYERS, *_OUTER, *_SAME))
    return LAYERS[inner]
