"""Rows of MLPerf, Megatron-Bridge and marin, forecast by constants fitted without them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rooflight.measure.published.replay import ask_rows
from rooflight.measure.published.rows import PublishedRun, read_rows
from rooflight.measure.published.validation import Replay, accuracy, validate_rows

from ..dated_figure import write_figure

ROWS = read_rows(Path(__file__).with_name("mlperf_runs.json"))
BY_ID = {row.id: row for row in ROWS.runs}
GROUPS: dict[str, Callable[[PublishedRun], bool]] = {
    "Llama 3.1 405B, 256 to 8,192 GPUs": lambda row: row.model == "llama3.1-405b",
    "GPT-3 175B on GPUs": lambda row: row.model == "gpt3-175b" and "tpu" not in row.chip,
    "GPT-3 175B on TPUs": lambda row: "tpu" in row.chip,
    "Llama 3.1 8B, steps of 0.1 to 1.1 s": lambda row: row.model == "llama3.1-8b",
    "Llama 2 70B, adapters": lambda row: row.fields.get("method") == "lora",
    "experts, Megatron-Bridge": lambda row: row.source == "mbridge-skills",
    "experts, marin": lambda row: row.source == "marin-hero",
}


@pytest.fixture(scope="module", name="replays")
def found() -> tuple[Replay, ...]:
    return validate_rows(ask_rows(ROWS)).replays


def test_every_row_is_of_one_group_and_is_answered(replays: tuple[Replay, ...]) -> None:
    assert [sum(has(row) for has in GROUPS.values()) for row in ROWS.runs] == [1] * len(replays)


def test_the_largest_models_are_forecast_blind(replays: tuple[Replay, ...]) -> None:
    lines = [
        "| rows that nothing was fitted to | rows | median error | mean | bias |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, has in GROUPS.items():
        group = accuracy(name, [r for r in replays if has(BY_ID[r.id])])
        lines.append(
            f"| {name} | {group.rows} | {group.median:.1%} | {group.mape:.1%} | {group.bias:+.1%} |"
        )
    write_figure("accuracy.md", "mlperf", "\n".join(lines))
    for name in [*GROUPS][:2]:
        group = accuracy(name, [r for r in replays if GROUPS[name](BY_ID[r.id])])
        assert group.median <= 0.07, group


def test_an_adapter_freezes_the_weights(replays: tuple[Replay, ...]) -> None:
    """Without their gradients and optimizer, a third of the FLOPs and most of the memory go."""
    adapters = [r for r in replays if BY_ID[r.id].fields.get("method") == "lora"]
    trained = [PublishedRun({**BY_ID[r.id].fields, "method": "full"}) for r in adapters[:2]]
    whole = validate_rows(ask_rows(type(ROWS)(ROWS.sources, ROWS.models, tuple(trained)))).replays
    for frozen, full in zip(adapters, whole, strict=False):
        assert frozen.predicted_s < 0.85 * full.predicted_s
