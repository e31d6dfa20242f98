# pyright: reportMissingTypeStubs=false
# torch and transformers annotate their own functions only in part.
"""Tiny models of `transformers` with random weights: every family, and options of some."""

import importlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

Config = dict[str, Any]  # JSON
Tokens = np.ndarray[Any, np.dtype[np.int64]]

VOCAB = 96
_SIZES: Config = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": None,  # torch would give the row of this token no gradient
}
_LATENT: Config = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
_EXPERTS: Config = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SOME_EXPERTS: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
    "original_max_position_embeddings": 32,
}
_GLOBAL = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
_LOCAL = {"rope_type": "default", "rope_theta": 10_000.0}

# The first of each family has its published options; the others have what some models have.
MODELS: dict[str, Config] = {
    "llama": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "mistral": {"model_type": "mistral", "sliding_window": 7},
    "mixtral": {"model_type": "mixtral", **_EXPERTS},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SOME_EXPERTS,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "gemma2": {
        "model_type": "gemma2",
        "num_hidden_layers": 6,
        "sliding_window": 5,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 5.0,
    },
    "olmo2": {"model_type": "olmo2"},
    "phi3": {"model_type": "phi3", "sliding_window": 7},
    "glm4": {"model_type": "glm4"},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.5,
        "logits_scaling": 0.4,
        "mlp_bias": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 8,  # a whole pattern, and the beginning of another
        "sliding_window": 5,
        "query_pre_attn_scalar": 16,
        "rope_parameters": {"full_attention": _GLOBAL, "sliding_attention": _LOCAL},
    },
    "gemma": {"model_type": "gemma", "num_hidden_layers": 6},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **_SOME_EXPERTS,
        "shared_expert_intermediate_size": 24,
        "mlp_only_layers": [0],
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 0,
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        **{k: v for k, v in _LATENT.items() if k != "num_nextn_predict_layers"},
        "rope_parameters": _YARN,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 2.0,
    },
    "deepseek_v3": {"model_type": "deepseek_v3", "rope_parameters": _YARN, **_LATENT},
    "gpt_oss": {"model_type": "gpt_oss", "sliding_window": 6, **_EXPERTS},
}
OPTIONS: dict[str, Config] = {
    "phi3 with longrope, half turned": {
        "model_type": "phi3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope",
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.25],
            "long_factor": [2.0, 4.0],
        },
    },
    "qwen2 with windows, tied": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "llama with biases, tied": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "qwen3 with windows": {
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
        "attention_bias": True,
    },
    "qwen3_moe with windows, every other layer": {
        "model_type": "qwen3_moe",
        **_SOME_EXPERTS,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": 6,
        "attention_bias": True,
    },
    "deepseek without a query latent": {
        "model_type": "deepseek_v3",
        **_LATENT,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
    },
    "gemma with a cap": {
        "model_type": "gemma3_text",
        "sliding_window": 5,
        "final_logit_softcapping": 5.0,
    },
}


def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.ERROR)


def save_model(folder: Path, options: Config, *, max_shard_size: str = "60KB") -> Any:
    """A random model of `transformers`, saved; every vector is random too."""
    torch.manual_seed(0)
    sizes = dict(_SIZES)
    if options["model_type"].startswith("deepseek"):
        del sizes["head_dim"]  # that of its rotary part there
    config = transformers.AutoConfig.for_model(**sizes | options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():
        for name, values in model.state_dict().items():  # not the rotary tables
            if values.ndim == 1 or name.endswith("_bias"):
                values += 0.2 * torch.rand_like(values)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def load_model(folder: Path) -> Any:
    """What `transformers` makes of a folder that we wrote."""
    read: Any = transformers.AutoModelForCausalLM.from_pretrained
    model, report = read(folder, attn_implementation="eager", output_loading_info=True)
    gaps = {k: v for k, v in report.items() if v}
    assert not gaps, gaps
    return model.eval()


def logits_of(model: Any, tokens: Tokens, lengths: list[int]) -> Any:
    """Logits of sequences of different lengths, padded at their ends."""
    mask = np.arange(tokens.shape[1]) < np.array(lengths)[:, None]
    with torch.no_grad():
        out = model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(int)))
    return out.logits.numpy()


def save_gradients(model: Any, folder: Path, tokens: Tokens, lengths: list[int]) -> float:
    """The loss of a step, and its gradients, saved as the weights they are of."""
    mask = np.arange(tokens.shape[1]) < np.array(lengths)[:, None]
    logits = model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask + 0)).logits
    real = torch.from_numpy(mask[:, 1:])
    targets = torch.from_numpy(tokens[:, 1:])[real]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1][real], targets)
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        for table in model.buffers():  # no gradient reaches them
            table.zero_()
    model.save_pretrained(folder)
    return float(loss.detach())


def decode_packed(blocks: Any, scales: Any) -> Any:
    """Four-bit weights as `transformers` reads them; bf16 holds them exactly."""
    module = importlib.import_module("transformers.integrations.mxfp4")
    arrays = (torch.from_numpy(a) for a in (blocks, scales))
    return module.convert_moe_packed_tensors(*arrays).float().numpy()


def tensor_shapes(config: Config) -> dict[str, Any]:
    """The tensors of a model as it is in memory, which has shapes and no data."""
    with torch.device("meta"):
        described = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(described)
    tied = {"lm_head.weight"} if described.tie_word_embeddings else set[str]()
    return {n: t for n, t in model.state_dict().items() if n not in tied}
