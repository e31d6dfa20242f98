"""The report of a plan: its numbers are the record's, and the file is written where asked."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli import plan_report
from rooflight.cli.plan_report import report_page, write_report
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan, from_json
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.search.candidate import Question, price_one
from rooflight.plan.training.search.plan import plan_record
from rooflight.plan.training.search.run import Search, search_training
from rooflight.ui.html.plan import PlanPage, plan_html
from rooflight.units import format_count, format_seconds, format_si

MODEL = load_model("llama3-8b")
QUESTION = Question(model_graph(MODEL), parse_slice("v5e:4x2"), 16, 4096, DTYPES["bf16"])
Case = tuple[Search, Plan, PlanPage]


def case_of(found: Search) -> Case:
    plan = plan_record(MODEL, QUESTION, found)
    return found, plan, report_page(MODEL, QUESTION, found, plan)


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(search_training(QUESTION, count=3))


def test_the_headline_has_the_layout_and_the_time_of_the_plan(case: Case) -> None:
    _, plan, page = case
    for words in (plan.layout, plan.mesh, format_seconds(plan.time.step_s), plan.binds):
        assert words in page.answer
    shown = {fact.name: fact.value for fact in page.facts}
    assert shown["Step time"] == format_seconds(plan.time.step_s)
    assert shown["HBM per chip"] == format_si(plan.memory.total_bytes, "B")
    assert shown["MFU"] == f"{plan.mfu.value:.1%}"
    assert shown["Batch"] == f"{format_count(plan.tokens)} tokens"


def test_every_fact_names_where_it_comes_from(case: Case) -> None:
    sources = ("source: spec", "source: calibrated", "given")
    assert all(any(source in f.source for source in sources) for f in case[2].facts)


def test_candidates_and_losers_are_those_of_the_search(case: Case) -> None:
    found, plan, page = case
    rows = [(row[1], row[4], row[5]) for row in page.candidates.rows]
    assert rows == [
        (format_seconds(c.step_s), c.layout.text, str(c.mesh)) for c in found.candidates
    ]
    assert page.losers
    assert [row[3] for row in page.losers.rows] == [a.because for a in plan.alternatives]


def test_the_memory_bars_hold_what_the_candidates_hold(case: Case) -> None:
    found, plan, page = case
    stacks = page.memory.stacks
    assert [s.total for s in stacks.stacks] == [c.memory.total_bytes for c in found.candidates]
    assert stacks.capacity_bytes == plan.memory.capacity_bytes


def test_the_plot_passes_through_the_plan(case: Case) -> None:
    found, plan, page = case
    chosen = dict(page.times.plot.lines[-1].points)
    assert page.times.plot.asked == plan.tokens
    assert chosen[plan.tokens] == found.candidates[0].time.collectives_s("sum")


def test_the_plan_file_in_the_page_is_the_plan(case: Case) -> None:
    _, plan, page = case
    (block,) = re.findall(r"<pre><code>(.*?)</code></pre>", plan_html(page), re.DOTALL)
    assert from_json(html.unescape(block)) == plan


def test_each_source_row_has_its_page(case: Case) -> None:
    page = case[2]
    assert len(page.sources.rows) == len(page.source_links)
    facts = [row[0] for row in page.sources.rows]
    assert {"v5e flops.bf16", "v5e hbm_bytes_per_s", "v5e torus.link_bytes_per_s"} <= set(facts)
    assert facts[-1] == "llama3-8b sizes"


def test_a_hostile_title_stays_text(case: Case) -> None:
    found, plan, _ = case
    named = replace(MODEL, title="<script>alert(1)</script>")
    page = report_page(named, QUESTION, found, replace(plan, model=named))
    assert "<script" not in plan_html(page)
    assert "&lt;script&gt;" in plan_html(page)


def test_a_pipeline_is_drawn_with_its_own_seconds() -> None:
    mesh, micro = parse_mesh("P=4,X=2", on="v5e:4x2"), Microbatching(8)
    best = price_one(QUESTION, parse_layout("fsdp=X,pp=P"), mesh, micro, REMATS["block"])
    _, plan, page = case_of(Search((best,), 1, 0, 0, 0))
    assert page.losers is None
    assert page.pipeline
    chart = page.pipeline.chart
    assert len(chart.rows) == plan.stages == 4
    assert format_seconds(plan.time.bubble_s) in chart.caption
    assert all(re.search(r"\d [mu]?s to [\d.]+ [mu]?s$", bar.tooltip) for bar in chart.bars)


def test_the_file_is_written_or_the_flag_is_named(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, plan, page = case

    def priced(*_: object) -> PlanPage:
        return page

    monkeypatch.setattr(plan_report, "report_page", priced)  # once is enough
    path = tmp_path / "plan.html"
    write_report(str(path), MODEL, QUESTION, found, plan)
    assert path.read_text(encoding="utf-8") == plan_html(page)
    with pytest.raises(UsageError, match="cannot write") as error:
        write_report(str(tmp_path / "none" / "plan.html"), MODEL, QUESTION, found, plan)
    assert "--html" in str(error.value.hint)
