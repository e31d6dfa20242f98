"""Two verdicts as JSON, one before a change and one after: what was added, what got better.

In: the documents of `rooflight verify --json`. Out: a `Comparison`. Collectives are added up by
kind and axes; line numbers move with every edit and are only used to say where.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

from rooflight.compile.findings.finding import Finding
from rooflight.errors import UsageError
from rooflight.units import format_count, format_seconds, format_si

_GIGABYTE = 10**9
_TINY = 1000  # bytes per step: the sum of one more metric is nobody's finding
_MORE = 1.01
_KEYS = {"kind", "axes", "nbytes", "count", "source", "seconds"}

Row = Mapping[str, Any]  # one collective of a document; plain JSON


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a change added, each a reason to fail, what it spared, and what is only otherwise."""

    added: tuple[Finding, ...]
    better: tuple[str, ...]
    changed: tuple[str, ...] = ()


def read_baseline(path: str) -> dict[str, Any]:
    """A document that an earlier `verify --json` printed."""
    hint = "make one with: rooflight verify ... --json > verify.json"
    try:
        document: object = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the baseline {path!r}: {error}", hint=hint) from None
    if not _is_verdict(document):
        raise UsageError(f"the baseline must be a verdict of a compile, got {path!r}", hint=hint)
    return document


def _is_verdict(document: object) -> TypeGuard[dict[str, Any]]:
    if not _is_object(document, {"verb", "slice", "collectives", "memory"}):
        return False
    rows: object = document["collectives"]
    return (
        document["verb"] == "verify"
        and _is_object(document["memory"], {"compiler_bytes"})
        and isinstance(rows, list)
        and all(_is_object(row, _KEYS) for row in cast(list[object], rows))
    )


def _is_object(value: object, keys: set[str]) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and keys <= set(cast(dict[str, Any], value))


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Holds a document against an earlier one of the same slice."""
    if before.get("slice") != after.get("slice"):
        raise UsageError(
            f"the baseline is of {before.get('slice')}, this verdict of {after.get('slice')}",
            hint="compare verdicts of one slice",
        )
    groups = [_grouped(document["collectives"]) for document in (before, after)]
    pairs = [(*key, *(g.get(key, []) for g in groups)) for key in groups[0] | groups[1]]
    added = [f for kind, axes, old, new in pairs for f in _added(kind, axes, old, new)]
    better = [text for kind, axes, old, new in pairs for text in _better(kind, axes, old, new)]
    memory = [_memory(document) for document in (before, after)]
    if None not in memory:
        change = (memory[1] or 0) - (memory[0] or 0)
        if change >= _GIGABYTE:
            added.append(_more_memory(change, memory[1] or 0))
        elif change <= -_GIGABYTE:
            better.append(f"{format_si(-change, 'B')} less memory per device")
    return Comparison(tuple(added), tuple(better))


def compare_compilers(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Two compilers on one program: also its schedule, smaller changes of memory, and its time."""
    plain = compare(before, after)
    added, better, changed = list(plain.added), list(plain.better), list[str]()
    old, new = before["schedule"], after["schedule"]
    if old and new:
        for what, key, unit in (("fusions", "fusions", ""), ("copies", "moved_bytes", "B")):
            if old[key] != new[key]:
                changed.append(f"{what}: {_amounts(old[key], new[key], unit)} per step")
        forms = [_by_form(schedule["collectives"]) for schedule in (old, new)]
        for form in sorted(forms[0].keys() | forms[1].keys()):
            (times, nbytes), (now, total) = (f.get(form, (0, 0)) for f in forms)
            if (times, nbytes) != (now, total):
                changed.append(
                    f"scheduled {form}: {_amounts(times, now, '')} times,"
                    f" {_amounts(nbytes, total, 'B')} per step"
                )
    waits = (s["waits_s"] if s else None for s in (old, new))
    steps = (_step_s(document) for document in (before, after))
    for kind, what, was, now in (
        ("added_wait", "waits for collectives", *waits),
        ("added_time", "estimated step", *steps),
    ):
        words = f"{what}: {format_seconds(now or 0)} instead of {format_seconds(was or 0)}"
        if was is None or now is None or max(was, now) <= _MORE * min(was, now):
            continue
        if now < was:
            better.append(words)
        else:
            fix = "stay with the compiler that is quicker here, or take the new one knowing this"
            added.append(Finding(kind, words, fix, seconds=now - was))
    held = [_memory(document) or 0 for document in (before, after)]
    if abs(held[1] - held[0]) < _GIGABYTE and max(held) > _MORE * min(held) > 0:
        changed.append(f"memory: {_amounts(held[0], held[1], 'B')} per device")
    return Comparison(tuple(added), tuple(better), tuple(changed))


