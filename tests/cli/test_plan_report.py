"""The report of a plan: its numbers are the record's, and the file is written where asked."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rooflight.cli.planning import plan_report
from rooflight.cli.planning.plan_report import report_page, write_report
from rooflight.dtypes import DTYPES
from rooflight.errors import UsageError
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.layout.rules import parse_layout
from rooflight.models.presets import load_model
from rooflight.plan.file.record import Plan, from_json
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.memory.remat import REMATS
from rooflight.plan.training.search.candidate import Question, price_one
from rooflight.plan.training.search.constraint import placed_text
from rooflight.plan.training.search.plan import plan_record
from rooflight.plan.training.search.run import Search, search_training
from rooflight.ui.answers.training import plan_answer
from rooflight.units import format_count, format_seconds, format_si

MODEL = load_model("llama3-8b")
QUESTION = Question(model_graph(MODEL), parse_slice("v5e:4x2"), 16, 4096, DTYPES["bf16"])
Case = tuple[Search, Plan, str]


def case_of(found: Search) -> Case:
    plan = plan_record(MODEL, QUESTION, found)
    return found, plan, report_page(MODEL, QUESTION, found, plan)


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(search_training(QUESTION, count=3))


def cells(page: str, caption: str) -> list[list[str]]:
    """The rows of a table of the page."""
    (table,) = re.findall(rf"<caption>{caption}</caption>(.*?)</table>", page, re.DOTALL)
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table)[1:]
    return [
        [html.unescape(re.sub("<[^>]*>", "", c)) for c in re.findall(r"<t[hd].*?</t[hd]>", r)]
        for r in rows
    ]


def test_the_page_says_what_the_terminal_says(case: Case) -> None:
    found, plan, page = case
    said = plan_answer(MODEL.title, QUESTION, found)
    for words in (*said.sentences, *said.notes):
        assert html.escape(words) in page
    rows = cells(page, "The fastest layouts that fit, best first")
    assert [row[1] for row in rows] == [placed_text(c) for c in found.candidates]
    assert [row[3] for row in rows] == [format_seconds(c.step_s) for c in found.candidates]
    assert [row[-1] for row in rows] == [
        format_si(c.memory.total_bytes, "B") for c in found.candidates
    ]
    others = cells(page, "Why not the others")
    assert [row[-1] for row in others] == [a.because for a in plan.alternatives]


def test_what_keeps_tensor_parallelism_out_is_said() -> None:
    """One kv head where the framework splits no queries; a vocabulary that no node divides."""
    model = replace(load_model("gemma-2b"), vocab=50257)
    on, framework = parse_slice("v5e:2x2"), FRAMEWORKS["maxtext"]
    question = Question(model_graph(model), on, 16, 512, DTYPES["bf16"], framework=framework)
    said = plan_answer(model.title, question, search_training(question, count=1)).notes
    assert any("maxtext cannot split the model's one kv head" in note for note in said)
    assert any("pad it to 50,304" in note for note in said)
    ours = replace(question, graph=model_graph(load_model("gemma-2b")))
    ours = replace(ours, framework=FRAMEWORKS["rooflight"])
    said = plan_answer(model.title, ours, search_training(ours, count=1)).notes
    assert not any("no tensor parallelism" in note for note in said)


def test_a_forecast_is_not_said_to_be_a_roofline(case: Case) -> None:
    _, plan, page = case
    forecast = plan.time.forecast
    assert forecast and html.escape(forecast.basis) in page
    assert "Nothing here was measured" not in page and "not priced" not in page
    bare = replace(QUESTION, rank="roofline")
    slow = search_training(bare, count=1)
    page = report_page(MODEL, bare, slow, plan_record(MODEL, bare, slow))
    assert "Nothing here was measured" in page and "forecast by" not in page


def test_the_time_against_batch_passes_through_the_plan(case: Case) -> None:
    found, plan, page = case
    rows = {
        row[0]: row
        for row in cells(page, "Seconds of matmuls, and of the collectives of each scheme")
    }
    own = rows[format_count(plan.tokens)][-1]
    assert own == format_seconds(found.candidates[0].time.collectives_s("sum"))


def test_the_plan_file_in_the_page_is_the_plan(case: Case) -> None:
    _, plan, page = case
    (block,) = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    assert from_json(html.unescape(block)) == plan


def test_each_source_row_has_its_page(case: Case) -> None:
    rows = cells(case[2], "What the numbers above rest on")
    facts = [row[0] for row in rows]
    assert {"v5e flops.bf16", "v5e hbm_bytes_per_s", "v5e torus.link_bytes_per_s"} <= set(facts)
    assert facts[-1] == "llama3-8b sizes" and all(row[3] for row in rows)


def test_a_hostile_title_stays_text(case: Case) -> None:
    found, plan, _ = case
    named = replace(MODEL, title="<script>alert(1)</script>")
    page = report_page(named, QUESTION, found, replace(plan, model=named))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_pipeline_is_drawn_with_its_own_seconds() -> None:
    mesh, micro = parse_mesh("P=4,X=2", on="v5e:4x2"), Microbatching(8)
    best = price_one(QUESTION, parse_layout("fsdp=X,pp=P"), mesh, micro, REMATS["block"])
    _, plan, page = case_of(Search((best,), 1, 0, 0, 0))
    assert "Why not the others" not in page and "All stages run in step" in page
    assert page.count(' id="pipeline"') == 1 and plan.stages == 4
    assert format_seconds(plan.time.bubble_s) in page


def test_the_file_is_written_or_the_flag_is_named(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, plan, page = case

    def priced(*_: object) -> str:
        return page

    monkeypatch.setattr(plan_report, "report_page", priced)  # once is enough
    path = tmp_path / "plan.html"
    write_report(str(path), MODEL, QUESTION, found, plan)
    assert path.read_text(encoding="utf-8") == page
    with pytest.raises(UsageError, match="cannot write") as error:
        write_report(str(tmp_path / "none" / "plan.html"), MODEL, QUESTION, found, plan)
    assert "--html" in str(error.value.hint)
