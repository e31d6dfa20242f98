"""Peak memory against 214 measured runs; the limits are what is reached and only shrink."""

import re
from pathlib import Path

import pytest

from rooflight.errors import UsageError
from rooflight.measure.published.memory_replay import LARGE_GIB, memory_job, shipped_memory_rows
from rooflight.measure.published.rows import PublishedRun
from rooflight.plan.training.memory.count import memory_by_stage
from rooflight.plan.training.memory.framework import FRAMEWORKS

from .measured_memory import (
    Replay,
    accuracy_table,
    chance_of_its_chip,
    ci_replays,
    held_by_the_others,
    median_error,
    replays,
    spread_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "memory.md"


@pytest.fixture(scope="module", name="runs")
def all_runs() -> list[Replay]:
    return [*replays(), *ci_replays()]


@pytest.mark.parametrize(
    ("source", "count", "limit", "worst"),
    (
        ("megatron", 34, 0.004, 0.01),
        ("megatron-ci", 4, 0.016, 0.15),
        ("megatron-ci < 8 GiB", 145, 0.0185, 0.1),
        ("torchtitan", 12, 0.043, 0.155),
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


def test_the_median_error_of_large_runs_is_below_two_percent(runs: list[Replay]) -> None:
    large = [run for run in runs if run.row["measured_gib"] >= LARGE_GIB]
    assert len(large) == 69 and median_error(large) < 0.012


def test_the_closed_form_alone_is_further_off(runs: list[Replay]) -> None:
    assert median_error(plain_replays()) > 3 * median_error(runs)


def plain_replays() -> list[Replay]:
    return [*replays(framework="none"), *ci_replays(framework="none")]


@pytest.mark.parametrize("name", ("megatron", "torchtitan", "nanotron"))
def test_nine_of_ten_runs_lie_where_the_others_say(runs: list[Replay], name: str) -> None:
    found = [run for run in runs if run.source.startswith(name)]
    assert FRAMEWORKS[name].spread == spread_of(found)
    assert 0.85 <= held_by_the_others(found) / len(found) <= 0.95


def test_no_run_that_ran_is_given_less_than_an_even_chance(runs: list[Replay]) -> None:
    assert min(map(chance_of_its_chip, runs)) > 0.5


_DENSE = "gpt3_7b_tp1_pp4_memory_speed-h100"


def saved_under(remat: str, name: str = "tp2_pp2_ep4_etp1_memory_speed-h100") -> int:
    rows = shipped_memory_rows()
    (row,) = (row for row in rows.runs if name in row.id)
    job = memory_job(PublishedRun({**row.fields, "remat": remat}), rows.models)
    return memory_by_stage(job)[-1].part("saved activations").nbytes


def test_modules_that_run_again_keep_less_and_all_of_them_more_than_whole_layers() -> None:
    each = {
        name: saved_under(f"selective {name}")
        for name in ("core_attn", "layernorm", "mla_up_proj", "moe", "moe_act", "shared_experts")
    }
    assert max(each.values()) < saved_under("none")
    assert each["moe"] < each["moe_act"]
    assert each["core_attn"] == saved_under("selective")
    assert saved_under("selective mlp", _DENSE) < saved_under("none", _DENSE)
    assert saved_under("full uniform 1") < saved_under(f"selective {' '.join(each)}")
    assert saved_under(f"selective {', '.join(each)}") < min(each.values())


@pytest.mark.parametrize("wrong", ("full block 4", "full uniform 2", "selective all", "offload"))
def test_recomputation_that_is_not_counted_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="not counted"):
        saved_under(wrong)


def test_sharding_more_of_a_weight_needs_less() -> None:
    rows = shipped_memory_rows()
    (row,) = (row for row in rows.runs if "tp2_zp_z3_resume_fsdp_dtensor-h100" in row.id)
    kinds = ("optim_grads_params", "optim_grads", "optim", False)
    found: list[int] = []
    for kind in kinds:
        flags = {**row.table("flags"), "fsdp": kind, "dist_optimizer": False}
        job = memory_job(PublishedRun({**row.fields, "flags": flags}), rows.models)
        parts = {part.name: part.nbytes for part in memory_by_stage(job)[-1].parts}
        found.append(parts["weights"] + parts["gradients"] + parts["master weights"])
    assert found == sorted(set(found))
    with pytest.raises(UsageError, match="'all' is not known"):
        memory_job(PublishedRun({**row.fields, "flags": {"fsdp": "all"}}), rows.models)


def test_a_fuller_chip_has_a_smaller_chance() -> None:
    spread = FRAMEWORKS["megatron"].spread
    assert spread is not None
    low, high = spread.between(70_000_000_000)
    assert low < 70_000_000_000 < high
    assert abs(spread.chance(70_000_000_000, high) - 0.95) < 1e-6
    assert spread.chance(60_000_000_000, high) > spread.chance(70_000_000_000, high)


def test_the_table_in_the_docs_is_the_replay(runs: list[Replay]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    written = re.search(r"<!-- accuracy -->\n(.*?)\n<!-- end -->", text, flags=re.DOTALL)
    assert written and written[1] == accuracy_table(runs, plain_replays())
