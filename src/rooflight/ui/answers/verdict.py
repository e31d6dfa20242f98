"""A verdict as an `Answer`, made of its document: of this run, or saved by `verify --json`.

In: the document. Out: what is odd, expected collectives against found ones, memory and time, for
terminal, page, explorer and notebook. Also what a plan expects before anything is compiled.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from rooflight.compile.expected.train import Expected
from rooflight.compile.findings.baseline import Comparison
from rooflight.ui.answer import (
    Answer,
    Column,
    Fact,
    Table,
    Value,
    show_bytes,
    show_count,
    show_seconds,
    show_share,
)
from rooflight.ui.answers import compiled
from rooflight.ui.answers.compiled import AXES, FROM, KIND, MOST_ROWS, NBYTES, PER_STEP, TIMES
from rooflight.ui.json_part import JsonPart
from rooflight.units import format_count, format_seconds, format_si

_WORDS = 400  # characters of what a compiler said last


def verdict_answer(document: Mapping[str, object], *, most: int | None = MOST_ROWS) -> Answer:
    """Whether what was compiled is as it should be, by how much, and why."""
    said = JsonPart(document)
    tables = (
        findings_table(said.parts("findings")),
        *(_tables_of_plan(said) if said.text("plan") else ()),
        *_time_table(said),
        _collectives(said),
    )
    return Answer(
        (_head(said), *(_of_plan(said) if said.text("plan") else _of_program(said))),
        facts=tuple(_facts(said)),
        tables=tuple(table.first(most) for table in tables if table.rows),
    )


def _head(said: JsonPart) -> str:
    """Says no more than was asked of the compiler."""
    plan, count = said.text("plan"), len(said.parts("findings"))
    subject = said.text("subject") or said.text("fn") or f"plan {plan}"
    mesh = f", mesh {said.text('mesh')}" if said.text("mesh") else ""
    found = f"{format_count(count)} finding{'s' * (count > 1)}"
    if not count and plan:
        known = said.part("memory").number("compiler_bytes") is not None
        fits = "the step fits" if known else "memory was not asked for"
        found = f"the collectives are as planned, {fits}"
    elif not count:
        found = "no finding"
    seconds = max((one.number("seconds") or 0 for one in said.parts("compiles")), default=0)
    of = f", plan {plan}" if said.text("subject") else ""
    return f"{subject} on {said.text('slice')}{mesh}: {found} (compiled in {seconds:.0f} s{of})."


def _of_plan(said: JsonPart) -> Iterator[str]:
    matched, time = said.part("matched"), said.part("time")
    if matched.fields:
        yield _agreement(said, matched)
    failed = [one for one in said.parts("compiles") if one.text("outcome") != "compiled"]
    if failed:
        words = said.text("last_words") or failed[0].text("words")[:_WORDS]
        yield f"The compiler: {failed[0].text('outcome')}. {words}"
    yield from (f"The compiler warns: {text}" for text in said.words("warnings")[:MOST_ROWS])
    memory = said.part("memory")
    planned, total = memory.number("planned_bytes") or 0, memory.number("compiler_bytes")
    start = f"Planned memory: {format_si(planned, 'B')}"
    if total is None:
        yield f"{start}; the compiler's is unknown before the schedule."
    else:
        ratio = f", {total / planned:.2f} times as much" if planned else ""
        yield f"{start}; the compiler's: {format_si(total, 'B')}{ratio}{_categories(memory)}."
    yield compiled.time_sentence(time.part("compiled"), time.number("planned_s") or 0)


def _agreement(said: JsonPart, matched: JsonPart) -> str:
    surplus = sum((row.whole("nbytes") or 0) * _times(row) for row in said.parts("surplus"))
    found = (matched.whole("bytes") or 0) + surplus
    if not found and not said.parts("missing"):
        return "No collective is expected, and the compiler made none."
    return (
        f"{format_count(matched.whole('count') or 0)} collectives,"
        f" {matched.number('share') or 0:.2%} of the bytes, are the expected ones in kind, axes,"
        f" bytes and count; the compiler has {format_si(found, 'B')} per step."
    )


def _categories(memory: JsonPart) -> str:
    found = memory.part("compiler")
    words = compiled.categories({name: found.number(name) or 0 for name in found.fields})
    return f" ({words})" if words else ""


def _of_program(said: JsonPart) -> Iterator[str]:
    least_s, memory = said.number("least_s"), said.part("memory")
    if least_s is None:
        return
    flops, known = said.number("flops"), said.number("known_flops")
    least = f"{format_si(known, 'FLOP')} or more of " if known is not None else ""
    done = f"{least if flops is None else format_si(flops, 'FLOP') + ' of '}matmuls"
    yield (
        f"A step takes at least {format_seconds(least_s)}: {done} per device at the peak rate,"
        f" {len(said.parts('collectives'))} collectives one after the other."
    )
    alike = said.part("alike")
    for axis in alike.fields:
        size = alike.whole(axis)
        yield f"A chip is {size} devices, which do the same: nothing is split over {axis}."
    if said.part("time").fields:
        yield compiled.time_sentence(said.part("time"))
    limit, total = memory.number("limit_bytes"), memory.number("compiler_bytes")
    if total is None:
        held = sum(one.number("device_bytes") or 0 for one in said.parts("arguments"))
        yield f"Arguments: {format_si(held, 'B')} per device; all memory was not asked for."
    else:
        of = f" of {format_si(limit, 'B')}" if limit else ""
        yield f"Memory: {format_si(total, 'B')}{of} per device{_categories(memory)}."


def _facts(said: JsonPart) -> Iterator[Fact]:
    until = "; ".join(f"{c.text('until')}: {c.text('outcome')}" for c in said.parts("compiles"))
    versions = ", ".join(
        f"{n} {said.part('versions').text(n)}" for n in said.part("versions").fields
    )
    count = len(said.parts("findings"))
    yield Fact("findings", "findings", count, show_count, f"{until} ({versions})")
    matched = said.part("matched")
    if matched.fields:
        note = f"{format_count(matched.whole('count') or 0)} collectives"
        yield Fact("matched_share", "bytes as expected", matched.number("share"), show_share, note)
    memory, time = said.part("memory"), said.part("time")
    planned = memory.number("planned_bytes") or memory.number("limit_bytes")
    total, beside = memory.number("compiler_bytes"), format_si(planned or 0, "B")
    what = "planned or allowed: " + beside if planned else ""
    yield Fact("compiler_bytes", "memory by the compiler", total, show_bytes, what)
    step_s, planned_s = _time(said).number("seconds"), time.number("planned_s")
    what = f"planned: {format_seconds(planned_s)}" if planned_s else ""
    yield Fact("compiled_s", "compiled step", step_s, show_seconds, what)


def _time(said: JsonPart) -> JsonPart:
    """Of a plan it stands beside the planned one."""
    time = said.part("time")
    return time.part("compiled") if said.text("plan") else time


def _time_table(said: JsonPart) -> Iterator[Table]:
    if _time(said).fields:
        planned = said.part("planned")
        yield compiled.time_table(_time(said), planned if planned.fields else None)


def findings_table(findings: Sequence[JsonPart]) -> Table:
    """What is odd, what it costs and where, and what to do."""
    columns = (
        *(Column("kind", "finding"), Column("words", "what", is_wide=True)),
        *(Column("seconds", "time", _per_step), Column("bytes", "memory", _per_device)),
        *(Column("where", "where"), Column("fix", "fix", is_wide=True)),
    )
    rows = tuple(map(_finding, findings))
    return Table("findings", "Findings", columns, rows, is_first=True, is_list=True)


def _per_step(seconds: float) -> str:
    return f"{format_seconds(seconds)} per step"


def _per_device(nbytes: float) -> str:
    return f"{format_si(nbytes, 'B')} per device"


def _finding(one: JsonPart) -> tuple[Value, ...]:
    """It costs time, or else memory."""
    more, seconds = (one.whole("count") or 1) - 1, one.number("seconds")
    places = ("where", ""), ("caller", "called from ")
    named = [before + compiled.base_name(one.text(key)) for key, before in places if one.text(key)]
    return (
        one.text("kind"),
        one.text("words") + (f"; {more} more like it" if more else ""),
        seconds,
        one.number("nbytes") if seconds is None else None,
        ", ".join(named) or None,
        one.text("fix"),
    )


def _tables_of_plan(said: JsonPart) -> Iterator[Table]:
    yield _expected_against_found(said)
    named: dict[str, tuple[int, int]] = {}
    for row in said.parts("surplus"):
        if name := row.text("named"):
            times, nbytes = named.get(name, (0, 0))
            more = (row.whole("nbytes") or 0) * _times(row)
            named[name] = times + (row.whole("count") or 0), nbytes + more
    columns = (Column("name", "not in the derivation, by design"), TIMES, PER_STEP)
    rows = tuple((name, *sums) for name, sums in named.items())
    yield Table("by_design", "Not in the derivation, by design", columns, rows)
    terms = said.part("memory").parts("terms")
    columns = (
        *(Column("name", "memory"), Column("planned_bytes", "planned", show_bytes)),
        Column("program_bytes", "program", show_bytes),
        Column("because", "because", is_wide=True),
    )
    rows = tuple(
        (
            t.text("name"),
            *map(t.number, ("planned_bytes", "program_bytes")),
            t.text("because") or None,
        )
        for t in terms
    )
    caption = "Memory, planned and as the program is written"
    is_same = not any(t.text("because") for t in terms)
    yield Table("memory", caption, columns, rows, is_folded=is_same)


def _expected_against_found(said: JsonPart) -> Table:
    """Kind by kind; a count that is not known is taken as one."""
    found = _sums(said.parts("collectives"))
    lost = [
        {**m.part("expected").fields, "count": m.number("count")} for m in said.parts("missing")
    ]
    missing, surplus = _sums(map(JsonPart, lost)), _sums(said.parts("surplus"))
    columns = (
        *(KIND, AXES, Column("expected_bytes", "expected", show_bytes)),
        Column("found_bytes", "found", show_bytes),
        Column("missing_bytes", "missing", show_bytes),
        Column("surplus_bytes", "not in the derivation", show_bytes),
    )
    rows: list[tuple[Value, ...]] = []
    for key in sorted({*found, *missing, *surplus}, key=lambda k: -found.get(k, 0)):
        here, gone, extra = (sums.get(key, 0) for sums in (found, missing, surplus))
        rows.append((*key, here - extra + gone, here, gone or None, extra or None))
    caption = "Expected against found, in bytes per step on one device"
    shown = tuple(rows) if said.part("matched").fields else ()
    return Table("expected", caption, columns, shown)


def _sums(rows: Iterable[JsonPart]) -> dict[tuple[str, str], int]:
    """Bytes per step by kind and axes."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        key = _kind(row), _axes(row)
        found[key] = found.get(key, 0) + (row.whole("nbytes") or 0) * _times(row)
    return found


