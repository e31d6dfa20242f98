"""What goes into the scheduler: a request, and the limits it runs under."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rooflight.errors import UsageError

Key = Hashable  # names the content of a block and of all before it; see `prefix`


class Policy(StrEnum):
    """How prefill and decode share a replica."""

    CONTINUOUS = "continuous"  # decode first, then chunks of prompts, in one step
    INTERLEAVED = "interleaved"  # whole prompts in steps of their own, before decode
    STATIC = "static"  # a batch is formed, runs to its end, then the next


class Admission(StrEnum):
    """What became of a request that was handed in."""

    ADMITTED = "admitted"
    QUEUE_FULL = "queue full"  # try again later
    TOO_LONG = "too long"  # never fits into the pool


class Request(NamedTuple):
    """Work for the scheduler; it counts tokens and never sees them."""

    id: int
    prompt_tokens: int
    max_new_tokens: int
    keys: Sequence[Key] = ()  # of full blocks, as far as they may be shared: the prompt's, then
    # those that its answer will fill, if known
    priority: int = 0  # smaller goes first; equals in order of arrival


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of one replica: rows of the batch, tokens of a step, blocks of KV cache."""

    max_rows: int
    max_step_tokens: int
    num_blocks: int
    block_tokens: int
    max_waiting: int
    max_waiting_tokens: int | None = None  # prompt tokens in the queue: TTFT times prefill speed
    policy: Policy = Policy.CONTINUOUS
    chunk_tokens: int = 1  # a prompt is cut into multiples of this, its end left over
    host_blocks: int = 0  # of cached prefixes, kept in host memory when the pool evicts them
    ssd_blocks: int = 0  # more, on an SSD below host memory, through which they come back

    def __post_init__(self) -> None:
        sizes = (self.max_rows, self.max_step_tokens, self.num_blocks, self.block_tokens)
        if min(*sizes, self.max_waiting) < 1:
            raise UsageError(f"limits below 1: {self}", hint="every limit is at least 1")
        if self.max_rows > self.max_step_tokens:
            raise UsageError(
                f"{self.max_rows} rows decode {self.max_rows} tokens per step, above the budget of"
                f" {self.max_step_tokens}",
                hint=f"raise the budget to at least {self.max_rows} tokens, or take fewer rows",
            )
        if self.max_rows - 1 + self.chunk_tokens > self.max_step_tokens:
            raise UsageError(
                f"beside {self.max_rows - 1} rows that decode, no chunk of {self.chunk_tokens}"
                f" tokens is within the budget of {self.max_step_tokens}",
                hint=f"raise the budget to {self.max_rows - 1 + self.chunk_tokens} tokens",
            )

    @property
    def pool_tokens(self) -> int:
        return self.num_blocks * self.block_tokens

    @property
    def spare_blocks(self) -> int:
        """Kept free when a prompt is admitted beside others, so that rows can grow a while."""
        return self.num_blocks // 100
