"""Faults: after each one the run goes on, and its curve is that of a run without any."""

import random
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from ..dated_figure import today, write_figure
from .faults import FAULTS, check_nothing_lost
from .launched import Launched
from .small_run import STEPS, words

_BETWEEN = 4  # steps from one fault to the next, at the most
_A_RUN = 10
# Every day each kind of recovery once: one of the two kills of a worker while it saves, one of the
# three kinds of damage (each begins with the end of the supervisor), a hang, a preemption.
_EVERYDAY = ("kill between shards", "flip a bit", "hang a worker", "preempt")
_RUNS = [*((2, seed) for seed in range(8)), *((4, seed) for seed in range(4))]
# By the random tests of this session, a number of faults for each run on so many processes.
_SUFFERED: defaultdict[int, list[int]] = defaultdict(list)


def _suffer(run: Launched, names: list[str], rng: random.Random) -> Counter[str]:
    """One fault after another, each some steps after the last one's recovery; those that were."""
    done: Counter[str] = Counter()
    run.start()
    for name in names:
        attempt = run.step
        run.wait_for_step(min(attempt + rng.randint(1, _BETWEEN), STEPS - 2))
        run.wait_for("a checkpoint", lambda: len(run.checkpoints()) > 1 or run.ended)
        if run.ended:
            break
        FAULTS[name](run, rng)
        done[name] += 1
    assert run.end() == 0, run.talk()
    return done


@pytest.mark.parametrize(
    "kinds", [_EVERYDAY, pytest.param((*FAULTS,), marks=pytest.mark.full)], ids=["everyday", "all"]
)
def test_nothing_is_lost_by_faults_of_every_kind(
    undisturbed: Path, tokens: Path, folder: Path, kinds: tuple[str, ...]
) -> None:
    names = [*kinds]  # and a full disk, in a file of its own
    random.Random(1).shuffle(names)
    run = Launched(words(folder, tokens, 2), folder / f"disturbed-{len(names)}")
    try:
        assert _suffer(run, names, random.Random(2)).total() == len(names)
        check_nothing_lost(run, undisturbed)
    finally:
        run.close()


@pytest.fixture(scope="module")
def undisturbed_on_four(tokens: Path, folder: Path) -> Generator[Path]:
    """Four processes add up in another order than two."""
    run = Launched(words(folder, tokens, 4), folder / "undisturbed-4")
    run.start()
    assert run.end() == 0, run.talk()
    yield run.out
    run.close()


@pytest.mark.full
@pytest.mark.parametrize(("processes", "seed"), _RUNS)
def test_nothing_is_lost_by_random_faults(
    request: pytest.FixtureRequest, tokens: Path, folder: Path, processes: int, seed: int
) -> None:
    fixture = "undisturbed" if processes == 2 else "undisturbed_on_four"
    whole: Path = request.getfixturevalue(fixture)
    rng = random.Random(100 * processes + seed)
    run = Launched(words(folder, tokens, processes), folder / f"random-{processes}-{seed}")
    try:
        found = _suffer(run, rng.choices([*FAULTS], k=_A_RUN), rng)
        assert found.total() == _A_RUN  # twelve runs: more than a hundred in all
        check_nothing_lost(run, whole)
    finally:
        run.close()
    _SUFFERED[processes].append(found.total())
    _write_suffered()  # after each: a session that is cut short has told what it saw


def _write_suffered() -> None:
    told = " and ".join(
        f"{sum(counts)} in {len(counts)} runs on {processes} processes"
        for processes, counts in _SUFFERED.items()
    )
    write_figure(
        "train.md",
        "faults",
        f"{today()}: random faults of {len(FAULTS)} kinds, {told}; every curve was, to the last"
        " bit, that of a run that nothing happened to.",
    )
