"""The planner against published layouts: it reaches them, and is not slower by its own forecast."""

import hashlib
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any  # JSON

import pytest

from rooflight.errors import RooflightError
from rooflight.measure.published.hierarchy import cross_validate
from rooflight.measure.published.question import ReplayQuestion, ask
from rooflight.measure.published.replay import ask_rows
from rooflight.measure.published.rows import (
    TRAINING,
    PublishedRun,
    shipped_rows,
)
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.search.constraint import region_of
from rooflight.plan.training.search.run import search_training
from rooflight.units import format_seconds

from ..dated_figure import today, write_figure
from .decisions import (
    ADAPTERS,
    FRAMEWORK_OF,
    Decision,
    decide,
    difference,
    planned_question,
    published_layout,
    reached,
)
from .regret import Regret, Tried, group_key, regrets

ROOT = Path(__file__).parents[2]
NO_SLOWER = 1.02
# Runs that people know, of each the newest release.
KNOWN = {
    "Llama 3.1 405B, 16,384 H100": "llama3-405b-16384-cp1",
    "Llama 3.1 405B, 131k tokens, 16,384 H100": "llama3-405b-16384-cp16",
    "Llama 3.1 405B, 1,024 H100 (Megatron-Bridge)": (
        "mbridge-26.06-train-llama3.1-405b-h100_sxm-1024-fp8-gbs1536"
    ),
    "DeepSeek-V3, 256 B200": "mbridge-26.04.01-train-deepseek3-671b-b200_sxm-256-mxfp8-gbs4096",
    "Megatron 175B, 64 A100": "korthikanti-gpt3-175B-full",
    "Megatron 530B, 280 A100": "korthikanti-turing-530B-seqsel",
    "Megatron 530B, 2,520 A100": "megatron-sc21-530B",
    "Megatron 1T, 512 A100": "korthikanti-megatron-1T-seqsel",
    "Megatron 1T, 3,072 A100": "megatron-sc21-1T",
    "Llama 2 70B, v6e-256": "tpurecipes-trillium-llama2-70b-maxtext",
    "Llama 3.1 70B, v6e-256": "tpurecipes-trillium-llama3.1-70b-maxtext-v6e-256",
    "Llama 3.1 405B, v6e-256": "maxtext-tier-llama3.1-405b-tpu_v6e-256",
    "Llama 3.1 405B, 512 v5p": "tpurecipes-v5p-llama3.1-405b-maxtext",
    "MaxText 128B, 128 v5p": "maxtext-v5p-128b-1x128",
    "DeepSeek-V3, 512 v5p": "tpurecipes-v5p-deepseek3-671b-maxtext",
    "Qwen3 235B, 256 GB300": "mbridge-26.08-train-qwen3-235b-a22b-gb300-256-mxfp8-gbs8192",
    "Qwen3 235B, 256 H100": "mbridge-26.04.01-train-qwen3-235b-a22b-h100_sxm-256-fp8-gbs8192",
    "gpt-oss-120b, 64 GB300": "mbridge-26.08-train-gpt-oss-120b-gb300-64-mxfp8-gbs1280",
    "gpt-oss-120b, 64 H100": "mbridge-26.04.01-train-gpt-oss-120b-h100_sxm-64-bf16-gbs1280",
    "gpt-oss-120b, 256 TPU7x": "tpurecipes-ironwood-gpt-oss-120b-256-8k-bf16",
    "Mixtral 8x7B, v6e-256": "tpurecipes-trillium-mixtral-8x7b-maxtext",
    "Mixtral 8x7B, 256 v5p": "maxtext-tier-mixtral-8x7b-tpu_v5p-256",
    "Mixtral 8x22B, v6e-256": "maxtext-tier-mixtral-8x22b-tpu_v6e-256",
    "Kimi K2, 256 GB300": "mbridge-26.06-train-kimi-k2-1t-gb300-256-mxfp8-gbs4096",
}
# Runs that no file of rows has: seconds derived from what a report says of the whole.
DERIVED: dict[str, dict[str, Any]] = {
    # 180,000 GPU-hours for 10^12 tokens, 15,360 sequences of 4,096 in a step; FP8, DualPipe.
    "DeepSeek-V3, 2,048 H800": {
        "id": "deepseek-v3-report",
        "kind": "train",
        "source": "report",
        "engine": "megatron",
        "model": "deepseek3-671b",
        "chip": "h800_sxm",
        "chips": 2048,
        "layout": {"tp": 1, "pp": 16, "ep": 64, "dp": 128},
        "batch": {"global_seqs": 15360, "seq_len": 4096},
        "dtype": {"compute": "fp8"},
        "measured": {"step_s": 180e3 * 3600 / 1e12 * 15360 * 4096 / 2048},
    },
    # 46.2 % MFU on two pods: two replicas, each 12-way tensor and 256-way fully sharded.
    "PaLM 540B, 6,144 v4": {
        "id": "palm-540b",
        "kind": "train",
        "source": "report",
        "engine": "t5x",
        "model": "palm-540b",
        "chip": "tpu_v4",
        "chips": 6144,
        "slices": 2,
        "layout": {"dp": 2, "fsdp": 256, "tp": 12},
        "batch": {"global_seqs": 2048, "seq_len": 2048},
        "dtype": {"compute": "bf16"},
        "measured": {"mfu": 0.462},
        "flops": "full attention",
    },
}
# Missed, with reasons in the table: storage that nobody states, adapters, policies of one's own.
MOST_MISSED = 25


