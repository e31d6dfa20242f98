"""Records as tables and pictures in a notebook: `%load_ext rooflight.notebook`.

In: the shell of IPython. Out: formatters of its kind for our records. The records know nothing of
it, and IPython itself is not imported.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol  # Any: a record of the type it is registered for

from rooflight.algebra.contract import Strategy
from rooflight.algebra.notation import Contraction
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.judge import Verdict
from rooflight.costs.choose import Choice, Price
from rooflight.costs.network import NetworkTime
from rooflight.costs.roofline import OpTime
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.chip import Chip
from rooflight.hardware.mesh import Mesh
from rooflight.hardware.slice import Slice
from rooflight.measure.reconcile.gap import Gap
from rooflight.measure.trace.table import StepTable
from rooflight.models.spec import ModelSpec
from rooflight.plan.file.record import Plan
from rooflight.ui.notebook.gaps import gap_html
from rooflight.ui.notebook.hardware import (
    calibration_html,
    chip_html,
    mesh_html,
    model_html,
    slice_html,
)
from rooflight.ui.notebook.plans import plan_html
from rooflight.ui.notebook.products import (
    choice_html,
    contraction_html,
    network_html,
    op_html,
    price_html,
    strategy_html,
)
from rooflight.ui.notebook.steps import program_verdict_html, step_table_html, verdict_html

__all__ = ["RENDERERS", "load_ipython_extension", "unload_ipython_extension"]

Render = Callable[[Any], str]
RENDERERS: Mapping[type, Render] = {
    Chip: chip_html,
    Slice: slice_html,
    Mesh: mesh_html,
    ModelSpec: model_html,
    Calibration: calibration_html,
    Contraction: contraction_html,
    Strategy: strategy_html,
    Price: price_html,
    Choice: choice_html,
    NetworkTime: network_html,
    OpTime: op_html,
    Plan: plan_html,
    Verdict: verdict_html,
    ProgramVerdict: program_verdict_html,
    StepTable: step_table_html,
    Gap: gap_html,
}


class _Formatter(Protocol):
    """What IPython has for each kind of output."""

    def for_type(self, typ: type, func: Render) -> object: ...
    def pop(self, typ: type, default: None) -> object: ...


class _DisplayFormatter(Protocol):
    @property
    def formatters(self) -> Mapping[str, _Formatter]: ...


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