def _times(row: JsonPart) -> int:
    return row.whole("count") or 1


def _kind(row: JsonPart) -> str:
    return row.text("kind").replace("_", "-")


def _axes(row: JsonPart) -> str:
    return "+".join(row.words("axes")) or "unknown"


def _collectives(said: JsonPart) -> Table:
    """Equal ones of one line in one row, the most time first; a terminal shows those of a program.

    Those of a plan are the expected ones, or findings.
    """
    groups: dict[tuple[str, str, str, int, str], list[JsonPart]] = {}
    for row in said.parts("collectives"):
        nbytes, place = row.whole("nbytes") or 0, compiled.base_name(row.text("source"))
        key = _kind(row), _axes(row), row.text("dtype"), nbytes, place
        groups.setdefault(key, []).append(row)
    ordered: list[tuple[float, float, tuple[Value, ...]]] = []
    for (*what, nbytes, place), group in groups.items():
        times = compiled.total(row.whole("count") for row in group)
        seconds = compiled.total(row.number("seconds") for row in group)
        per_step = None if times is None else times * nbytes
        cells = (*what, nbytes, times, per_step, seconds, place or None)
        ordered.append((-(seconds or 0), -(per_step or 0), cells))
    rows = tuple(cells for _, _, cells in sorted(ordered, key=lambda one: one[:2]))
    alone = Column("alone_s", "alone", show_seconds, unknown="unknown")
    columns = (KIND, AXES, compiled.DTYPE, NBYTES, TIMES, PER_STEP, alone, FROM)
    caption = "Collectives right after partitioning, most time first"
    return Table("collectives", caption, columns, rows, is_folded=bool(said.text("plan")))