@cache
def questions() -> tuple[ReplayQuestion, ...]:
    """Every row that can be asked; to ask them takes two seconds."""
    rows, found = shipped_rows(), list[ReplayQuestion]()
    for row in rows.of(TRAINING):
        with suppress(RooflightError):
            found.append(ask(row, rows.models))
    return tuple(found)


def test_every_engine_has_a_framework() -> None:
    engines = {q.engine.partition("@")[0] for q in questions()}
    assert engines - {"unknown"} <= set(FRAMEWORK_OF)


@pytest.mark.parametrize(
    "name",
    [
        "maxtext-v5p-32b-1x64",
        "megatron-h100-177B",
        "mpt-1b-a100_80g_sxm-8-s16384-bf16-108",
        "torchtitan-405b-512-cp1",
        "mbridge-25.11-train-qwen3-30b-a3b-h100_sxm-16-fp8-cs-gbs512",
        "tpurecipes-trillium-llama3.1-8b-maxtext-v6e-8",
        "tpurecipes-ironwood-llama3.1-405b-256-8k-bf16",  # k, v and the MLP's output on the host
    ],
)
def test_a_published_layout_is_reached_and_does_not_beat_the_pick(name: str) -> None:
    found = decide(next(q for q in questions() if q.row.id == name))
    assert found.missed == "" and found.ratio is not None and found.ratio <= NO_SLOWER
    assert found.nearest


@pytest.mark.parametrize(
    "name",
    [
        "mlperf5.0-llama3.1-405b-h100_sxm-512-tp8pp8cp2-gbs1152-mbs1-fp8",
        "mlperf5.0-llama3.1-405b-h200_sxm-512-tp4pp8cp2-gbs1152-mbs1-fp8",
        "mlperf5.1-llama3.1-405b-gb300-512-tp2pp8cp2-gbs1152-mbs1-nvfp4",
        "mlperf4.1-gpt3-175b-h100_sxm-256-tp4pp8cp1-gbs2048-mbs2-fp8",
        "mlperf5.1-llama3.1-8b-h100_sxm-64-tp1pp1cp1-gbs64-mbs1-fp8",
    ],
)
def test_what_fits_only_with_gradients_in_bf16_is_reached(name: str) -> None:
    planned, found, missed = reached(next(q for q in questions() if q.row.id == name))
    assert missed == "" and found is not None and planned.recipe.name == "16"


@pytest.mark.parametrize(
    "name",
    [
        "mlperf5.1-llama3.1-8b-h100_sxm-64-tp1pp1cp1-gbs64-mbs1-fp8",
        "mlperf5.1-llama3.1-8b-h100_sxm-128-tp2pp1cp1-gbs64-mbs1-fp8",
    ],
)
def test_the_memory_that_mlperf_logs_is_that_of_gradients_in_bf16(name: str) -> None:
    question = next(q for q in questions() if q.row.id == name)
    measured = question.row.table("measured")["mem_gib"] * 2**30
    planned, wanted = planned_question(question, "16"), published_layout(question)
    region, _ = region_of(wanted, planned)
    found = search_training(replace(planned, region=region), count=1).candidates[0]
    assert abs(found.memory.total_bytes / measured - 1) < 0.01
    assert found.memory.part("gradients").nbytes > 0.15 * measured  # what fp32 would add


def test_a_layout_that_the_search_has_not_is_a_miss() -> None:
    """Adapters: the planner trains every weight, and says so."""
    found = decide(next(q for q in questions() if q.run.freezes_weights))
    assert found.published_s is None and found.missed == ADAPTERS and found.pick == ""


def test_what_a_source_does_not_say_is_free() -> None:
    said = next(q for q in questions() if q.row.fields.get("remat") == "none")
    free = next(q for q in questions() if q.row.fields.get("remat") is None)
    assert published_layout(said).remat is not None and published_layout(free).remat is None


