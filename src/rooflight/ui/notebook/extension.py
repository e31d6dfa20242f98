"""Records as tables and pictures in a notebook: `%load_ext rooflight.notebook`.

In: the shell of IPython. Out: formatters of its kind for our records, each the `Answer` of the
record as HTML. The records know nothing of it, and IPython itself is not imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any, Protocol  # Any: a record of the type it is registered for

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Contraction
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.document import known_of
from rooflight.compile.findings.verify import Verdict
from rooflight.compile.hlo.step import CompiledStep
from rooflight.costs.choose import Choice, Price
from rooflight.costs.network import NetworkTime
from rooflight.costs.roofline import OpTime
from rooflight.dtypes import DTYPES
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.reconcile.gap import Gap
from rooflight.measure.trace.table import StepTable
from rooflight.models.graph.build import model_graph
from rooflight.models.graph.summary import summarize
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan
from rooflight.plan.serving.fleet.search import FleetPlan
from rooflight.plan.training.questions.fixes import Fit
from rooflight.plan.training.questions.why_not import WhyNot
from rooflight.ui.answer import Answer
from rooflight.ui.answers.compiled import step_answer
from rooflight.ui.answers.fit import fit_answer
from rooflight.ui.answers.gap import gap_answer
from rooflight.ui.answers.hardware import (
    calibration_answer,
    chip_answer,
    mesh_answer,
    model_answer,
    slice_answer,
)
from rooflight.ui.answers.questions import why_not_answer
from rooflight.ui.answers.roofline import ChipRoof, op_answer, roofline_answer
from rooflight.ui.answers.serving import fleet_answer
from rooflight.ui.answers.sharded import (
    choice_answer,
    contraction_answer,
    network_answer,
    price_answer,
    strategy_answer,
)
from rooflight.ui.answers.trace import step_table_answer
from rooflight.ui.answers.training_pictures import plan_file_answer
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.html.answer import facts_markup, section
from rooflight.ui.html.style import dark_picture_rules, picture_rules

__all__ = ["RENDERERS", "load_ipython_extension", "unload_ipython_extension"]

_STYLE = (files("rooflight.ui.notebook") / "frame.css").read_text("utf-8")
_ROOFS = ("bf16", "int8", "fp8", "f32")  # of which one is drawn, the first that is known
_SEQ = 8192  # of a model, as on the command line


def _chip(chip: Chip) -> Answer:
    """With the roof over its main memory."""
    dtype = next((d for d in _ROOFS if d in chip.flops), None)
    if dtype is None or chip.hbm_bytes_per_s is None:
        return chip_answer(chip)
    roof = roofline_answer(ChipRoof(chip, DTYPES[dtype], "hbm"), ())
    return replace(chip_answer(chip), pictures=roof.pictures)


def _model(model: ModelSpec) -> Answer:
    dtype = DTYPES["bf16"]
    return model_answer(model, summarize(model_graph(model), seq=_SEQ, dtype=dtype), dtype)


def _choice(choice: Choice) -> Answer:
    return choice_answer(choice, most=None)


def _verdict(verdict: Verdict | ProgramVerdict) -> Answer:
    return verdict_answer(known_of(verdict))


def _step(step: CompiledStep) -> Answer:
    return step_answer(step, "compiled")


_ANSWERS: Mapping[type, Callable[[Any], Answer]] = {
    Chip: _chip,
    Slice: slice_answer,
    Mesh: mesh_answer,
    ModelSpec: _model,
    Calibration: calibration_answer,
    Contraction: contraction_answer,
    Strategy: strategy_answer,
    Price: price_answer,
    Choice: _choice,
    NetworkTime: network_answer,
    OpTime: op_answer,
    Plan: plan_file_answer,
    WhyNot: lambda found: why_not_answer("the plan's question", found),
    Fit: fit_answer,
    FleetPlan: lambda found: fleet_answer(found.question.model.name, found),
    Verdict: _verdict,
    ProgramVerdict: _verdict,
    CompiledStep: _step,
    StepTable: step_table_answer,
    Gap: gap_answer,
}


def answer_html(answer: Answer) -> str:
    """Any answer, nothing of it folded: its first sentence is the heading."""
    heading, *others = answer.sentences
    tables = tuple(replace(table, is_folded=False) for table in answer.tables)
    body = section("answer", "", replace(answer, sentences=tuple(others), tables=tables)).body
    dark = f"@media (prefers-color-scheme: dark) {{ .rooflight {{\n{dark_picture_rules()}\n}} }}"
    style = f"{_STYLE.strip()}\n.rooflight {{\n{picture_rules()}\n}}\n{dark}"
    head = f'<div class="rooflight"><style>\n{style}\n</style>\n<h4>{escape(heading)}</h4>'
    return "\n".join([head, *facts_markup(answer.facts), *body, "</div>"])


def _rendered(build: Callable[[Any], Answer]) -> Callable[[Any], str]:
    return lambda record: answer_html(build(record))


RENDERERS = {kind: _rendered(build) for kind, build in _ANSWERS.items()}


class _TypeFormatter(Protocol):
    """What IPython has for each kind of output."""

    def for_type(self, typ: type, func: Callable[[Any], str]) -> object: ...
    def pop(self, typ: type, default: None) -> object: ...


class _DisplayFormatter(Protocol):
    @property
    def formatters(self) -> Mapping[str, _TypeFormatter]: ...


class _Shell(Protocol):
    @property
    def display_formatter(self) -> _DisplayFormatter: ...


def load_ipython_extension(shell: _Shell) -> None:
    """`%load_ext rooflight.notebook` calls this."""
    for kind, render in RENDERERS.items():
        shell.display_formatter.formatters["text/html"].for_type(kind, render)


def unload_ipython_extension(shell: _Shell) -> None:
    """`%unload_ext rooflight.notebook` calls this."""
    for kind in RENDERERS:
        shell.display_formatter.formatters["text/html"].pop(kind, None)