def _amounts(old: int, new: int, unit: str) -> str:
    texts = (format_si(n, unit) if unit else format_count(n) for n in (old, new))
    return " -> ".join(texts)


def _by_form(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Executions and bytes by how a collective is written: `all-gather over X, async`."""
    found: dict[str, list[Row]] = {}
    for (kind, axes), group in _grouped(rows).items():
        for row in group:
            found.setdefault(f"{kind.replace('_', '-')} over {axes}, {row['form']}", []).append(row)
    return {form: _totals(group) for form, group in found.items()}


def _step_s(document: Mapping[str, Any]) -> float | None:
    time = document["time"]
    time = time["compiled"] if time and "compiled" in time else time
    return time["seconds"] if time else None


def _grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        axes = "+".join(row["axes"]) if row["axes"] else "unknown axes"
        found.setdefault((row["kind"], axes), []).append(row)
    return found


def _totals(rows: Sequence[Row]) -> tuple[int, int]:
    """Executions and bytes of a step, without what is tiny."""
    large = [r for r in rows if r["nbytes"] * (r["count"] or 1) > _TINY]
    return sum(r["count"] or 1 for r in large), sum(r["nbytes"] * (r["count"] or 1) for r in large)


def _added(kind: str, axes: str, old: Sequence[Row], new: Sequence[Row]) -> Iterator[Finding]:
    (times, nbytes), (now, total) = _totals(old), _totals(new)
    if now <= times and total <= nbytes * _MORE:
        return
    what = f"{kind.replace('_', '-')} over {axes}"
    yield Finding(
        "added_collective",
        f"{what}: {format_count(now)} times per step instead of {format_count(times)},"
        f" {format_si(total, 'B')} instead of {format_si(nbytes, 'B')}",
        "undo what this line changed, or take the new verdict as the baseline",
        seconds=_seconds(new) - _seconds(old),
        nbytes=total - nbytes,
        where=_grown(old, new),
    )


def _better(kind: str, axes: str, old: Sequence[Row], new: Sequence[Row]) -> Iterator[str]:
    (times, nbytes), (now, total) = _totals(old), _totals(new)
    if now <= times and total <= nbytes and (now < times or total * _MORE < nbytes):
        yield (
            f"{kind.replace('_', '-')} over {axes}: {format_count(times)} -> {format_count(now)}"
            f" times, {format_si(nbytes, 'B')} -> {format_si(total, 'B')} per step"
        )


def _seconds(rows: Sequence[Row]) -> float:
    return sum(r["seconds"] or 0.0 for r in rows)


def _grown(old: Sequence[Row], new: Sequence[Row]) -> str:
    """The line of the array whose executions grew most."""
    before = {r["nbytes"]: 0 for r in (*old, *new)}
    for row in old:
        before[row["nbytes"]] += row["count"] or 1
    left: list[tuple[int, str]] = []
    for row in sorted(new, key=lambda r: -r["nbytes"]):
        known = min(before[row["nbytes"]], row["count"] or 1)
        before[row["nbytes"]] -= known
        left.append((((row["count"] or 1) - known) * row["nbytes"], row["source"]))
    return max(left)[1] if left else ""


def _memory(document: Mapping[str, Any]) -> int | None:
    return document["memory"]["compiler_bytes"]


def _more_memory(change: int, total: int) -> Finding:
    return Finding(
        "added_memory",
        f"{format_si(change, 'B')} more memory per device, {format_si(total, 'B')} now",
        "see `at the peak` of rooflight hlo for what is largest",
        nbytes=change,
    )
