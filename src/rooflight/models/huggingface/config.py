"""`HfConfig`: a Hugging Face config.json, read key by key, each key accounted for.

In: a parsed file. Out: checked values, and the keys that nobody asked for. A key is either read,
known not to change sizes (`IRRELEVANT`), or reported.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from rooflight.errors import UsageError

# Names, token ids, numerics, initialisation, dropout, generation and bookkeeping.
_IRRELEVANT = """
_attn_implementation_autoset _name_or_path activation_function add_cross_attention architectures
attention_dropout attention_multiplier attn_implementation attn_logit_softcapping attn_pdrop
auto_map aux_loss_alpha boi_token_index bos_token_id cache_implementation
chunk_size_feed_forward decoder_start_token_id emb_pdrop embd_pdrop embedding_size_scale
eoi_token_index eos_token_id ep_size final_logit_softcapping finetuning_task
gradient_checkpointing hidden_act hidden_activation id2label image_token_index init_config
init_device initial_context_length initializer_range is_decoder is_encoder_decoder
is_llama_config label2id layer_norm_eps layer_norm_epsilon logit_scale mm_tokens_per_image
model_type n_ctx n_group name norm_topk_prob original_max_position_embeddings output_attentions
output_hidden_states output_router_logits pad_token_id partial_rotary_factor prefix
pretraining_tp problem_type pruned_heads qk_head_dim query_pre_attn_scalar
reorder_and_upcast_attn resid_pdrop resid_prob_drop return_dict return_dict_in_generate
rms_norm_eps rope_interleaved rope_local_base_freq rope_parameters rope_scaling rope_theta
routed_scaling_factor router_aux_loss_coef router_jitter_noise router_z_loss_coef
scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func sep_token_id seq_aux
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
swiglu_alpha swiglu_limit task_specific_params tokenizer_class topk_group topk_method
transformers_version use_bidirectional_attention use_cache verbose
"""
IRRELEVANT = frozenset(_IRRELEVANT.split())
_LAYERS = frozenset({"num_hidden_layers", "n_layer", "n_layers"})  # each becomes a record
_MOST_LAYERS, _MOST = 10_000, 10**12
_PACKED = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4@experts"}  # by quant_method
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class HfConfig:
    """One config and where it came from; remembers which keys were read."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where
        self.used: set[str] = set()
        self.notes: list[str] = []  # what is read and cannot be said in a ModelSpec

    def get(self, key: str) -> object | None:
        """The value of a key, None if it is missing or null."""
        self.used.add(key)
        return self.values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A size, one or more; required if it has no default."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.error(f"has no {key!r}", f'add "{key}" with its size')
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        most = _MOST_LAYERS if key in _LAYERS else _MOST
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self.error(f"has {key} = {value!r}", f'write a whole number, as in "{key}": 1024')
        return value

    def maybe_whole(self, key: str) -> int | None:
        return None if self.get(key) is None else self.whole(key)

    def layer(self, key: str, default: int) -> int:
        """A number of layers, zero or more."""
        return 0 if self.get(key) == 0 else self.whole(key, default)

    def number(self, key: str, default: float) -> float:
        """A finite number, zero or more."""
        value = self.get(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= cast(float, value) < 1e30:
            raise self.error(f"has {key} = {value!r}", f'write a number, as in "{key}": 1.0')
        return float(cast(float, value))

    def maybe_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key, 0.0)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"has {key} = {value!r}", f'write true or false, as in "{key}": true')
        return value

    def strings(self, key: str) -> list[str]:
        """A list of words; empty if missing."""
        return [i for i in self._items(key, "words") if isinstance(i, str)]

    def indices(self, key: str) -> list[int]:
        """A list of layer numbers; empty if missing."""
        return [i for i in self._items(key, "layers") if isinstance(i, int)]

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers above zero."""
        found = self._items(key, "numbers")
        if not found or not all(0 < cast(float, n) < 1e30 for n in found):
            raise self.error(f"has {key} = {found!r}", f'make "{key}" a list of numbers above 0')
        return tuple(float(cast(float, n)) for n in found)

    def _items(self, key: str, what: Literal["words", "layers", "numbers"]) -> Sequence[object]:
        value = self.get(key)
        if value is None:
            return ()
        items = cast(Sequence[object], value) if isinstance(value, list) else (None,)
        kind = {"words": str, "layers": int, "numbers": int | float}[what]
        if not all(isinstance(item, kind) for item in items):
            raise self.error(f"has {key} = {value!r}", f'make "{key}" a list of {what}')
        return items

    def inner(self, key: str) -> "HfConfig":
        """A config inside this one; its keys count as read here, and are accounted for there."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.error(f"has no {key!r}", f'add "{key}": the config of the language model')
        return HfConfig(cast(Mapping[str, object], value), f"{key} of {self.where}")

    def dtype(self) -> str | None:
        names = (self.get("dtype"), self.get("torch_dtype"))
        return next((_DTYPES[n] for n in names if isinstance(n, str) and n in _DTYPES), None)

    def weights(self) -> str:
        """How the weights beside the config are stored, in the words of `--dtypes`."""
        packing = self.values.get("quantization_config")
        if not isinstance(packing, dict):
            return "bf16"
        stored = _PACKED.get(str(cast(Mapping[str, object], packing).get("quant_method")))
        if stored:
            self.used.add("quantization_config")
        return stored or "bf16"

    def left_over(self) -> tuple[str, ...]:
        """Notes, then the keys that nobody understood."""
        return (*self.notes, *sorted(set(self.values) - self.used - IRRELEVANT))

    def error(self, problem: str, hint: str) -> UsageError:
        return UsageError(f"{self.where} {problem}; the model cannot be sized", hint=hint)
