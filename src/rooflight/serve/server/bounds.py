"""`Bounds`: the largest request there can be, from the sizes of the engine."""

from dataclasses import dataclass

from rooflight.serve.engine.request import MOST_BIASES

_CHARACTERS_A_TOKEN = 16  # a longer text is refused before it is tokenised
_BASE_BYTES = 1 << 20
_BYTES_A_TOKEN = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """A maximum for every field; what is larger is refused before any work is done."""

    vocab: int
    max_model_tokens: int  # prompt and new ones
    max_choices: int = 16  # prompts times n, of one request
    max_stops: int = 16
    max_stop_characters: int = 128
    max_logprobs: int = 20
    max_logprob_entries: int = 100_000  # choices times new tokens times alternatives
    max_biases: int = MOST_BIASES
    max_messages: int = 1024
    max_tools: int = 128  # and calls of them in a message
    max_schema_characters: int = 16384

    @property
    def max_characters(self) -> int:
        return _CHARACTERS_A_TOKEN * self.max_model_tokens

    @property
    def max_body_bytes(self) -> int:
        return _BASE_BYTES + _BYTES_A_TOKEN * self.max_model_tokens
