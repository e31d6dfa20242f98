"""Records as tables and pictures in a notebook: `%load_ext rooflight.notebook`.

In: the shell of IPython. Out: formatters of its kind for our records. The records know nothing of
it, and IPython itself is not imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol  # Any: a record of the type it is registered for

from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import Contraction
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.document import known_of
from rooflight.compile.findings.verify import Verdict
from rooflight.compile.hlo.step import CompiledStep
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
from rooflight.ui.answer import Answer
from rooflight.ui.answers.compiled import step_answer
from rooflight.ui.answers.gap import gap_answer
from rooflight.ui.answers.matmul import choice_answer, price_answer
from rooflight.ui.answers.roofline import op_answer
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.html.answer import facts_markup, section
from rooflight.ui.html.page import Grid, bullets, figure, grid, paragraph
from rooflight.ui.notebook.hardware import (
    calibration_html,
    chip_html,
    framed,
    mesh_html,
    model_html,
    slice_html,
)
from rooflight.ui.svg.memory import MemoryStacks, Stack, memory_svg
from rooflight.units import format_count, format_seconds, format_si

# Steps that were compiled or measured as HTML: verdicts with their findings, tables of traces.


def contraction_html(contraction: Contraction) -> str:
    """What it could do: a line for each strategy."""
    ways = strategies(contraction)
    rows = tuple((str(i), "; ".join(map(str, way.steps))) for i, way in enumerate(ways, start=1))
    table = grid(Grid(f"{len(ways)} ways to compute it", ("", "steps"), rows, "rw"))
    return framed(str(contraction), table)


def strategy_html(strategy: Strategy) -> str:
    return framed(str(strategy.contraction), bullets([str(step) for step in strategy.steps]))


def price_html(price: Price) -> str:
    """Each step with its time and what binds it."""
    return answer_html(price_answer(price))


def choice_html(choice: Choice) -> str:
    """The best, and the others in order of their price."""
    return answer_html(choice_answer(choice, most=None))


def network_html(time: NetworkTime) -> str:
    """The bounds of a collective."""
    rows = tuple(
        (name, format_seconds(value))
        for name, value in (
            ("expected", time.expected_s),
            ("lower", time.lower_s),
            ("upper", time.upper_s),
        )
    )
    heading = f"{format_seconds(time.expected_s)}, bound by {time.binds}"
    return framed(heading, grid(Grid("bounds", ("bound", "time"), rows, "lr")))


def op_html(op: OpTime) -> str:
    """What an operation needs of each roof."""
    return answer_html(op_answer(op))


def plan_html(plan: Plan) -> str:
    """The first lines are the answer, as on the terminal."""
    tokens = format_count(plan.batch * plan.seq)
    heading = f"{plan.model.title} on {plan.slice}, {tokens} tokens per step: {plan.layout}"
    words = (
        f"{format_seconds(plan.time.step_s)} per step, bound by {plan.binds};"
        f" {plan.mfu.value:.1%} MFU ({plan.mfu.convention}), mesh {plan.mesh}"
    )
    return framed(heading, paragraph(words), _time(plan), _memory(plan), _why(plan), *_lost(plan))


def _time(plan: Plan) -> str:
    time = plan.time
    rows = [
        ("forecast" if time.forecast else "roofline", format_seconds(time.step_s)),
        ("lower: everything overlaps", format_seconds(time.lower_s)),
        ("upper: nothing does", format_seconds(time.upper_s)),
        ("matmuls", format_seconds(time.matmuls_s)),
        ("of these recomputed", format_seconds(time.recompute_s)),
        ("bubble", format_seconds(time.bubble_s)),
        *((f"collectives over {a}", format_seconds(s)) for a, s in time.collectives_s.items()),
    ]
    return grid(Grid("time of a step", ("what", "seconds"), tuple(rows), "lr"))


def _memory(plan: Plan) -> str:
    held = plan.memory
    parts = tuple(part.name for part in held.parts)
    stack = Stack(f"stage {held.stage}", tuple(part.nbytes for part in held.parts))
    total, room = (format_si(n, "B") for n in (held.total_bytes, held.capacity_bytes))
    title = f"A chip holds {total} of {room}"
    picture = memory_svg(MemoryStacks(title, parts, (stack,), held.capacity_bytes))
    words = "; ".join(f"{part.name} {format_si(part.nbytes, 'B')}" for part in held.parts)
    return figure(picture, caption=title, describe=words)


def _why(plan: Plan) -> str:
    rows = tuple((choice.what, choice.value, choice.because) for choice in plan.choices)
    return grid(Grid("chosen, and why", ("what", "value", "because"), rows, "llw"))


def _lost(plan: Plan) -> list[str]:
    rows = tuple(
        (
            other.layout,
            other.mesh,
            format_seconds(other.step_s),
            format_si(other.hbm_bytes, "B"),
            other.because,
        )
        for other in plan.alternatives
    )
    header = ("layout", "mesh", "step", "HBM", "because")
    return [grid(Grid("what lost", header, rows, "llrrw"))] if rows else []


def step_table_html(table: StepTable) -> str:
    """Where the time of a step went."""
    count = f"{len(table.steps)} steps of {format_seconds(table.seconds)}"
    heading = f"{count} on {table.num_devices} devices"
    rows = tuple(
        (
            row.key,
            format_seconds(row.seconds),
            f"{row.seconds / table.seconds:.1%}",
            f"{row.count:.3g}",
            "-" if row.flops_per_s is None else format_si(row.flops_per_s, "FLOP/s"),
        )
        for row in table.rows
    )
    header = (table.by, "seconds", "of step", "times", "FLOP/s")
    return framed(heading, grid(Grid("one step on one device", header, rows, "lrrrr")))


def verdict_html(verdict: Verdict | ProgramVerdict) -> str:
    """Whether the compiler did what it should, as on the terminal."""
    said = verdict_answer(known_of(verdict))
    return answer_html(
        replace(said, tables=tuple(replace(t, is_folded=False) for t in said.tables))
    )


def step_html(step: CompiledStep) -> str:
    """What a compiled program does, as on the terminal."""
    return answer_html(step_answer(step, "compiled"))


def answer_html(answer: Answer) -> str:
    """Any answer: its first sentence is the heading."""
    heading, *others = answer.sentences
    body = section("answer", "", replace(answer, sentences=tuple(others))).body
    return framed(heading, *facts_markup(answer.facts), *body)


def gap_html(gap: Gap) -> str:
    """From the planned step to the measured one: a waterfall of causes, terms in three columns."""
    return answer_html(gap_answer(gap))


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
    ProgramVerdict: verdict_html,
    CompiledStep: step_html,
    StepTable: step_table_html,
    Gap: gap_html,
}


class _TypeFormatter(Protocol):
    """What IPython has for each kind of output."""

    def for_type(self, typ: type, func: Render) -> object: ...
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
