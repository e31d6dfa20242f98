"""Peak memory against 65 published runs; the limits are what is reached and only shrink."""

import re
from pathlib import Path

import pytest

from .measured_memory import Replay, accuracy_table, median_error, replays

DOCS = Path(__file__).parents[2] / "docs" / "memory.md"


@pytest.fixture(scope="module", name="runs")
def all_runs() -> list[Replay]:
    return replays()


@pytest.mark.parametrize(
    ("source", "count", "limit", "worst"),
    (
        ("megatron", 34, 0.005, 0.02),
        ("torchtitan", 12, 0.045, 0.16),
        ("nanotron", 19, 0.07, 0.15),
    ),
)
def test_the_median_error_of_a_source(
    runs: list[Replay], source: str, count: int, limit: float, worst: float
) -> None:
    found = [run for run in runs if run.source == source]
    assert len(found) == count
    assert median_error(found) < limit
    assert max(abs(run.error) for run in found) < worst


def test_the_median_error_of_all_runs_is_below_two_percent(runs: list[Replay]) -> None:
    assert len(runs) == 65 and median_error(runs) < 0.02


def test_the_closed_form_alone_is_further_off(runs: list[Replay]) -> None:
    plain = replays(framework="none")
    assert median_error(plain) > 3 * median_error(runs)


def test_the_table_in_the_docs_is_the_replay(runs: list[Replay]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    written = re.search(r"<!-- accuracy -->\n(.*?)\n<!-- end -->", text, flags=re.DOTALL)
    assert written and written[1] == accuracy_table(runs, replays(framework="none"))
