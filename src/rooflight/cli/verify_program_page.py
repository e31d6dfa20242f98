"""What `rooflight verify --fn` shows of a program: findings, collectives with times, memory."""

from collections import Counter
from dataclasses import asdict

from rooflight.cli.hlo_page import grids
from rooflight.cli.output import write_file
from rooflight.cli.time_page import ROWS, step_page, time_document, time_line, time_table
from rooflight.cli.verify_page import collectives_document, findings_document, findings_text
from rooflight.compile.aot.program import ProgramVerdict
from rooflight.compile.aot.target import device_chip
from rooflight.compile.findings.finding import network_seconds
from rooflight.errors import UsageError
from rooflight.ui.html.step import step_html
from rooflight.ui.text.table import table
from rooflight.units import format_count, format_seconds, format_si

_ROWS = 12
_Key = tuple[str, tuple[str, ...] | None, str, int, str]


def program_text(verdict: ProgramVerdict, *, everything: bool) -> str:
    """All of a verdict that fits on a page."""
    blocks = [
        "\n".join([_head(verdict), *_facts(verdict)]),
        findings_text(verdict.findings, everything=everything),
        time_table(None, verdict.time) if verdict.time else "",
        _collectives(verdict, None if everything else _ROWS),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(verdict: ProgramVerdict) -> str:
    count = len(verdict.findings)
    verdict_on = f"{count} finding{'s' if count > 1 else ''}" if count else "no finding"
    seconds = max(d.seconds for d in verdict.done)
    where = f"{verdict.mesh.slice}, mesh {verdict.mesh}"
    return f"{verdict.build} on {where}: {verdict_on} (compiled in {seconds:.0f} s)."


def _facts(verdict: ProgramVerdict) -> list[str]:
    step = verdict.partitioned
    if step is None or verdict.step_s is None:
        return []
    lines = [
        f"A step takes at least {format_seconds(verdict.step_s)}: {_flops(verdict)} of matmuls per"
        f" device at the peak rate, {len(step.collectives)} collectives one after the other."
    ]
    for axis in verdict.alike:
        size = verdict.done[0].axes[axis]
        lines.append(f"A chip is {size} devices, which do the same: nothing is split over {axis}.")
    if verdict.time:
        lines.append(time_line(None, verdict.time))
    memory = verdict.memory
    if memory is None:
        held = sum(a.device_bytes for a in verdict.arguments)
        return [
            *lines,
            f"Arguments: {format_si(held, 'B')} per device; all memory was not asked for.",
        ]
    parts = [f"{k} {format_si(n, 'B')}" for k, n in memory.by_category.items() if n]
    limit = limit_bytes(verdict)
    of = f" of {format_si(limit, 'B')}" if limit else ""
    total = format_si(memory.total_bytes, "B")
    return [*lines, f"Memory: {total}{of} per device ({', '.join(parts)})."]


def _flops(verdict: ProgramVerdict) -> str:
    step = verdict.partitioned
    assert step is not None
    least = " or more" if step.of_unknown_flops else ""
    return format_si(step.known_flops, "FLOP") + least


def limit_bytes(verdict: ProgramVerdict) -> int | None:
    """What the compiler lets a program use of a device, if the catalog knows."""
    usable = device_chip(verdict.mesh, verdict.done[0].axes).detail.get("hbm_usable_bytes")
    return int(usable) if usable else None


def _collectives(verdict: ProgramVerdict, most: int | None) -> str:
    """Equal ones of one line added up, the most time first."""
    if verdict.partitioned is None:
        return ""
    counts: Counter[_Key] = Counter()
    unknown: set[_Key] = set()
    for c in verdict.partitioned.collectives:
        key = (c.kind, c.axes, c.dtype, c.nbytes, c.source.rpartition("/")[2])
        counts[key] += c.count or 1
        unknown |= {key} if c.count is None else set()
    each = {key: network_seconds(key[0], key[3], key[1], verdict.mesh) for key in counts}
    ordered = sorted(counts, key=lambda key: -(each[key] or 0.0) * counts[key])
    rows = [_row(key, counts[key], each[key], key in unknown) for key in ordered[:most]]
    header = ["collective", "axes", "dtype", "bytes", "times", "bytes per step", "alone", "from"]
    text = table(header, rows, align="lllrrrrl") if rows else ""
    left = len(ordered) - len(rows)
    return text + (f"\n({left} more rows: -v)" if left else "")


def _row(key: _Key, count: int, seconds: float | None, is_unknown: bool) -> list[str]:
    kind, axes, dtype, nbytes, source = key
    return [
        kind.replace("_", "-"),
        "+".join(axes) if axes is not None else "unknown",
        dtype,
        format_si(nbytes, "B"),
        "unknown" if is_unknown else format_count(count),
        "unknown" if is_unknown else format_si(nbytes * count, "B"),
        "unknown" if seconds is None or is_unknown else format_seconds(seconds * count),
        source or "-",
    ]


def program_document(verdict: ProgramVerdict) -> dict[str, object]:
    """All of it, for a machine and for a later --baseline."""
    step, memory = verdict.partitioned, verdict.memory
    return {
        "fn": verdict.build,
        "slice": str(verdict.mesh.slice),
        "mesh": str(verdict.mesh),
        "findings": findings_document(verdict.findings),
        "compiles": [
            {"until": d.request.until, "outcome": d.outcome, "words": d.words, "seconds": d.seconds}
            for d in verdict.done
        ],
        "versions": verdict.done[0].versions,
        "least_s": verdict.step_s,
        "time": time_document(verdict.time),
        "flops": step.flops if step else None,
        "collectives": collectives_document(step.collectives, verdict.mesh) if step else [],
        "arguments": [asdict(a) | {"cut": sorted(a.cut)} for a in verdict.arguments],
        "memory": {
            "compiler_bytes": memory.total_bytes if memory else None,
            "limit_bytes": limit_bytes(verdict),
            "compiler": dict(memory.by_category) if memory else None,
        },
    }


def write_program(path: str, verdict: ProgramVerdict, text: str) -> None:
    """The verdict and the schedule as one HTML file that stands alone."""
    step = verdict.scheduled or verdict.partitioned
    if step is None:
        raise UsageError(
            f"there is nothing to draw: the compiler: {verdict.done[0].outcome}",
            hint="leave --html out to read what it said",
        )
    answer, *texts = text.split("\n\n")
    page = step_page(
        step,
        kicker=f"Verdict on {verdict.build}",
        answer=answer.splitlines(),
        shown=grids(step, most=ROWS),
        texts=[("Verdict", part) for part in texts],
        planned=None,
        time=verdict.time,
        limit_bytes=limit_bytes(verdict),
    )
    write_file(path, step_html(page), flag="--html")
