"""Steps that were compiled or measured as HTML: verdicts with their findings, tables of traces."""

from collections.abc import Sequence

from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.findings.judge import Verdict
from rooflight.compile.hlo.collectives import Collective
from rooflight.measure.trace.table import StepTable
from rooflight.ui.html.page import Grid, grid, paragraph
from rooflight.ui.notebook.frame import framed
from rooflight.units import format_seconds, format_si


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


def verdict_html(verdict: Verdict) -> str:
    """Whether the compiler did what the plan says."""
    plan = verdict.plan
    words = [finding.words for finding in verdict.findings]
    return _judged(f"{plan.model.title} on {plan.slice}", words, verdict.collectives)


def program_verdict_html(verdict: ProgramVerdict) -> str:
    """What is odd about a function, with lines and fixes."""
    words = [f"{f.words} [{f.place}]; fix: {f.fix}" for f in verdict.findings]
    collectives = verdict.partitioned.collectives if verdict.partitioned else ()
    return _judged(f"{verdict.build} on {verdict.mesh.slice}", words, collectives)


def _judged(heading: str, words: Sequence[str], collectives: Sequence[Collective]) -> str:
    count = f"{len(words)} finding{'' if len(words) == 1 else 's'}" if words else "as it should be"
    rows = tuple(
        (
            c.kind.replace("_", "-"),
            "+".join(c.axes) if c.axes else "-",
            format_si(c.nbytes, "B"),
            "-" if c.count is None else str(c.count),
            c.source.rpartition("/")[2] or "-",
        )
        for c in sorted(collectives, key=lambda c: -(c.bytes_per_step or 0))
    )
    header = ("collective", "axes", "bytes", "times", "from")
    table = [grid(Grid("right after partitioning", header, rows, "llrrl"))] if rows else []
    return framed(f"{heading}: {count}", *map(paragraph, words), *table)