def expected_answer(
    subject: str, expected: Sequence[Expected], *, most: int | None = MOST_ROWS
) -> Answer:
    """What a plan expects of a compiler, the most bytes first."""
    ordered = sorted(expected, key=lambda e: -e.nbytes * e.count)
    nbytes = format_si(sum(e.nbytes * e.count for e in expected), "B")
    count = format_count(sum(e.count for e in expected))
    columns = (
        *(Column("kind", "expected"), AXES, NBYTES, TIMES),
        *(Column("op", "of"), Column("because", "step")),
    )
    rows = tuple(
        (e.kind.replace("_", "-"), "+".join(e.axes), e.nbytes, e.count, e.op, e.because)
        for e in ordered
    )
    table = Table("expected", "Expected collectives, most bytes first", columns, rows).first(most)
    head = (
        f"{subject}: {count} collectives of {nbytes} per step are expected; nothing was compiled."
    )
    return Answer((head,), tables=(table,) if rows else ())


def comparison_answer(comparison: Comparison, path: str) -> Answer:
    """What a change added to a baseline, then what it spared."""
    added, better, changed = comparison.added, comparison.better, comparison.changed
    if not added and not better and not changed:
        return Answer((f"As {path}: no collective and no gigabyte was added.",))
    more = f", {len(changed)} otherwise" if changed else ""
    head = f"Against {path}: {len(added)} added, {len(better)} better{more}."
    table = findings_table([JsonPart(asdict(finding)) for finding in added])
    return Answer(
        (head,),
        tables=(table,) if added else (),
        notes=tuple(
            [*(f"- better: {text}" for text in better), *(f"- otherwise: {t}" for t in changed)]
        ),
    )
