"""`EngineStats`: what an engine holds and has done, as one record."""

from dataclasses import asdict, dataclass

from rooflight.batching.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the start, and what is here now."""

    num_waiting: int
    num_running: int
    kv_usage: float  # 0 to 1, of the blocks
    block_tokens: int
    num_blocks: int
    prompt_tokens: int
    generated_tokens: int
    prefix_queries: int  # prompt tokens that were looked up in the prefix cache
    prefix_hits: int  # and found there
    preemptions: int
    draft_tokens: int  # proposed, and checked by the model
    accepted_tokens: int  # and took
    compilations_after_ready: int
    restored_blocks: int  # of cached prefixes, from host memory


@dataclass(slots=True)
class TokenCounts:
    """What only the engine sees."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


def stats_of(scheduler: Scheduler, counts: TokenCounts, compilations: int) -> EngineStats:
    """What the scheduler and the engine have counted."""
    limits, room = scheduler.limits, scheduler.room
    return EngineStats(
        num_waiting=scheduler.num_waiting,
        num_running=scheduler.num_running,
        kv_usage=1 - room.pool.num_free / limits.num_blocks,
        block_tokens=limits.block_tokens,
        num_blocks=limits.num_blocks,
        prefix_hits=room.cached_tokens,
        preemptions=scheduler.num_preemptions,
        compilations_after_ready=compilations,
        restored_blocks=0 if room.tier is None else room.tier.num_restored,
        **asdict(counts),
    )
