"""Records in a real IPython shell: HTML of our own for each, and nothing for anything else."""

import dataclasses
from collections.abc import Generator
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Any, cast  # Any: IPython's shell, which is not typed

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

import rooflight as rf
from rooflight.algebra.contract import strategies
from rooflight.algebra.notation import parse_contraction
from rooflight.cli.main import main
from rooflight.compile.aot.program import verify_program
from rooflight.compile.findings.verify import Verdict, verify
from rooflight.costs.choose import choose
from rooflight.costs.network import collective_time
from rooflight.costs.roofline import matmul_time
from rooflight.dtypes import DTYPES
from rooflight.hardware.calibration import shipped_calibrations
from rooflight.hardware.catalog import chip_names, load_chip
from rooflight.hardware.mesh import parse_mesh
from rooflight.hardware.slice import parse_slice
from rooflight.measure.reconcile.gap import Compiled, Planned, Timed, Traced, explain_gap
from rooflight.measure.trace.read import EXAMPLE, read_trace
from rooflight.measure.trace.table import step_table
from rooflight.models.presets import load_model, model_names
from rooflight.notebook import RENDERERS
from rooflight.plan.file.record import read_plan
from rooflight.units import format_seconds

from .conftest import ROOT

BF16 = DTYPES["bf16"]
VOID = {"meta", "br", "hr", "img", "wbr", "rect", "line", "circle", "path", "polyline"}


