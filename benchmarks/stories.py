"""Six traffic stories, four models, six chips: the fleet, its runner-up, the evidence beside it.

    python -m benchmarks.stories                      # prints all tables; two processes, minutes
    python -m benchmarks.stories chat --chips h100    # a part
    python -m benchmarks.stories --write              # into docs/serving-stories.md

Each cell is `rf.plan_serving` with nothing else said. A published row stands beside a fleet where
its chip and bytes of weights are the same and its lengths nearly so; of several the one that makes
most tokens within the TPOT of the story.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from typing import Any  # JSON

import rooflight as rf
from benchmarks.page import between, markdown
from benchmarks.record import ROOT
from rooflight.hardware.catalog import load_chip
from rooflight.plan.serving.fleet.plan import Fleet
from rooflight.units import format_seconds

PAGE = ROOT / "docs" / "serving-stories.md"
CHIPS = ("h100", "h200", "b200", "gb200", "v6e", "tpu7x")
MODELS = {
    "llama3.1-70b": "fp8",
    "gpt-oss-120b": "mxfp4/fp8/bf16",
    "deepseek-v3": "fp8",
    "qwen3-30b-a3b": "fp8",
}
COLUMNS = (
    *("model", "chip", "fleet", "chips", "$/h", "tokens/s per chip", "TTFT p95", "TPOT p95"),
    *("chance", "runner-up", "evidence", "published"),
)
_RUNS = ROOT / "src" / "rooflight" / "measure" / "published" / "serving_runs.json"
_PUBLISHED_AS = {"deepseek-v3": "deepseek3-671b"}
_WEIGHTS = {"fp8": "fp8", "mxfp4": "fp4"}
_SHORTEST = 0.8  # of the lengths that are stated: benchmarks draw them from there up
_NEAR = 2.5  # times longer or shorter, at most, than lengths that are called alike
_NO = "-"


@dataclass(frozen=True, slots=True)
class Story:
    """What comes, and what was promised."""

    words: str
    rate: float
    isl: str
    osl: str
    slo: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def asked(self) -> dict[str, Any]:
        return {"rate": self.rate, "isl": self.isl, "osl": self.osl, **self.slo, **self.more}

    @property
    def command(self) -> str:
        flags = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in self.asked.items())
        return f"rooflight plan serve MODEL --dtypes DTYPES --on CHIP {flags}"


STORIES = {
    "chat": Story(
        "People talk: short prompts, a third of them a system prompt that all share.",
        *(20, "1500~0.8", "300~0.7", {"ttft": "1s", "tpot": "40ms"}, {"hit_rate": 0.3}),
    ),
    "rag": Story(
        "Retrieved documents before a question: 8k in, 512 out.",
        *(5, "8192~0.3", "512~0.5", {"ttft": "3s", "tpot": "50ms"}),
    ),
    "reasoning": Story(
        "Long thoughts after short prompts: 1k in, 8k out.",
        *(3, "1024~0.5", "8192~0.5", {"ttft": "2s", "tpot": "30ms"}),
    ),
    "agentic": Story(
        "Agents with 32k of context, nine tenths of it cached; the cached part is taken as shared"
        " by all.",
        *(5, "32768~0.5", "512~0.7", {"ttft": "2s", "tpot": "30ms"}, {"hit_rate": 0.9}),
    ),
    "batch": Story(
        "A queue by night: nobody waits, only throughput counts.", 50, "2000~0.5", "500~0.5"
    ),
    "mixed": Story(
        "Everything at once, in bursts: lengths that vary by more than their mean.",
        *(20, "2000~1.5", "500~1.2", {"ttft": "2s", "tpot": "50ms"}, {"burstiness": 2}),
    ),
}
Cell = tuple[str, str, str]  # story, model, chip


def cells(
    stories: Iterable[str] = STORIES, models: Iterable[str] = MODELS, chips: Iterable[str] = CHIPS
) -> list[Cell]:
    return list(product(stories, models, chips))


def answer(cell: Cell) -> list[str]:
    """The columns of one cell."""
    story, model, chip = cell
    asked, price = STORIES[story].asked, load_chip(chip).price("on-demand")
    dtypes = MODELS[model]
    plan = rf.plan_serving(model, **asked, dtypes=dtypes, on=chip, prices={chip: price or 1.0})
    if plan.best is None:
        return [model, chip, "none keeps the SLO", *([_NO] * (len(COLUMNS) - 3))]
    best, next_best = plan.best, plan.runner_up()
    tokens = best.demand.rate * best.demand.work().output_tokens
    chances = [f"{min(99, int(100 * p))}%" for p in best.chances.values()]
    found = {name: format_seconds(q.p95) for name, _, _, q in best.latencies}
    return [
        *(model, chip, str(best), str(best.num_chips)),
        f"{best.dollars_per_hour:,.0f}" if price else _NO,
        f"{tokens / (best.replicas * best.way.setup.on.num_chips):,.0f}",
        *(found.get("TTFT", _NO), found.get("TPOT", _NO)),
        " and ".join(chances) or _NO,
        _NO if next_best is None else f"{next_best}: {_dearer(next_best, best)}",
        _evidence(best),
        published(story, model, chip) or _NO,
    ]


def _dearer(other: Fleet, best: Fleet) -> str:
    part = other.num_chips / best.num_chips - 1
    return f"{part:+.0%} chips" if abs(part) >= 0.005 else "as many chips"


def _evidence(fleet: Fleet) -> str:
    """Rows of the very layout, and how far the calibration is off."""
    way = fleet.way
    if way.calibration is None:
        return "roofline only"
    new = f"extrapolates {', '.join(way.unseen)}" if way.unseen else f"{way.rows_alike} rows"
    return f"{new}; 80% within x{math.exp(way.calibration.spread):.2f}"


def published(story: str, model: str, chip: str) -> str:
    """The fastest published row of about these lengths within the TPOT."""
    asked, weights = STORIES[story], _WEIGHTS[MODELS[model].split("/")[0]]
    runs: list[dict[str, Any]] = json.loads(_RUNS.read_text(encoding="utf-8"))["runs"]
    alike = [
        run
        for run in runs
        if run["model"] == _PUBLISHED_AS.get(model, model)
        and run["chip"].removesuffix("_sxm") == chip
        and run["dtype"]["weights"] == weights
        and _is_near(run["batch"].get("isl"), asked.isl)
        and _is_near(run["batch"].get("osl"), asked.osl)
        and run["measured"].get("tpot_ms", math.inf) <= _most_ms(asked)
    ]
    if not alike:
        return ""
    best = max(alike, key=_tokens_per_s)
    load, tpot_ms, chips = best["batch"], best["measured"]["tpot_ms"], best["chips"]
    named = {"tp": "tp", "dp": "attn_dp", "ep": "ep"}
    ways = {name: best["layout"].get(key, 1) for name, key in named.items()}
    layout = ",".join(f"{name}={n}" for name, n in ways.items() if n > 1) or "tp=1"
    simulated = rf.simulate(
        model,
        on=f"{chip}:{chips}",
        layout=layout,
        dtypes=MODELS[model],
        concurrency=load["concurrency"],
        isl=f"{load['isl'] * _SHORTEST:.0f}..{load['isl']}",
        osl=f"{load['osl'] * _SHORTEST:.0f}..{load['osl']}",
    )
    assert simulated.tpot
    return (
        f"{_tokens_per_s(best):,.0f} tokens/s per chip at {load['isl']}/{load['osl']},"
        f" {load['concurrency']} open: {layout}, {best['engine'].split()[0]},"
        f" TPOT {tpot_ms:.3g} ms; simulated alike {1e3 * simulated.tpot.mean:.3g} ms"
    )


def _tokens_per_s(run: Mapping[str, Any]) -> float:
    return run["batch"]["concurrency"] / run["measured"]["tpot_ms"] * 1e3 / run["chips"]


def _is_near(tokens: int | None, asked: str) -> bool:
    mean = float(asked.partition("~")[0])
    return tokens is not None and 1 / _NEAR <= tokens / mean <= _NEAR


def _most_ms(story: Story) -> float:
    return float(story.slo["tpot"].removesuffix("ms")) if story.slo else math.inf


def page_rows() -> dict[Cell, list[str]]:
    """What the page says."""
    page, found = PAGE.read_text(encoding="utf-8"), dict[Cell, list[str]]()
    for story in STORIES:
        table = page.partition(f"## {_title(story)}\n")[2].partition("\n## ")[0]
        lines = [line for line in table.splitlines() if line.startswith("|")]
        for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]):
            found[story, row[0], row[1]] = row
    return found


def answers(asked: list[Cell]) -> dict[Cell, list[str]]:
    with get_context("spawn").Pool(2) as pool:
        return dict(zip(asked, pool.imap(answer, asked), strict=True))


def tables(rows: Mapping[Cell, list[str]]) -> Iterator[str]:
    """Story by story: its words, its command, its table."""
    for name in dict.fromkeys(story for story, _, _ in rows):
        story = STORIES[name]
        lines = [list(COLUMNS), *(row for cell, row in rows.items() if cell[0] == name)]
        asked = f"{story.words}\n\n```text\n{story.command}\n```"
        yield f"## {_title(name)}\n\n{asked}\n\n{markdown(lines)}"


def _title(story: str) -> str:
    return "RAG" if story == "rag" else story.capitalize()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stories", description=__doc__)
    parser.add_argument("stories", nargs="*", choices=[*STORIES, []], metavar="STORY")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--chips", default=",".join(CHIPS))
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}, what was asked")
    options = parser.parse_args(words)
    part = options.stories or STORIES, options.models.split(","), options.chips.split(",")
    rows = answers(cells(*part))
    if options.write:
        known = page_rows() | rows
        text = "\n\n".join(tables({cell: known[cell] for cell in cells() if cell in known}))
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(between(page, "stories", f"\n{text}\n"), encoding="utf-8")
    else:
        print("\n\n".join(tables(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
