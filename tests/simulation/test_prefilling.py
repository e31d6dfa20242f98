"""Jobs whose prompts another server computes make their own tokens, whatever goes wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from rooflight.serve.disaggregated.engine import DisaggregatedEngine
from rooflight.serve.disaggregated.prefill_client import PrefillClient
from rooflight.serve.engine.request import EngineRequest

from .prefilling import simulate
from .story import first_violation, play, seeds

# pyright: reportPrivateUsage=false


def test_no_schedule_of_faults_loses_a_job_changes_a_token_or_keeps_a_lease() -> None:
    for seed in seeds(15):
        play(simulate, seed)


def _keeps_its_lease(self: DisaggregatedEngine, lease: int) -> None:
    self.cancel(lease)


def _is_content_with_one_group(self: DisaggregatedEngine, id: int, group: int, values: Any) -> bool:
    hold = self._landing(id)
    if hold is None:
        return False
    self.device.insert(hold.blocks, self.device.pages.groups[group], values)
    self._land(id, hold.row)
    return True


async def _forgets_what_is_lost(self: PrefillClient, job: EngineRequest) -> None:
    try:
        await self._talk(job)
    except Exception as error:
        self._log.event("prefill_lost", error=type(error).__name__)


PLANTED = [
    (DisaggregatedEngine, "free", _keeps_its_lease, "leases"),
    (DisaggregatedEngine, "insert", _is_content_with_one_group, "made ["),
    (PrefillClient, "_borrow", _forgets_what_is_lost, "TimeoutError"),
]


@pytest.mark.parametrize(("owner", "name", "planted", "words"), PLANTED)
def test_a_planted_bug_is_found(
    owner: type,
    name: str,
    planted: Callable[..., object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, planted)
    assert words in (first_violation(simulate, range(1000)) or "")