class Balanced(HTMLParser):
    """Fails where an element is not closed, and keeps the words."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.feed(markup)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data


@pytest.fixture(scope="module")
def shell() -> Generator[Any]:
    shell = cast(Any, InteractiveShell.instance())
    shell.run_line_magic("load_ext", "rooflight.notebook")
    yield shell
    InteractiveShell.clear_instance()


def html(shell: Any, value: object) -> str | None:
    """What a notebook would show."""
    return shell.display_formatter.format(value)[0].get("text/html")


def some_choice() -> Any:
    product = parse_contraction("A[I_X,J] * B[J_X,K_Y] -> C[I_X,K_Y]")
    mesh = parse_mesh("X=4,Y=4", on="v5e:4x4")
    sizes = {"I": 8192, "J": 8192, "K": 32768}
    return choose(strategies(product), dims=sizes, mesh=mesh, dtype=BF16)


def test_a_choice_shows_its_steps_its_reason_and_what_lost(shell: Any) -> None:
    choice = some_choice()
    words = Balanced(html(shell, choice) or "").words
    assert format_seconds(choice.best.expected_s) in words
    assert choice.best.summary in words and choice.because in words
    assert all(str(step.step) in words for step in choice.best.steps)
    assert all(loser.summary in words for loser in choice.losers)


def test_parts_of_a_product_show_themselves(shell: Any) -> None:
    choice = some_choice()
    gather = next(step for step in choice.best.steps if step.network)
    for value, expected in (
        (choice.best, format_seconds(choice.best.lower_s)),
        (choice.best.strategy, str(choice.best.steps[0].step)),
        (choice.best.strategy.contraction, "ways to compute it"),
        (gather.network, "x bandwidth"),
        (collective_time("all_reduce", 1e9, parse_mesh("X=8", on="h100:8").group("X")), "node"),
        (matmul_time(load_chip("v5e"), m=8, k=512, n=512, lhs=BF16, rhs=BF16, out=BF16), "HBM"),
    ):
        assert expected in Balanced(html(shell, value) or "").words


def test_answers_of_the_planner_show_themselves(shell: Any) -> None:
    held = rf.fit("llama3-70b", on="h100:8x4", layout="tp=8,dp=4", batch="1Mi", seq=8192)
    shown = html(shell, held) or ""
    words = Balanced(shown).words
    assert "DOES NOT FIT" in words and all(fix.change in words for fix in held.fixes)
    assert all(part.name in shown.partition("<svg")[2] for part in held.memory.parts if part.nbytes)
    plan = rf.plan_training("llama3-8b", on="v5p:2x2x4", batch="256Ki", seq=4096)
    assert "is slower" in Balanced(html(shell, rf.why_not(plan, "fsdp=8,tp=2")) or "").words
    fleet = rf.plan_serving(
        "llama3-8b", on="v5e:2x4", rate=5, isl=512, osl=128, ttft="1s", tpot="50ms"
    )
    assert "llama3-8b" in (words := Balanced(html(shell, fleet) or "").words)
    assert str(fleet.best) in words


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_of_the_catalog_shows_its_facts_and_sources(shell: Any, name: str) -> None:
    chip = load_chip(name)
    shown = html(shell, chip) or ""
    words = Balanced(shown).words
    assert all(f"flops.{dtype}" in words for dtype in chip.flops)
    assert ("<svg" in shown) == bool(chip.flops and chip.hbm_bytes_per_s)
    titles = {source.title for fact, source in chip.sources.items() if fact.startswith("flops.")}
    assert all(title in words for title in titles)


def test_slices_meshes_models_and_calibrations_show_themselves(shell: Any) -> None:
    assert "8,960 chips" in Balanced(html(shell, parse_slice("v5p:16x20x28")) or "").words
    assert "X=4@x" in Balanced(html(shell, parse_mesh("X=4,Y=4", on="v5e:4x4")) or "").words
    for name in model_names():
        assert "parameters" in Balanced(html(shell, load_model(name)) or "").words
    for one in shipped_calibrations().values():
        assert f"{one.median_error:.1%}" in Balanced(html(shell, one) or "").words


def check_verdict(shell: Any, verdict: Verdict) -> None:
    words = Balanced(html(shell, verdict) or "").words
    assert verdict.plan.slice in words
    assert all(finding.words in words for finding in verdict.findings)
    assert verdict.collectives and "right after partitioning" in words


def test_a_plan_shows_time_memory_reasons_and_what_lost(
    shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    question = ["llama3-8b", "--on", "v5e:4x4", "--batch", "64Ki", "--seq", "4096"]
    assert main(["plan", "train", *question, "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    plan = read_plan(str(tmp_path / "plan.json"))
    shown = html(shell, plan) or ""
    text = Balanced(shown).words
    assert format_seconds(plan.time.step_s) in text and "<svg" in shown
    assert all(choice.because in text for choice in plan.choices)
    assert all(other.because in text for other in plan.alternatives)
    if find_spec("libtpu"):
        check_verdict(shell, verify(read_plan(str(tmp_path / "plan.json"))))
    hostile = dataclasses.replace(plan, layout="<script>alert(1)</script>")
    assert "<script>alert(1)" not in (html(shell, hostile) or "")


def test_a_table_of_a_trace_adds_up(shell: Any) -> None:
    table = step_table(read_trace(EXAMPLE))
    words = Balanced(html(shell, table) or "").words
    assert all(row.key in words for row in table.rows)
    assert "3 steps of 214 ms on 2 devices" in words


def test_a_gap_shows_every_cause_and_what_nobody_explains(shell: Any) -> None:
    traced = Traced(1.5, 0.2, 0.4, 0.0, {"next batch": 0.05}, 0.1, 0.1, 0.0)
    compiled = Compiled(1.2, None, 0.5)
    gap = explain_gap(Planned(1.0, 1.0, 0.5, 0.0), compiled, traced, Timed(2.3, 2.25))
    words = Balanced(html(shell, gap) or "").words
    assert all(cause.name in words for cause in gap.causes)
    assert all(term.name in words for term in gap.terms)
    assert "planned 1 s, measured 2.3 s" in words and "unattributed" in words


def test_a_cell_of_a_notebook_displays_a_record(shell: Any) -> None:
    cell = "from rooflight import parse_slice; result = parse_slice('v5e:4x4'); result"
    done = shell.run_cell(cell, silent=True)
    assert done.success
    assert "16 chips of TPU v5e" in (html(shell, shell.user_ns["result"]) or "")


def test_verdicts_show_their_findings_and_collectives(shell: Any) -> None:
    pytest.importorskip("libtpu")
    folder, mesh = str(ROOT / "docs" / "guides"), parse_mesh("X=4,Y=4", on="v5e:4x4")
    verdict = verify_program("steps:build", mesh, until="partitioned", folder=folder)
    words = Balanced(html(shell, verdict) or "").words
    assert f"{len(verdict.findings)} findings" in words
    assert all(f.words in words and f.fix in words for f in verdict.findings)
    assert verdict.partitioned and "all-reduce" in words
    sound = dataclasses.replace(verdict, findings=())
    assert "no finding" in Balanced(html(shell, sound) or "").words


def test_a_compiled_step_shows_itself(shell: Any) -> None:
    step = rf.read_hlo(ROOT / "tests" / "verify" / "dumps" / "fsdp")
    words = Balanced(html(shell, step) or "").words
    assert "10 collectives of 355 MB in all" in words and "reduce-scatter" in words


def test_unloading_leaves_ipython_as_it_was(shell: Any) -> None:
    formatter = shell.display_formatter.formatters["text/html"]
    assert all(kind in formatter.type_printers for kind in RENDERERS)
    shell.run_line_magic("unload_ext", "rooflight.notebook")
    assert not any(kind in formatter.type_printers for kind in RENDERERS)
    assert html(shell, parse_slice("v5e:4x4")) is None
    shell.run_line_magic("load_ext", "rooflight.notebook")


def test_records_do_not_render_themselves() -> None:
    assert not any(hasattr(kind, "_repr_html_") for kind in RENDERERS)
