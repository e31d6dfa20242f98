"""`StepCost`: what a simulator asks of a step model, tens of millions of times.

In: how much a step does. Out: its seconds. A step may decode, prefill, or do both at once.
"""

from typing import Protocol


class StepCost(Protocol):
    """The seconds of one engine step."""

    def seconds(
        self, *, decode_rows: int, kv_tokens: int, prefill_tokens: int, prefill_kv_tokens: int
    ) -> float:
        """Times a step of `decode_rows` sequences that each make a token and a prefill chunk.

        `kv_tokens` is the context that the decoding sequences read, summed over them;
        `prefill_kv_tokens` the positions attended, summed over the tokens of the chunk.
        """
        ...

    def late_s(self, *, prefill_tokens: int, prefill_kv_tokens: int) -> float:
        """From the end of the step that completes a prompt to its first token.

        Steps keep all stages of a pipeline at work; a chunk passes them one after another.
        """
        ...
