"""What `rooflight verify` shows: a verdict in a line or two, tables, a document."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rooflight.algebra.notation import Axes
from rooflight.cli.time_page import time_document, time_line, time_table
from rooflight.compile.expected.match import Matching, Surplus
from rooflight.compile.expected.train import Expected
from rooflight.compile.findings.baseline import Comparison
from rooflight.compile.findings.finding import Finding, collective_seconds
from rooflight.compile.findings.verify import Verdict, terms_of
from rooflight.compile.hlo.collectives import Collective
from rooflight.hardware.mesh import Mesh
from rooflight.plan.file.record import Plan
from rooflight.program.from_plan.served_step import ServedStep
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, format_si

_ROWS = 12


def answer(verdict: Verdict) -> str:
    """Whether what was verified is as planned, and by how much."""
    lines = [_head(verdict)]
    if verdict.matching:
        lines.append(_agreement(verdict.matching))
    failed = verdict.failed
    if failed:
        lines.append(f"The compiler: {failed.outcome}. {failed.last_words}")
    lines += [f"The compiler warns: {text}" for text in verdict.warnings]
    lines.append(_memory(verdict))
    lines.append(time_line(verdict.plan.time, verdict.time))
    return "\n".join(lines)


def _head(verdict: Verdict) -> str:
    plan = verdict.plan
    what = f"{plan.model.name}, {plan.layout} on {plan.slice}"
    seconds = max(d.seconds for d in verdict.done)
    return f"{what}: {_verified(verdict)} (compiled in {seconds:.0f} s, plan {verdict.hash})."


def _verified(verdict: Verdict) -> str:
    """Says no more than was asked of the compiler."""
    if count := len(verdict.findings):
        return f"{count} finding{'s' if count > 1 else ''}"
    fits = "memory was not asked for" if verdict.memory is None else "the step fits"
    return f"the collectives are as planned, {fits}"


def _agreement(matching: Matching) -> str:
    if not matching.found_bytes and not matching.missing:
        return "No collective is expected, and the compiler made none."
    total = format_si(matching.found_bytes, "B")
    return (
        f"{format_count(matching.matched_count)} collectives,"
        f" {matching.matched_share:.2%} of the bytes, are the expected ones in kind, axes, bytes"
        f" and count; the compiler has {total} per step."
    )


def _memory(verdict: Verdict) -> str:
    planned = format_si(verdict.plan.memory.total_bytes, "B")
    if verdict.memory is None:
        return f"Planned memory: {planned}; the compiler's is unknown before the schedule."
    total = verdict.memory.total_bytes
    parts = [f"{k} {format_si(n, 'B')}" for k, n in verdict.memory.by_category.items() if n]
    ratio = total / verdict.plan.memory.total_bytes
    return (
        f"Planned memory: {planned}; the compiler's: {format_si(total, 'B')}, {ratio:.2f} times"
        f" as much ({', '.join(parts)})."
    )


def tables(verdict: Verdict, *, everything: bool, with_time: bool = True) -> list[str]:
    """Findings, then what is left out of the derivation by name, memory by term, and time."""
    most = None if everything else _ROWS
    blocks = [findings_text(verdict.findings, everything=everything)]
    if verdict.matching:
        blocks += [
            _missing(verdict.matching, most),
            _surprises(verdict.matching, most),
            _named(verdict.matching),
        ]
    blocks += [_replicated(verdict), _unseen(verdict, most), _terms(verdict)]
    if verdict.time and with_time:
        blocks.append(time_table(verdict.plan.time, verdict.time))
    return [block for block in blocks if block]


def _missing(matching: Matching, most: int | None) -> str:
    ordered = sorted(matching.missing, key=lambda m: -m.nbytes)
    rows = [[*_cells(m.expected, m.count), m.expected.because] for m in ordered[:most]]
    header = ["missing", "axes", "bytes", "times", "of", "step"]
    return table(header, rows, align="llrrll") if rows else ""


def _cells(expected: Expected, count: int) -> list[str]:
    return [
        expected.kind.replace("_", "-"),
        _axes(expected.axes),
        format_si(expected.nbytes, "B"),
        format_count(count),
        expected.op,
    ]


def _axes(axes: Axes | None) -> str:
    return "unknown" if axes is None else "+".join(axes)


def _surprises(matching: Matching, most: int | None) -> str:
    ordered = sorted(matching.surprises, key=lambda s: -s.nbytes)
    rows = [_surplus(s) for s in ordered[:most]]
    header = ["not expected", "axes", "bytes", "times", "of", "from", "instruction"]
    return table(header, rows, align="llrrlll") if rows else ""


def _surplus(surplus: Surplus) -> list[str]:
    found = surplus.collective
    return [
        found.kind.replace("_", "-"),
        _axes(found.axes),
        format_si(found.nbytes, "B"),
        "unknown" if surplus.count is None else format_count(surplus.count),
        surplus.op or "-",
        found.source.rpartition("/")[2] or "-",
        found.name,
    ]


def _named(matching: Matching) -> str:
    rows = [
        [
            name,
            format_count(sum(s.count or 0 for s in found)),
            format_si(sum(s.nbytes for s in found), "B"),
        ]
        for name, found in matching.named.items()
    ]
    header = ["not in the derivation, by design", "times", "bytes per step"]
    return table(header, rows, align="lrr") if rows else ""


def _replicated(verdict: Verdict) -> str:
    rows = [
        [r.name, format_si(r.nbytes, "B"), format_si(r.expected_bytes, "B")]
        for r in verdict.replicated
    ]
    return table(["weight", "a device has", "planned"], rows, align="lrr") if rows else ""


def _unseen(verdict: Verdict, most: int | None) -> str:
    rows = [[name] for name in verdict.unseen[:most]]
    return table(["no argument of the program"], rows, align="l") if rows else ""


def _terms(verdict: Verdict) -> str:
    rows = [
        [t.name, format_si(t.planned_bytes, "B"), format_si(t.program_bytes, "B"), t.because]
        for t in terms_of(verdict.plan)
        if t.because
    ]
    header = ["memory that differs", "planned", "program", "because"]
    return table(header, rows, align="lrrl") if rows else ""


def document(verdict: Verdict) -> dict[str, object]:
    """All of it, for a machine."""
    matching = verdict.matching
    return {
        "plan": verdict.hash,
        "slice": verdict.plan.slice,
        "findings": findings_document(verdict.findings),
        "compiles": [
            {"until": d.request.until, "outcome": d.outcome, "words": d.words, "seconds": d.seconds}
            for d in verdict.done
        ],
        "versions": verdict.done[0].versions,
        "matched": None if matching is None else _matched(matching),
        "collectives": collectives_document(verdict.collectives, verdict.plan.placed()),
        "missing": [] if matching is None else [asdict(m) for m in matching.missing],
        "surplus": [] if matching is None else [_surplus_fields(s) for s in matching.surplus],
        "replicated": [asdict(r) for r in verdict.replicated],
        "unseen": list(verdict.unseen),
        "warnings": list(verdict.warnings),
        "time": {
            "planned_s": verdict.plan.time.roofline_s,
            "compiled": time_document(verdict.time),
        },
        "memory": {
            "planned_bytes": verdict.plan.memory.total_bytes,
            "compiler_bytes": verdict.memory.total_bytes if verdict.memory else None,
            "compiler": dict(verdict.memory.by_category) if verdict.memory else None,
            "terms": [asdict(t) for t in terms_of(verdict.plan)],
        },
    }


def _matched(matching: Matching) -> dict[str, object]:
    return {
        "count": matching.matched_count,
        "bytes": matching.matched_bytes,
        "share": matching.matched_share,
    }


def _surplus_fields(surplus: Surplus) -> dict[str, object]:
    found = surplus.collective
    keys = ("name", "kind", "axes", "dtype", "nbytes", "op_name", "source")
    fields: dict[str, object] = {key: getattr(found, key) for key in keys}
    return fields | {"count": surplus.count, "op": surplus.op, "named": surplus.named}


def expectation(plan: Plan | ServedStep, expected: Sequence[Expected], *, everything: bool) -> str:
    """What a plan expects, the most bytes first."""
    ordered = sorted(expected, key=lambda e: -e.nbytes * e.count)
    rows = [[*_cells(e, e.count), e.because] for e in ordered[: None if everything else _ROWS]]
    total = format_si(sum(e.nbytes * e.count for e in expected), "B")
    count = format_count(sum(e.count for e in expected))
    head = (
        f"{plan.model.name}, {plan.layout} on {plan.slice}: {count} collectives of {total} per step"
        " are expected; nothing was compiled."
    )
    if not rows:
        return head
    shown = table(["expected", "axes", "bytes", "times", "of", "step"], rows, align="llrrll")
    left = len(ordered) - len(rows)
    return f"{head}\n\n{shown}" + (f"\n({left} more rows: -v)" if left else "")


def expectation_document(
    plan: Plan | ServedStep, expected: Sequence[Expected]
) -> dict[str, object]:
    return {"slice": plan.slice, "expected": [asdict(e) for e in expected]}


def findings_text(findings: Sequence[Finding], *, everything: bool) -> str:
    """Two lines each: what it is, what it costs and where; then what to do."""
    shown = findings if everything else findings[:_ROWS]
    lines = [line for finding in shown for line in _lines(finding)]
    left = len(findings) - len(shown)
    return "\n".join([*lines, *([f"({left} more findings: -v)"] if left else [])])


def _lines(finding: Finding) -> tuple[str, str]:
    caller = finding.caller.rpartition("/")[2]
    facts = [cost(finding), finding.place, f"called from {caller}" if caller else ""]
    head = ", ".join(word for word in facts if word)
    more = f"; {finding.count - 1} more like it" if finding.count > 1 else ""
    return f"- {finding.words}{more}" + (f" [{head}]" if head else ""), f"  fix: {finding.fix}"


def cost(finding: Finding) -> str:
    """Seconds per step if it costs time, else bytes on a device."""
    if finding.seconds is not None:
        return f"{format_seconds(finding.seconds)} per step"
    return "" if finding.nbytes is None else f"{format_si(finding.nbytes, 'B')} per device"


def findings_document(findings: Iterable[Finding]) -> list[dict[str, object]]:
    return [asdict(finding) for finding in findings]


def collectives_document(found: Iterable[Collective], mesh: Mesh) -> list[dict[str, object]]:
    """What a later verdict is compared with."""
    keys = ("kind", "axes", "dtype", "nbytes", "count", "source", "op_name")
    rows: list[dict[str, object]] = []
    for one in found:
        fields: dict[str, object] = {key: getattr(one, key) for key in keys}
        rows.append(fields | {"seconds": collective_seconds(one, mesh)})
    return rows


def comparison_text(comparison: Comparison, path: str) -> str:
    """What a change added to a baseline, then what it spared."""
    added, better = comparison.added, comparison.better
    if not added and not better:
        return f"As {path}: no collective and no gigabyte was added."
    head = f"Against {path}: {len(added)} added, {len(better)} better."
    parts = [findings_text(added, everything=True), *(f"- better: {text}" for text in better)]
    return "\n".join([head, *(part for part in parts if part)])


def comparison_document(comparison: Comparison) -> dict[str, object]:
    return {"added": findings_document(comparison.added), "better": list(comparison.better)}
