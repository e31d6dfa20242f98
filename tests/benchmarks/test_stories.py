"""The page of serving stories says what the planner says, and nothing that experts strike out."""

import re

import pytest

from benchmarks.stories import (
    CHIPS,
    COLUMNS,
    MODELS,
    PAGE,
    STORIES,
    Cell,
    answer,
    cells,
    page_rows,
    published,
)

GPUS = ("h100", "h200", "b200", "gb200")
ROWS = {cell: dict(zip(COLUMNS, row, strict=True)) for cell, row in page_rows().items()}


def test_every_story_has_every_model_on_every_chip() -> None:
    assert set(ROWS) == set(cells()) and len(ROWS) == len(STORIES) * len(MODELS) * len(CHIPS)
    assert all(f"`{model}` in `{dtypes}`" in PAGE.read_text() for model, dtypes in MODELS.items())
    assert all(story.command in PAGE.read_text() for story in STORIES.values())


@pytest.mark.parametrize(
    "cell",
    [
        ("chat", "gpt-oss-120b", "b200"),
        ("rag", "llama3.1-70b", "h100"),
        ("batch", "deepseek-v3", "h200"),
        ("mixed", "qwen3-30b-a3b", "tpu7x"),
    ],
)
def test_the_page_says_what_the_planner_says(cell: Cell) -> None:
    """After a change of the planner: `python -m benchmarks.stories --write`."""
    assert answer(cell) == list(ROWS[cell].values())


@pytest.mark.full
@pytest.mark.parametrize("story", STORIES)
def test_the_whole_page_says_what_the_planner_says(story: str) -> None:
    for cell in cells([story]):
        assert answer(cell) == list(ROWS[cell].values())


def test_no_fleet_is_one_that_nobody_runs() -> None:
    """On GPUs, where rows are many, what no two of them had is the answer once in a hundred."""
    for cell, row in ROWS.items():
        assert row["fleet"].count(" x ") == 1, cell  # every story is served
        assert "pp=" not in row["fleet"] and "kv=sequence" not in row["fleet"], cell
    on_gpus = [row for (_, _, chip), row in ROWS.items() if chip in GPUS]
    assert all("across nodes" not in row["evidence"] for row in on_gpus)
    assert all("kv=" not in row["fleet"] for row in on_gpus)
    assert sum("extrapolates" in row["evidence"] for row in on_gpus) <= len(on_gpus) / 50


def test_a_newer_chip_needs_no_more_of_them() -> None:
    for story in STORIES:
        for model in MODELS:
            counts = [int(ROWS[story, model, chip]["chips"]) for chip in ("h100", "h200", "b200")]
            assert counts == sorted(counts, reverse=True), (story, model)


def test_what_was_published_kept_the_promise_of_the_story() -> None:
    """And where nothing alike was published, nothing stands there."""
    for (story, _, _), row in ROWS.items():
        if found := re.search(r"TPOT ([\d.]+) ms", row["published"]):
            slo = STORIES[story].slo.get("tpot", "1e9ms")
            assert float(found[1]) <= float(slo.removesuffix("ms"))
    assert "1024/8192" in published("reasoning", "llama3.1-70b", "h200")
    assert published("agentic", "llama3.1-70b", "h200") == ""
    assert sum(row["published"] != "-" for row in ROWS.values()) >= 12
