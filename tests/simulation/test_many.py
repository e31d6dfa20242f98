"""100,000 schedules over the parts that must survive faults, most of the quickest part."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from . import prefilling, routing, scheduling, training
from .story import Story, first_violation

_AT_ONCE = 500
SCHEDULES = [
    (scheduling.simulate, 70_000),
    (training.simulate, 12_000),
    (routing.simulate, 9_000),
    (prefilling.simulate, 9_000),
]


def _some(simulate: Callable[[Story], None], start: int) -> str | None:
    return first_violation(simulate, range(start, start + _AT_ONCE))


@pytest.mark.full
@pytest.mark.parametrize(("simulate", "count"), SCHEDULES)
def test_no_schedule_finds_a_violation(simulate: Callable[[Story], None], count: int) -> None:
    """From seeds that no everyday run has."""
    starts = range(1_000_000, 1_000_000 + count, _AT_ONCE)
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        found = [*filter(None, pool.map(partial(_some, simulate), starts))]
    assert found == []
