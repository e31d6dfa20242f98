"""A compiled program, or a verdict on one, as an HTML file that stands alone."""

from dataclasses import replace

from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.aot.run import read_compilation
from rooflight.compile.aot.target import usable_bytes
from rooflight.compile.findings.document import known_of
from rooflight.compile.findings.verify import Verdict
from rooflight.compile.hlo.step import CompiledStep
from rooflight.compile.time.step import CompiledTime
from rooflight.ui.answer import Answer, Table
from rooflight.ui.answers.compiled import MOST_ROWS, drawn_parts, step_answer, step_tables
from rooflight.ui.answers.verdict import verdict_answer
from rooflight.ui.html.answer import answer_page


def step_page(
    step: CompiledStep, stage: str, time: CompiledTime | None, limit_bytes: int | None
) -> str:
    """A dump on its own."""
    said = step_answer(step, stage, time)
    spent = said.tables[:1] if time else ()
    parts = {"Time": Answer((), tables=spent)} if spent else {}
    parts |= drawn_parts(step, time, limit_bytes)
    parts["The program"] = _program(said.tables[len(spent) :])
    title = f"{step.module.name}, one of {step.module.num_partitions:,} devices"
    return answer_page(title, f"Compiled program, {stage}", said, parts)


def verdict_page(verdict: Verdict | ProgramVerdict) -> str:
    """A verdict, and the last program that the compiler got through."""
    said = verdict_answer(known_of(verdict))
    parts = {"Verdict": Answer((), tables=said.tables)} if said.tables else {}
    is_of_plan = isinstance(verdict, Verdict)
    subject = verdict.plan.model.title if is_of_plan else verdict.build
    kicker = f"Verdict on {f'plan {verdict.hash}' if is_of_plan else 'a function'}"
    done = [one for one in verdict.done if one.outcome in ("compiled", "out of memory")]
    if done:
        step, limit_bytes = read_compilation(done[-1]), usable_bytes(verdict.mesh, done[-1].axes)
        drawn = drawn_parts(step, verdict.time, limit_bytes).items()
        parts |= {heading: part for heading, part in drawn if part.pictures}
        parts["The program"] = _program(step_tables(step, MOST_ROWS))
        kicker += f", compiled until {done[-1].request.until}"
    return answer_page(f"{subject} on {verdict.mesh.slice}", kicker, said, parts)


def _program(tables: tuple[Table, ...]) -> Answer:
    """The first table open, the others behind their captions."""
    return Answer((), tables=(*tables[:1], *(replace(t, is_folded=True) for t in tables[1:])))
