"""The verb `plan` and the questions after it: JSON, exit codes, one question at a time."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.api.training import training_question
from rooflight.dtypes import DTYPES
from rooflight.errors import RooflightError
from rooflight.hardware.slice import parse_slice
from rooflight.models.graph.build import model_graph
from rooflight.models.presets import load_model
from rooflight.plan.file.record import from_json
from rooflight.plan.training.search.constraint import parse_constraint
from rooflight.plan.training.search.plan import plan_training, train_question
from rooflight.ui.answers.training import plan_answer
from rooflight.ui.text.answer import answer_text

from .command import run

TINY = "plan train llama3.2-1b --on v5e:2x2 --batch 16Ki --seq 4096"


def asked(flags: str) -> dict[str, Any]:
    outcome = run(shlex.split(f"{TINY} {flags} --json"))
    assert outcome.code in (0, 1), outcome.err
    return json.loads(outcome.out)


QUESTIONS = {
    "--why-not tp=2": ("why-not", {"verdict", "because", "terms", "fixes", "candidate", "best"}),
    "--flips": ("flips", {"along", "asked", "flips", "least", "most"}),
    "--what-if ici=2x": ("what-if", {"factors", "change", "before", "after"}),
    "--sensitivity": ("sensitivity", {"before", "rates"}),
    "--scaling strong": ("scaling", {"kind", "bend", "points"}),
    "--pareto": ("pareto", {"num_planned", "points"}),
    "--solve chips": ("solve", {"solve", "limit_s", "on", "tried"}),
    "--tokens 1T": ("tokens", {"runs", "tokens", "steps", "goodput", "failure_source"}),
}


@pytest.mark.parametrize("flags", QUESTIONS)
def test_every_question_has_its_document(flags: str) -> None:
    name, keys = QUESTIONS[flags]
    document = asked(flags)
    assert document["schema"] == 2 and document["verb"] == "plan"
    assert document["question"] == name and keys <= set(document)
    assert document["model"] == "llama3.2-1b" and document["batch"] == 4
    docs = Path(__file__).parents[2] / "docs" / "plan.md"
    for key in keys:
        assert f"`{key}`" in docs.read_text(), f"{key} is not documented"


@pytest.mark.parametrize(
    ("flags", "code", "first"),
    [
        ("--why-not fsdp=4", 0, "fsdp=4 is the plan"),
        ("--why-not tp=3", 1, "tp=3 does not divide: no mesh of v5e:2x2 has such axes"),
        ("--what-if hbm=0.01x", 1, "with hbm x 0.01: nothing fits any more"),
        ("--solve chips --step-time 1e-6", 1, "does not train within 1 us per step on v5e:2x2"),
        ("--tokens 1T --checkpoint-s 10", 0, "tokens per step: fsdp=4"),
        ("--scaling weak", 0, "weak scaling stays above 90%"),
    ],
)
def test_the_first_line_is_the_answer_and_findings_exit_1(
    flags: str, code: int, first: str
) -> None:
    outcome = run(shlex.split(f"{TINY} {flags}"))
    assert (outcome.code, outcome.err) == (code, "")
    assert first in outcome.out.splitlines()[0]


@pytest.mark.parametrize(
    "flags",
    [
        "--why-not tp=2 --flips",
        "--svg curve.svg",
        "--step-time 1",
        "--checkpoint-s 60",
        "--tokens 1T --restart-s 60",
        "--tokens 0",
        "--why-not tp",
        "--what-if warp=2x",
        "--solve chips --step-time never",
        "--flips width",
    ],
)
def test_a_question_that_makes_no_sense_exits_2_with_a_hint(flags: str) -> None:
    outcome = run(shlex.split(f"{TINY} {flags}"))
    assert outcome.code == 2 and outcome.out == "" and "\nhint: " in outcome.err


def test_the_curve_is_written_where_svg_says(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    assert run([*shlex.split(TINY), "--scaling", "strong", "--svg", str(path)]).code == 0
    assert path.read_text().startswith("<svg")


def test_goodput_is_told_with_its_interval() -> None:
    document = asked("--tokens 1T --checkpoint-s 10 --restart-s 100")
    assert 0.9 < document["goodput"] < 1
    assert document["days_with_failures"] > document["runs"][0]["days"]
    assert document["is_failure_rate_assumed"] is True


_WORDS = ("tp", "sp", "fsdp", "pp", "remat", "microbatches", "schedule", "ep", "zz", "")
_VALUES = ("1", "2", "16", "0", "-1", "none", "gate+up", "1f1b", "x", "", "1e99", "3.5")


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(_WORDS), st.sampled_from(_VALUES)), max_size=3))
def test_any_degrees_are_understood_or_one_of_our_errors(pairs: list[tuple[str, str]]) -> None:
    text = ",".join(f"{name}={value}" for name, value in pairs)
    try:
        wanted = parse_constraint(text, model_graph(load_model("llama3.2-1b")))
    except RooflightError as error:
        assert error.hint
        return
    assert wanted.text == text


def test_the_page_says_why_a_slower_row_is_first() -> None:
    text = run(shlex.split("plan train llama3-8b --on v5p:2x2x4 --batch 256Ki --seq 4096")).out
    assert "rows 4, 6-8: forecast faster than a row before, but fewer than two measured" in text
    assert "dp@torus, cp of 2048 tokens per chip (16384 measured)" in text
    assert "so 29% is added in the ranking" in text
    text = run(shlex.split("plan train llama3-8b --on h100:8x16 --batch 1Mi --seq 8192")).out
    assert (
        "row 1 comes before row 2, which is forecast 1.4% faster: of forecasts within 2 %" in text
    )
    assert "rows 2-8: too close to row 1 to call: of 99 measured pairs" in text


def test_rows_that_extrapolate_alike_are_a_tie_and_no_more() -> None:
    question = train_question(
        *(model_graph(load_model("llama3-8b")), parse_slice("h100:8x2"), 64, 4096, DTYPES["bf16"])
    )
    found = plan_training(question)
    alike = [replace(c, unseen=("cp@far",)) for c in found.candidates]
    slow_first = replace(found, candidates=tuple(alike[::-1]))
    text = answer_text(plan_answer("Llama", question, slow_first))
    assert "forecast faster than a row before" not in text
    assert "extrapolates: fewer than two measured runs have cp@far" in text


def test_405b_on_16384_gpus_is_what_an_engineer_would_run() -> None:
    """16M tokens are 2**24, as people mean it: tensors in the node, stages interleaved."""
    text = run(shlex.split("plan train llama3-405b --on h100:8x2048 --batch 16M --seq 8192")).out
    headline = text.splitlines()[0]
    assert "tp=8@node,pp=16@spine16,vp=8, interleaved" in headline and "32 micro" in headline
    assert "16,777,216 tokens per step" in headline


def test_a_layout_of_ones_own_is_planned_with_its_own_forecast() -> None:
    plan = from_json(run(shlex.split(f"{TINY} --layout fsdp=2,tp=2,remat=block --json")).out)
    best = from_json(run(shlex.split(f"{TINY} --json")).out)
    sizes = sorted(plan.placed().axes.values())
    assert (sizes, plan.remat) == ([2, 2], "block") and plan.layout != best.layout
    assert plan.time.step_s > best.time.step_s and plan.time.forecast is not None
    told = {choice.what: choice.value for choice in plan.choices}
    assert told["asked layout"] == "fsdp=2,tp=2,remat=block"
    question = training_question("llama3.2-1b", on="v5e:2x2", batch="16Ki", seq=4096)
    mine = question.why_not("fsdp=2,tp=2,remat=block", question.search().candidates[0]).candidate
    assert mine is not None and plan.time.step_s == mine.step_s


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--layout tp=3", "no placement of tp=3 divides 4 sequences"),
        ("--layout tp=2 --why-not tp=4", "leave out --why-not or --layout"),
        ("--layout wide=2", "wide"),
    ],
)
def test_a_layout_that_cannot_be_planned_is_refused(flags: str, said: str) -> None:
    outcome = run(shlex.split(f"{TINY} {flags}"))
    assert (outcome.code, outcome.out) == (2, "") and said in outcome.err
