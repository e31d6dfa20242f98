"""The sizes of an engine, and the shapes that follow from them: all that is ever compiled."""

from dataclasses import dataclass

from rooflight.algebra.notation import Axes
from rooflight.batching.request import Admission, Limits
from rooflight.errors import UsageError
from rooflight.serve.engine.request import MOST_BIASES, EngineRequest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine holds at once, and what it computes in a step."""

    max_rows: int  # jobs that run at once
    block_tokens: int  # of a block of the cache
    num_blocks: int
    max_step_tokens: int  # decoded and prefilled in a step
    max_model_tokens: int  # of a prompt and its text
    max_waiting: int = 1024
    max_waiting_tokens: int | None = None
    tile_tokens: int = 32  # prompts are computed in tiles of this many
    max_logprobs: int = 20
    num_draft: int = 0  # tokens that may be proposed ahead per row; see `running`
    cache_dtype: str | None = None  # that of the computation, or int8 or fp8
    moves_blocks: bool = False  # to another engine, or from one; see `disaggregated`
    host_blocks: int = 0  # of cached prefixes, kept in host memory; see `host_blocks`
    spread: Axes = ()  # mesh axes over which the positions of a row are split

    def __post_init__(self) -> None:
        if self.max_model_tokens < 2 or min(self.tile_tokens, self.max_logprobs) < 1:
            raise UsageError(f"sizes that are too small: {self}", hint="raise those below 1")
        if self.max_model_tokens > self.limits.pool_tokens:
            raise UsageError(
                f"a sequence of {self.max_model_tokens} tokens cannot fit {self.num_blocks} blocks"
                f" of {self.block_tokens}",
                hint=f"give {-(-self.max_model_tokens // self.block_tokens)} blocks",
            )

    def check(self, job: EngineRequest, vocab: int) -> Admission:
        """Whether a job can ever run; raises if it is not one."""
        if not job.prompt or job.max_new_tokens < 1:
            raise UsageError(f"job {job.id} has nothing to do", hint="give a prompt and a length")
        if min(job.prompt) < 0 or max(job.prompt) >= vocab:
            raise UsageError(
                f"job {job.id} has tokens outside 0 to {vocab - 1}",
                hint="encode the prompt with the model's own tokenizer",
            )
        if job.logprobs > self.max_logprobs:
            raise UsageError(
                f"job {job.id} wants {job.logprobs} log probabilities a token",
                hint=f"ask for at most {self.max_logprobs}",
            )
        biased = [token for token, _ in job.sampling.logit_bias]
        if len(biased) > MOST_BIASES or not all(0 <= token < vocab for token in biased):
            raise UsageError(
                f"job {job.id} has {len(biased)} biases of tokens, or one outside 0 to {vocab - 1}",
                hint=f"give at most {MOST_BIASES}, of the model's own tokens",
            )
        is_short = len(job.prompt) + job.max_new_tokens <= self.max_model_tokens
        return Admission.ADMITTED if is_short else Admission.TOO_LONG

    @property
    def limits(self) -> Limits:
        """What the scheduler keeps to."""
        return Limits(
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            num_blocks=self.num_blocks,
            block_tokens=self.block_tokens,
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
            chunk_tokens=self.tile_tokens,
            host_blocks=self.host_blocks,
        )

    @property
    def row_counts(self) -> tuple[int, ...]:
        return sizes_up_to(self.max_rows)

    @property
    def tile_counts(self) -> tuple[int, ...]:
        """Of one call; a step whose prompts leave many tiles in part empty takes several calls."""
        return sizes_up_to(max(1, self.max_step_tokens // self.tile_tokens), growth=4)

    @property
    def table_widths(self) -> tuple[int, ...]:
        """Blocks of the longest row in a call."""
        return sizes_up_to(self.max_blocks)

    @property
    def max_blocks(self) -> int:
        """Of one row."""
        return -(-self.max_model_tokens // self.block_tokens)


def sizes_up_to(largest: int, *, growth: int = 2) -> tuple[int, ...]:
    """Sizes that grow by a factor up to the largest, none of them just below it.

    >>> sizes_up_to(32), sizes_up_to(17, growth=4)
    ((1, 2, 4, 8, 16, 32), (1, 4, 17))
    """
    sizes = [1]
    while sizes[-1] < largest:
        larger = growth * sizes[-1]
        sizes.append(larger if 2 * larger <= largest else largest)
    return tuple(sizes)


def smallest(sizes: tuple[int, ...], needed: int) -> int:
    """The smallest of these sizes that has room."""
    return next(size for size in sizes if size >= needed)
