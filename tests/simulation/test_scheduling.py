"""Schedulers whose talk is lost, repeated and reordered lose no block, lease or request."""

from collections.abc import Callable, Sequence

import pytest

from rooflight.batching.disaggregated import DisaggregatedScheduler
from rooflight.batching.pool import BlockPool
from rooflight.batching.scheduler import Scheduler

from .scheduling import simulate
from .story import first_violation, play, seeds


def test_no_schedule_of_faults_loses_a_block_a_lease_or_a_request() -> None:
    for seed in seeds(925):
        play(simulate, seed)


def _forgets_nothing(self: DisaggregatedScheduler, id: int) -> bool:
    return Scheduler.cancel(self, id)  # and its blocks are leased when they come back


def _owned_once(self: BlockPool, blocks: Sequence[int], *, named: int) -> None:
    for block in blocks:
        self._free[block] = None  # pyright: ignore[reportPrivateUsage]


PLANTED = [
    (DisaggregatedScheduler, "cancel", _forgets_nothing, "which were cancelled, stay"),
    (BlockPool, "give", _owned_once, "are owned"),
]


@pytest.mark.parametrize(("owner", "verb", "planted", "words"), PLANTED)
def test_a_planted_bug_is_found(
    owner: type,
    verb: str,
    planted: Callable[..., object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, verb, planted)
    assert words in (first_violation(simulate, range(1000)) or "")


def test_a_seed_tells_the_same_story_again() -> None:
    assert play(simulate, 7).lines == play(simulate, 7).lines != play(simulate, 8).lines
