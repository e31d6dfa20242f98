"""Published peaks replayed: the layout as published, through `memory`, against what was read.

65 are in `measured_memory.toml`; the trainings of Megatron-LM's own tests ship with the package.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log1p, sqrt
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from rooflight.measure.published.degrees import measured_chip
from rooflight.measure.published.memory_replay import (
    GIB,
    KIND,
    LARGE_GIB,
    memory_job,
    shipped_memory_rows,
)
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Repeat
from rooflight.plan.training.memory.count import Memory, memory_by_stage
from rooflight.plan.training.memory.framework import FRAMEWORKS, Spread, parse_framework
from rooflight.plan.training.memory.job import RECIPES, Job, Microbatching
from rooflight.plan.training.memory.remat import parse_remat

_OF_CONFIGURATION = re.compile(r"_mbc\d+|(_1node)?-(h100|gb200|a100)(-lts)?$")
Row = dict[str, Any]  # as the file has it


@dataclass(frozen=True, slots=True)
class Replay:
    """A published run and what the planner says of it."""

    row: Row
    found: Memory

    @property
    def source(self) -> str:
        return self.row["framework"]

    @property
    def configuration(self) -> str:
        """The run without its chip and its number of microbatches."""
        return _OF_CONFIGURATION.sub("", self.row["id"])

    @property
    def error(self) -> float:
        """Predicted less measured, as a part of the measured."""
        return self.found.total_bytes / GIB / self.row["measured_gib"] - 1


def replays(framework: str | None = None) -> list[Replay]:
    """Every run of the file, counted as in its own framework or in the named one."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    models = {name: _model(name, row) for name, row in document["models"].items()}
    return [
        Replay(row, _memory(row, models[row["model"]], framework or row["framework"]))
        for row in document["runs"]
    ]


def ci_replays(framework: str | None = None) -> list[Replay]:
    """The last rank of every test of Megatron-LM, by its settings or as in the named framework."""
    rows = shipped_memory_rows()
    found: list[Replay] = []
    for row in rows.of((KIND,)):
        job = memory_job(row, rows.models)
        if framework:
            job = replace(job, framework=FRAMEWORKS[framework])
        gib = row.measured["mem_gib"]
        size = "megatron-ci" if gib >= LARGE_GIB else f"megatron-ci < {LARGE_GIB} GiB"
        named = {"id": row.id, "framework": size, "measured_gib": gib}
        found.append(Replay(named, memory_by_stage(job)[-1]))
    return found


def chance_of_its_chip(replay: Replay) -> float:
    """The chance that the run, which ran, was given to fit."""
    assert replay.found.chance is not None
    return replay.found.chance


def spread_of(found: Iterable[Replay]) -> Spread:
    """Of logs of measured over counted; sigma is such that 1.645 of it is Student's 90 %.

    t(0.95, n) is z + (z^3 + z) / 4n to first order, and a new run has the mean's error as well.
    """
    logs = [-log1p(replay.error) for replay in found]
    z, runs = NormalDist().inv_cdf(0.95), len(logs)
    few = 1 + (z**2 + 1) / (4 * (runs - 1))
    sigma = stdev(logs) * sqrt(1 + 1 / runs) * few
    return Spread(round(fmean(logs), 3), round(sigma, 3), runs)


def held_by_the_others(found: list[Replay]) -> int:
    """Runs that lie where the 90 % of all runs of other configurations say."""
    held = 0
    for replay in found:
        others = spread_of([r for r in found if r.configuration != replay.configuration])
        low, high = others.between(replay.found.total_bytes)
        held += low <= replay.row["measured_gib"] * GIB <= high
    return held


def median_error(found: Iterable[Replay]) -> float:
    """The median of the absolute errors."""
    return median(abs(replay.error) for replay in found)


def accuracy_table(runs: Iterable[Replay], plain: Iterable[Replay]) -> str:
    """The table of docs/memory.md."""
    every = [list(runs), list(plain)]
    lines = [
        "| framework | runs | median error | worst | median without its conventions |",
        "|---|---|---|---|---|",
    ]
    for name in (*dict.fromkeys(run.source for run in every[0]), "all"):
        own, closed = ([r for r in found if name in (r.source, "all")] for found in every)
        worst = max((run.error for run in own), key=abs)
        lines.append(
            f"| {name} | {len(own)} | {median_error(own):.1%} | {worst:+.1%}"
            f" | {median_error(closed):.1%} |"
        )
    return "\n".join(lines)


def _memory(row: Row, model: ModelSpec, framework: str) -> Memory:
    graph = model_graph(model)
    job = Job(
        graph,
        parse_layout(row["layout"]),
        {axis: int(size) for axis, _, size in (a.partition("=") for a in row["mesh"].split(","))},
        measured_chip(row["chip"]).chip,
        batch=row["seqs"],
        seq=row["seq"],
        recipe=RECIPES[row["recipe"]],
        remat=parse_remat(row["remat"], graph),
        zero=row["zero"],
        micro=Microbatching(
            row["microbatches"], row.get("schedule", "1f1b"), row.get("virtual", 1)
        ),
        framework=parse_framework(framework),
    )
    stages = memory_by_stage(job)
    if row["framework"] == "nanotron":  # the first rank writes the figure
        return stages[0]
    return max(stages, key=lambda found: found.total_bytes)


def _model(name: str, row: Row) -> ModelSpec:
    latent = None
    if "kv_rank" in row:
        latent = Latent(row["query_rank"], row["kv_rank"], row["rope_dim"], row["value_dim"])
    attention = Attention(row["heads"], row["kv_heads"], row["head_dim"], latent=latent)
    dense = Block(attention, Mlp(row["d_ff"]))
    layers = (Repeat((dense,), row["layers"]),)
    if "experts" in row:
        expert, shared = Mlp(row["expert_ff"]), Mlp(row["shared_ff"])
        moe = Moe(row["experts"], row["experts_per_token"], expert, shared)
        first = row["dense_layers"]
        rest = Repeat((Block(attention, moe),), row["layers"] - first)
        layers = (Repeat((dense,), first), rest)
    is_tied = row.get("is_tied", False)
    return ModelSpec(name, name, row["d_model"], row["vocab"], layers, is_tied=is_tied)
