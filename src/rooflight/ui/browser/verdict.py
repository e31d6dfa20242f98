"""Verdict: what `rooflight verify` or a dump of XLA says, expected against found.

A file is given by `--open`, or lies in the folder that the explorer was started in.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rooflight.compile.expected.train import expected_collectives
from rooflight.compile.hlo.dump import EXAMPLE
from rooflight.errors import ParseError, UsageError
from rooflight.plan.file.record import from_json
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Table,
    Value,
    ViewLink,
    show_bytes,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.browser.compiled import MOST_ROWS, collective_table, dump_answer
from rooflight.ui.browser.opened import kind_of, list_files, require_small
from rooflight.ui.browser.view import Field, View, ViewQuery
from rooflight.units import format_si

_EXAMPLE_MESH = "X=16,Y=4"
Document = Mapping[str, Any]  # a verdict as JSON: its values are of any JSON type until read


def answer(question: ViewQuery) -> Answer:
    """The file that is named; without one, what could be, and a small example."""
    name = question.text("file")
    mesh, on = question.text("mesh"), question.text("on")
    if not name:
        return _example(question)
    path = question.files.path(name)
    quoted = shlex.quote(name)
    match kind_of(path):
        case "verdict":
            return _verdict(path, f"rooflight verify PLAN --json > {quoted}")
        case "plan":
            return _plan(path, f"rooflight verify {quoted} --expect")
        case "dump":
            flags = f" --mesh {mesh}" * bool(mesh) + f" --on {on}" * bool(on)
            return dump_answer(path, mesh=mesh, on=on, command=f"rooflight hlo {quoted}{flags}")
        case _:
            raise UsageError(
                f"{name!r} is neither a verdict, nor a plan, nor a dump of XLA",
                hint="make one with `rooflight verify PLAN --json > verdict.json`",
            )


def _example(question: ViewQuery) -> Answer:
    found = list_files(question.files, "verdict", "plan", "dump")
    command = f"rooflight hlo --mesh {_EXAMPLE_MESH}"
    shown = dump_answer(EXAMPLE, mesh=_EXAMPLE_MESH, on="", command=command)
    listed = (
        f"{len(found)} file{'s' * (len(found) != 1)} can be opened; below is a small example."
        if found
        else "Nothing to open lies here: below is a small example. `rooflight verify PLAN --json >"
        " verdict.json` makes a verdict, `rooflight explore --open FILE` opens one."
    )
    links = tuple(
        ViewLink(f"{one.kind}: {one.name}", "verdict", (("file", one.name),)) for one in found
    )
    return Answer(
        sentences=(listed, *shown.sentences[:1]),
        facts=shown.facts,
        tables=shown.tables,
        pictures=shown.pictures,
        links=tuple(links),
        command=shown.command,
    )


def _plan(path: Path, command: str) -> Answer:
    """What a plan expects of a compiler; nothing was compiled."""
    require_small(path)
    plan = from_json(path.read_text(encoding="utf-8"))
    expected = expected_collectives(plan)
    total = sum(e.nbytes * e.count for e in expected)
    count = sum(e.count for e in expected)
    found = [(e.kind, "+".join(e.axes), e.nbytes, e.count, e.because) for e in expected]
    return Answer(
        sentences=(
            f"{plan.model.name}, {plan.layout} on {plan.slice}: {count:,} collectives of"
            f" {format_si(total, 'B')} per step are expected; nothing was compiled.",
        ),
        tables=(collective_table("expected", "Expected collectives, most bytes first", found),),
        command=command,
    )


def _verdict(path: Path, command: str) -> Answer:
    document = _read(path)
    findings = _rows(document, "findings")
    return Answer(
        sentences=tuple(_sentences(document, findings)),
        facts=tuple(_facts(document)),
        tables=tuple(_tables(document, findings)),
        command=command,
    )


def _read(path: Path) -> Document:
    require_small(path)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path.name} must be JSON: {error}", hint="write it again") from None
    if not isinstance(found, dict) or not isinstance(cast(Document, found).get("findings"), list):
        raise ParseError(
            f"{path.name} must be a verdict: it has no findings",
            hint="make one with `rooflight verify PLAN --json`",
        )
    return cast(Document, found)


def _rows(document: Document, key: str) -> list[Document]:
    found = document.get(key)
    rows = cast(list[object], found) if isinstance(found, list) else []
    return [cast(Document, row) for row in rows if isinstance(row, dict)]


def _part(document: Document, key: str) -> Document:
    found = document.get(key)
    return cast(Document, found) if isinstance(found, dict) else {}


def _number(document: Document, key: str) -> int | float | None:
    found = document.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def _text(document: Document, key: str) -> str:
    found = document.get(key)
    return found if isinstance(found, str) else ""


def _sentences(document: Document, findings: Sequence[Document]) -> Iterator[str]:
    what = _text(document, "fn") or f"plan {_text(document, 'plan')}"
    count = f"{len(findings):,} finding{'s' * (len(findings) != 1)}" if findings else "no finding"
    yield f"{what} on {_text(document, 'slice')}: {count}"
    compiles = [f"{_text(d, 'until')}: {_text(d, 'outcome')}" for d in _rows(document, "compiles")]
    versions = ", ".join(f"{n} {v}" for n, v in _part(document, "versions").items())
    yield f"Compiled until {'; '.join(compiles[:MOST_ROWS])} ({versions})."
    warnings = document.get("warnings")
    for text in cast(list[object], warnings)[:MOST_ROWS] if isinstance(warnings, list) else []:
        yield f"The compiler warns: {text}"


def _facts(document: Document) -> Iterator[Fact]:
    yield Fact("findings", "findings", len(_rows(document, "findings")), show_count)
    matched = _part(document, "matched")
    if matched:
        note = f"{_number(matched, 'count') or 0:,} collectives, by kind, axes, bytes and count"
        share = _number(matched, "share")
        yield Fact("matched_share", "bytes as expected", share, show_share, note)
    memory, time = _part(document, "memory"), _part(document, "time")
    planned = _number(memory, "planned_bytes") or _number(memory, "limit_bytes")
    compiled = _number(memory, "compiler_bytes")
    beside = f"planned or allowed: {format_si(planned, 'B')}" if planned else ""
    yield Fact("compiler_bytes", "memory by the compiler", compiled, show_bytes, beside)
    step = _part(time, "compiled") or time
    planned_s = _number(time, "planned_s")
    beside = f"planned: {show_seconds(planned_s)}" if planned_s else ""
    yield Fact("compiled_s", "compiled step", _number(step, "seconds"), show_seconds, beside)


def _tables(document: Document, findings: Sequence[Document]) -> Iterator[Table]:
    if findings:
        yield _findings(findings)
    yield from _expected(document)
    yield collective_table(
        *("collectives", "Found collectives, most bytes per step first"),
        _sized(_rows(document, "collectives")),
    )
    terms = _rows(_part(document, "memory"), "terms")
    if terms:
        yield _terms(terms)


def _findings(findings: Sequence[Document]) -> Table:
    columns = (
        Column("kind", "finding"),
        Column("words", "what", is_wide=True),
        Column("seconds", "a step", show_seconds),
        Column("bytes", "a device", show_bytes),
        Column("where", "where"),
        Column("fix", "fix", is_wide=True),
    )
    rows = tuple(
        (
            *(_text(f, "kind"), _text(f, "words"), _number(f, "seconds"), _number(f, "nbytes")),
            *(_text(f, "where").rpartition("/")[2] or None, _text(f, "fix")),
        )
        for f in findings[:MOST_ROWS]
    )
    left = len(findings) - len(rows)
    more = f" ({left:,} more)" if left else ""
    return Table("findings", f"Findings{more}", columns, rows, is_first=True)


def _expected(document: Document) -> Iterator[Table]:
    """Kind by kind: what was expected and is missing, what was found and not expected."""
    found = _sums(_rows(document, "collectives"))
    missing = _sums(
        [{**_part(m, "expected"), "count": _number(m, "count")} for m in _rows(document, "missing")]
    )
    surplus = _sums(_rows(document, "surplus"))
    keys = sorted({*found, *missing, *surplus}, key=lambda k: -found.get(k, 0))
    columns = (
        Column("kind", "collective"),
        Column("axes", "axes"),
        Column("expected_bytes", "expected", show_bytes),
        Column("found_bytes", "found", show_bytes),
        Column("missing_bytes", "missing", show_bytes),
        Column("surplus_bytes", "not in the derivation", show_bytes),
    )
    rows: list[tuple[Value, ...]] = []
    for key in keys[:MOST_ROWS]:
        here, lost, extra = found.get(key, 0), missing.get(key, 0), surplus.get(key, 0)
        rows.append((*key, here - extra + lost, here, lost or None, extra or None))
    if rows and document.get("matched"):
        caption = "Expected against found, in bytes per step on one device"
        yield Table("expected", caption, columns, tuple(rows))


def _sums(rows: Sequence[Document]) -> dict[tuple[str, str], int]:
    """Bytes per step by kind and axes."""
    found: dict[tuple[str, str], int] = {}
    for kind, axes, nbytes, count, _ in _sized(rows):
        key = kind.replace("_", "-"), axes
        found[key] = found.get(key, 0) + nbytes * (count or 1)
    return found


def _sized(rows: Sequence[Document]) -> list[tuple[str, str, int, int | None, str]]:
    found: list[tuple[str, str, int, int | None, str]] = []
    for row in rows:
        axes = row.get("axes")
        named = (
            "+".join(map(str, cast(list[object], axes))) if isinstance(axes, list) else "unknown"
        )
        count = _number(row, "count")
        nbytes = int(_number(row, "nbytes") or 0)
        times = None if count is None else int(count)
        found.append((_text(row, "kind"), named, nbytes, times, _text(row, "source")))
    return found


def _terms(terms: Sequence[Document]) -> Table:
    columns = (
        Column("name", "memory"),
        Column("planned_bytes", "planned", show_bytes),
        Column("program_bytes", "program", show_bytes),
        Column("because", "because", is_wide=True),
    )
    rows = tuple(
        (
            *(_text(t, "name"), _number(t, "planned_bytes"), _number(t, "program_bytes")),
            _text(t, "because") or None,
        )
        for t in terms[:MOST_ROWS]
    )
    return Table("memory", "Memory, planned and as the program is written", columns, rows)


VIEW = View(
    "verdict",
    "Verdict",
    "What the compiler made of a plan: expected against found, the schedule, the live memory.",
    (
        Field(
            *("file", "File", "text", "", "a verdict, a plan, or a dump of XLA, in this folder"),
            is_optional=True,
        ),
        Field(
            "mesh", "Mesh of a dump", "text", "", "in the order of jax: X=4,Y=4", is_optional=True
        ),
        Field("on", "Slice of a dump", "text", "", "v5e:4x4: its schedule too", is_optional=True),
    ),
    answer,
    is_pure=False,
)