@pytest.mark.full
def test_no_published_layout_beats_the_pick() -> None:
    """Takes half an hour. Rows of one configuration are one question; each is kept as it ends."""
    rows = [question.row for question in questions()]
    first = {row.configuration: row.id for row in reversed(rows)}
    kept = kept_decisions()
    names = [name for name in first.values() if name not in kept]
    parts = [names[i : i + 12] for i in range(0, len(names), 12)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(decide_in_a_process, parts))
    decided = kept_decisions()
    known = {configuration: decided[name] for configuration, name in first.items()}
    found = [known[row.configuration] for row in rows]
    missed = [d for d in found if d.ratio is None and d.missed != ADAPTERS]
    slower = [d for d in found if d.ratio is not None and d.ratio > NO_SLOWER]
    write_figure("decisions.md", "decisions", decisions_text(list(known.values()), found))
    write_figure("decisions.md", "known", known_text({d.id: d for d in found}))
    assert len(found) >= 619 + 110 and slower == [] and len(missed) <= MOST_MISSED


def derived(fields: dict[str, Any]) -> ReplayQuestion:
    return replace(ask(PublishedRun(fields), {}), engine=fields["engine"])


def known_text(decided: dict[str, Decision]) -> str:
    """Each beside the pick; forecasts are of constants fitted without its fold of rows."""
    asked = ask_rows(shipped_rows())
    held_out = cross_validate(asked, "configuration").seconds
    forecast = {case.id: float(s) for case, s in zip(asked.cases, held_out, strict=True)}
    for fields in DERIVED.values():
        decision = decided[fields["id"]] = decide(derived(fields))
        forecast[decision.id] = decision.published_s or math.nan
    runs = KNOWN | {title: fields["id"] for title, fields in DERIVED.items()}
    off = {name: math.log(forecast[name] / decided[name].measured_s) for name in runs.values()}
    near = sum(abs(error) <= math.log(1.1) for error in off.values())
    lines = [
        f"{near} of {len(runs)} forecasts, of constants fitted without the run, are within 10 % of"
        f" what was measured. {today()}.",
        "",
        "| run | what ran | measured | held out | off | pick | times what ran | it takes |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for title, name in runs.items():
        d = decided[name]
        times = f"{d.ratio:.2f}" if d.ratio else f"missed: {d.missed}"
        lines.append(
            f"| {title} | {d.published} | {format_seconds(d.measured_s)} |"
            f" {format_seconds(forecast[name])} | {math.expm1(off[name]):+.0%} | {d.pick} |"
            f" {times} | {d.differs or 'the same'} |"
        )
    return "\n".join(lines)


def test_runs_that_people_know_are_rows() -> None:
    assert set(KNOWN.values()) <= {row.id for row in shipped_rows().of(TRAINING)}


def test_the_run_of_palm_is_reached_and_near_the_pick() -> None:
    found = decide(derived(DERIVED["PaLM 540B, 6,144 v4"]))
    assert found.missed == "" and found.ratio and 0.9 < found.ratio <= NO_SLOWER


def test_a_difference_names_the_parts_that_change() -> None:
    question = planned_question(next(q for q in questions() if q.row.id == "megatron-h100-177B"))
    one, other = search_training(question, count=2).candidates
    assert difference(one, one) == ""
    again = replace(one, remat=REMATS["block"])
    assert difference(again, one) == f"remat {one.remat.name} for block"
    bubble = replace(other.forecast.breakdown, bubble_s=other.forecast.breakdown.bubble_s + 99)
    slower = replace(other, forecast=replace(other.forecast, breakdown=bubble))
    assert "bubble +" in difference(one, slower)


DECIDE = """
import json, sys
from dataclasses import asdict
from tests.reconcile.decisions import decide
from tests.reconcile.test_decisions import questions
by_id = {question.row.id: question for question in questions()}
for name in sys.argv[1:]:
    print(json.dumps(asdict(decide(by_id[name]))), flush=True)
"""


def decide_in_a_process(names: list[str]) -> list[Decision]:
    """What a search keeps for the next one adds up: a process that ends gives it back."""
    command = [sys.executable, "-c", DECIDE, *names]
    decided: list[Decision] = []
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process,
        kept_file().open("a") as kept,
    ):
        for line in process.stdout or ():
            decided.append(Decision(**json.loads(line)))
            kept.write(line)
            kept.flush()
    assert process.returncode == 0 and len(decided) == len(names)
    return decided


