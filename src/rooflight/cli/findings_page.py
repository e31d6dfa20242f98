"""Findings and comparisons in text and JSON: the same for a plan and for any program."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rooflight.compile.findings.baseline import Comparison
from rooflight.compile.findings.finding import Finding, collective_seconds
from rooflight.compile.hlo.collectives import Collective
from rooflight.hardware.mesh import Mesh
from rooflight.units import format_seconds, format_si

_ROWS = 12


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
