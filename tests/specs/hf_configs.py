"""Configs of published models, full size, in the form of their config.json files.

The sizes are those of the presets, whose `source` says where they were read; the files themselves
are not copied. Some configs keep keys that change no size, because a reader must know them.
"""

from typing import Any

Config = dict[str, Any]  # JSON


def _llama(
    d_model: int, ff: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> Config:
    """The six numbers that most configs differ in."""
    return {
        "model_type": "llama",
        "hidden_size": d_model,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **more,
    }


_GEMMA_LAYERS = ["sliding_attention"] * 5 + ["full_attention"]
_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0",
    "use_cache": True,
}
_LLAMA31 = {**_LLAMA3, "max_position_embeddings": 131072}
_MISTRAL: Config = {"model_type": "mistral", "max_position_embeddings": 32768}
_MIXTRAL: Config = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN2: Config = {
    "model_type": "qwen2",
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
_QWEN3: Config = {
    "model_type": "qwen3",
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_QWEN3_MOE: Config = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.001,
}
_GEMMA2: Config = {
    "model_type": "gemma2",
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3: Config = {
    "model_type": "gemma3_text",
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "tie_word_embeddings": True,
}
_DEEPSEEK: Config = {
    "attention_bias": False,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
}
_MOONSHOT: Config = {
    **_DEEPSEEK,
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_GLM4: Config = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "topk_group": 1,
}
_LLAMA4: Config = {
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "intermediate_size_mlp": 16384,
    "no_rope_layer_interval": 4,
    "num_experts_per_tok": 1,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
_GPT_OSS: Config = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "initial_context_length": 4096,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
_OLMO2: Config = {
    "model_type": "olmo2",
    "attention_bias": False,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_MPT: Config = {
    "model_type": "mpt",
    "expansion_ratio": 4,
    "no_bias": True,
    "learned_pos_emb": True,
    "norm_type": "low_precision_layernorm",
    "attn_config": {"alibi": True, "attn_impl": "torch", "attn_type": "multihead_attention"},
    "vocab_size": 50432,
}

_FOUNDRY: Config = {**_MPT, "vocab_size": 50368, "max_seq_len": 2048}

CONFIGS: dict[str, Config] = {
    "llama2-7b": _llama(4096, 11008, 32, 32, 32, 32000, max_position_embeddings=4096),
    "llama2-13b": _llama(5120, 13824, 40, 40, 40, 32000, max_position_embeddings=4096),
    "llama2-70b": _llama(8192, 28672, 80, 64, 8, 32000, max_position_embeddings=4096),
    "llama3-8b": _llama(4096, 14336, 32, 32, 8, 128256, **_LLAMA3),
    "llama3-70b": _llama(8192, 28672, 80, 64, 8, 128256, **_LLAMA3),
    "llama3.1-8b": _llama(4096, 14336, 32, 32, 8, 128256, **_LLAMA31),
    "llama3.1-70b": _llama(8192, 28672, 80, 64, 8, 128256, **_LLAMA31),
    "llama3.1-405b": _llama(16384, 53248, 126, 128, 8, 128256, **_LLAMA31, mlp_bias=False),
    "llama3.2-1b": _llama(2048, 8192, 16, 32, 8, 128256)
    | {**_LLAMA31, "head_dim": 64, "tie_word_embeddings": True},
    "llama3.2-3b": _llama(3072, 8192, 28, 24, 8, 128256)
    | {**_LLAMA31, "head_dim": 128, "tie_word_embeddings": True},
    "llama4-scout": _llama(5120, 8192, 48, 40, 8, 202048)
    | _LLAMA4
    | {"num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True},
    "llama4-maverick": _llama(5120, 8192, 48, 40, 8, 202048)
    | _LLAMA4
    | {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False},
    "mistral-7b": _llama(4096, 14336, 32, 32, 8, 32000) | _MISTRAL | {"sliding_window": 4096},
    "mixtral-8x7b": _llama(4096, 14336, 32, 32, 8, 32000)
    | _MIXTRAL
    | {"max_position_embeddings": 32768, "sliding_window": None},
    "mixtral-8x22b": _llama(6144, 16384, 56, 48, 8, 32768)
    | _MIXTRAL
    | {"max_position_embeddings": 65536, "sliding_window": None},
    "qwen-7b": _llama(4096, 11008, 32, 32, 32, 151936) | _QWEN2,
    "qwen2-7b": _llama(3584, 18944, 28, 28, 4, 152064) | _QWEN2,
    "qwen2-72b": _llama(8192, 29568, 80, 64, 8, 152064) | _QWEN2,
    "qwen2.5-32b": _llama(5120, 27648, 64, 40, 8, 152064) | _QWEN2,
    "qwen3-8b": _llama(4096, 12288, 36, 32, 8, 151936) | _QWEN3,
    "qwen3-32b": _llama(5120, 25600, 64, 64, 8, 151936) | _QWEN3,
    "qwen3-30b-a3b": _llama(2048, 6144, 48, 32, 4, 151936)
    | {**_QWEN3_MOE, "moe_intermediate_size": 768},
    "qwen3-235b-a22b": _llama(4096, 12288, 94, 64, 4, 151936)
    | {**_QWEN3_MOE, "moe_intermediate_size": 1536},
    "qwen3-coder-480b-a35b": _llama(6144, 8192, 62, 96, 8, 151936)
    | {**_QWEN3_MOE, "num_experts": 160, "moe_intermediate_size": 2560},
    "gemma-2b": _llama(2048, 16384, 18, 8, 1, 256000, model_type="gemma", head_dim=256),
    "gemma-7b": _llama(3072, 24576, 28, 16, 16, 256000, model_type="gemma", head_dim=256),
    "gemma2-9b": _llama(3584, 14336, 42, 16, 8, 256000) | _GEMMA2 | {"head_dim": 256},
    "gemma2-27b": _llama(4608, 36864, 46, 32, 16, 256000) | _GEMMA2 | {"head_dim": 128},
    "gemma3-4b": _llama(2560, 10240, 34, 8, 4, 262208)
    | _GEMMA3
    | {"head_dim": 256, "layer_types": (_GEMMA_LAYERS * 6)[:34]},
    "gemma3-12b": _llama(3840, 15360, 48, 16, 8, 262208)
    | _GEMMA3
    | {"head_dim": 256, "layer_types": _GEMMA_LAYERS * 8},
    "gemma3-27b": _llama(5376, 21504, 62, 32, 16, 262208)
    | _GEMMA3
    | {"head_dim": 128, "layer_types": (_GEMMA_LAYERS * 11)[:62]},
    "deepseek-v2": _llama(5120, 12288, 60, 128, 128, 102400)
    | _DEEPSEEK
    | {
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "n_group": 8,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
    },
    "deepseek-v2-lite": _llama(2048, 10944, 27, 16, 16, 102400)
    | _DEEPSEEK
    | {
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
    },
    "kimi-k2": _llama(7168, 18432, 61, 64, 64, 163840)
    | _MOONSHOT
    | {
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.827,
    },
    "moonlight-16b-a3b": _llama(2048, 11264, 27, 16, 16, 163840)
    | _MOONSHOT
    | {
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
    },
    "glm-4.5": _llama(5120, 12288, 92, 96, 8, 151552)
    | _GLM4
    | {
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
    },
    "glm-4.5-air": _llama(4096, 10944, 46, 96, 8, 151552)
    | _GLM4
    | {
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": False,
    },
    "deepseek-v3": _llama(7168, 18432, 61, 128, 128, 129280)
    | _DEEPSEEK
    | {
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "n_group": 8,
        "topk_group": 4,
    },
    "gpt-oss-20b": _llama(2880, 2880, 24, 64, 8, 201088) | _GPT_OSS | {"num_local_experts": 32},
    "gpt-oss-120b": _llama(2880, 2880, 36, 64, 8, 201088) | _GPT_OSS | {"num_local_experts": 128},
    "olmo2-7b": _llama(4096, 11008, 32, 32, 32, 100352) | _OLMO2,
    "olmo2-13b": _llama(5120, 13824, 40, 40, 40, 100352) | _OLMO2,
    "olmo2-32b": _llama(5120, 27648, 64, 40, 8, 100352) | _OLMO2,
    "phi3-mini": _llama(3072, 8192, 32, 32, 32, 32064)
    | {"model_type": "phi3", "sliding_window": 2047, "max_position_embeddings": 4096},
    "phi4": _llama(5120, 17920, 40, 40, 10, 100352)
    | {"model_type": "phi3", "sliding_window": None, "max_position_embeddings": 16384},
    "mpt-125m": _FOUNDRY | {"d_model": 768, "n_heads": 12, "n_layers": 12},
    "mpt-350m": _FOUNDRY | {"d_model": 1024, "n_heads": 16, "n_layers": 24},
    "mpt-760m": _FOUNDRY | {"d_model": 1536, "n_heads": 12, "n_layers": 24},
    "mpt-1b": _FOUNDRY | {"d_model": 2048, "n_heads": 16, "n_layers": 24},
    "mpt-3b": _FOUNDRY | {"d_model": 2560, "n_heads": 20, "n_layers": 32},
    "mpt-13b": _FOUNDRY | {"d_model": 5120, "n_heads": 40, "n_layers": 40},
    "mpt-70b": _FOUNDRY | {"d_model": 8192, "n_heads": 64, "n_layers": 80},
    "mpt-7b": _MPT | {"d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048},
    "mpt-30b": _MPT | {"d_model": 7168, "n_heads": 64, "n_layers": 48, "max_seq_len": 8192},
    "gpt3-175b": {
        "model_type": "gpt2",
        "n_embd": 12288,
        "n_head": 96,
        "n_layer": 96,
        "n_inner": None,
        "n_positions": 2048,
        "vocab_size": 50304,
    },
    "mt-nlg-530b": {
        "model_type": "gpt2",
        "n_embd": 20480,
        "n_head": 128,
        "n_layer": 105,
        "n_inner": None,
        "n_positions": 2048,
        "vocab_size": 51200,
    },
}

# Families that no preset is of.
WITHOUT_PRESET: dict[str, Config] = {
    "qwen2-57b-a14b": _llama(3584, 18944, 28, 28, 4, 151936)
    | {
        **_QWEN2,
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    "glm4-9b": _llama(4096, 13696, 40, 32, 2, 151552)
    | {
        "model_type": "glm4",
        "attention_bias": True,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
    },
    "granite3-8b": _llama(4096, 12800, 40, 32, 8, 49155)
    | {
        "model_type": "granite",
        "attention_bias": False,
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "logits_scaling": 16.0,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "residual_multiplier": 0.22,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
}