def kept_file() -> Path:
    """Decisions of this very source: a run that was stopped goes on where it was."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    found = ROOT / "build" / f"decisions-{digest.hexdigest()[:12]}.jsonl"
    found.parent.mkdir(exist_ok=True)
    return found


def kept_decisions() -> dict[str, Decision]:
    path = kept_file()
    lines = path.read_text().splitlines() if path.exists() else []
    return {d.id: d for d in (Decision(**json.loads(line)) for line in lines)}


def test_decisions_of_another_process_are_the_same_and_kept() -> None:
    question = questions()[0]
    decided = decide(question)
    assert decide_in_a_process([question.row.id]) == [decided]
    assert kept_decisions()[question.row.id] == decided


def decisions_text(each: list[Decision], rows: list[Decision], unasked: int = 0) -> str:
    """The table; `unasked` configurations were left out of a run that was cut short."""
    reached = [d for d in rows if d.ratio is not None]
    adapters = sum(d.missed == ADAPTERS for d in rows)
    lines = [
        f"{len(rows)} rows, {len(each)} configurations: {len(reached)} rows reached, of them"
        f" {sum((d.ratio or 0) <= NO_SLOWER for d in reached)} where the pick is no slower than"
        f" {NO_SLOWER} times what ran; {len(rows) - len(reached)} missed, {adapters} of them"
        f" adapters. {today()}.",
        *([f"Not asked: {unasked} configurations on TPUs, most with experts."] if unasked else []),
        "",
        "| run | slice | framework | what ran | measured | forecast | pick | forecast | nearest |",
        "| --- | --- | --- | --- | ---: | ---: | --- | ---: | --- |",
    ]
    for d in each:
        mine = format_seconds(d.published_s) if d.published_s else f"missed: {d.missed}"
        pick = format_seconds(d.pick_s) if d.pick_s else ""
        lines.append(
            f"| {d.id} | {d.slice} | {d.framework} | {d.published} |"
            f" {format_seconds(d.measured_s)} | {mine} | {d.pick} | {pick} | {d.nearest} |"
        )
    return "\n".join(lines)


def run(name: str, measured_s: float, forecast_s: float) -> Tried:
    return Tried(name, measured_s, forecast_s)


def test_regret_is_what_following_the_forecast_costs() -> None:
    group = Regret("s", "m", "c", 8, (run("a", 1.0, 2.0), run("b", 1.1, 1.9), run("c", 1.12, 3.0)))
    assert group.pick.id == "b" and group.best.id == "a"
    assert group.regret == pytest.approx(0.1)
    assert group.ordered == (1, 2)  # a before c is right, a before b is not; b and c are too near


def test_runs_of_a_group_differ_in_layout_and_settings_alone() -> None:
    fields = {"id": "a", "model": "m", "release": "1", "batch": {"global_seqs": 8, "micro": 1}}
    other = {**fields, "id": "b", "layout": {"tp": 2}, "batch": {"global_seqs": 8, "micro": 2}}
    assert group_key(PublishedRun(fields)) == group_key(PublishedRun(other))
    later = PublishedRun({**other, "release": "2"})
    assert group_key(later) != group_key(PublishedRun(fields))
    both = [group_key(row, across_releases=True) for row in (later, PublishedRun(fields))]
    assert both[0] == both[1]


@pytest.mark.full
def test_the_forecast_chooses_the_fastest_that_was_measured() -> None:
    rows = shipped_rows()
    asked = ask_rows(rows)
    inside, across = (regrets(asked, rows, across_releases=one) for one in (False, True))
    write_figure("decisions.md", "regret", f"{regret_text(inside)}\n\n{regret_text(across)}")
    assert sum(g.regret for g in inside) / len(inside) <= 0.015
    assert max(g.regret for g in inside) <= 0.1
    right, every = (sum(n) for n in zip(*(g.ordered for g in inside), strict=True))
    assert right >= 0.97 * every


def regret_text(groups: tuple[Regret, ...]) -> str:
    right, every = (sum(n) for n in zip(*(g.ordered for g in groups), strict=True))
    mean, most = sum(g.regret for g in groups) / len(groups), max(g.regret for g in groups)
    lines = [
        f"{len(groups)} groups of {sum(len(g.runs) for g in groups)} runs: mean regret {mean:.1%},"
        f" at most {most:.1%}; {right} of {every} pairs in order.",
        "",
        "| source | model | chips | runs | regret | pick | fastest |",
        "| --- | --- | --- | ---: | ---: | --- | --- |",
    ]
    lines += [
        f"| {g.source} | {g.model} | {g.chips} x {g.chip} | {len(g.runs)} | {g.regret:.1%} |"
        f" {g.pick.id} | {g.best.id} |"
        for g in groups
    ]
    return "\n".join(lines)
