"""A folder as Hugging Face has it: a tiny Llama with random weights and a byte-level tokenizer."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, USER = "<|begin|>", "<|end|>", "<|user|>"
VOCAB = 384
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['content'] == 'refuse me' %}{{ raise_exception('I will not') }}{% endif %}"
    "<|user|>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_TEXT = [
    "the cat sat on the mat, and the dog ran after the cat",
    "how to scale your model: a systems view of language models",
    "naïve café 你好 世界 🙂🚀 здравствуй",
] * 20
_CONFIG: dict[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
}


def make_tokenizer() -> Tokenizer:
    """Byte-level, so that any byte can come out, in any order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS, EOS, USER],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore
        single=f"{BOS} $A", special_tokens=[(BOS, 0)]
    )
    return tokenizer


def make_folder(folder: Path, *, seed: int = 0) -> Path:
    """Everything that `rooflight serve` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    names = {"chat_template": TEMPLATE, "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    save_file(_weights(seed), str(folder / "model.safetensors"))
    return folder


def _weights(seed: int) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]:
    rng = np.random.default_rng(seed)
    d, f, h, k = 32, 64, 32, 16
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, d),
        "model.norm.weight": (d,),
        "lm_head.weight": (VOCAB, d),
    }
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (h, d),
            f"{at}.self_attn.k_proj.weight": (k, d),
            f"{at}.self_attn.v_proj.weight": (k, d),
            f"{at}.self_attn.o_proj.weight": (d, h),
            f"{at}.mlp.gate_proj.weight": (f, d),
            f"{at}.mlp.up_proj.weight": (f, d),
            f"{at}.mlp.down_proj.weight": (d, f),
            f"{at}.input_layernorm.weight": (d,),
            f"{at}.post_attention_layernorm.weight": (d,),
        }
    return {
        name: np.ones(shape, np.float32)
        if "norm" in name
        else rng.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
