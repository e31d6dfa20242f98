"""Verdict: what `rooflight verify` or a dump of XLA says, expected against found.

A file is given by `--open`, or lies in the folder that the explorer was started in.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import cast

from rooflight.compile.expected.train import expected_collectives
from rooflight.compile.hlo.dump import EXAMPLE, choose_dump, find_dumps
from rooflight.compile.time.step import read_timed
from rooflight.errors import ParseError, UsageError
from rooflight.plan.file.record import from_json
from rooflight.ui.answer import Answer, ViewLink, joined
from rooflight.ui.answers.compiled import drawn_parts, step_answer
from rooflight.ui.answers.verdict import expected_answer, verdict_answer
from rooflight.ui.browser.opened import kind_of, list_files, require_small
from rooflight.ui.browser.view import Field, View, ViewQuery

_EXAMPLE_MESH = "X=16,Y=4"


def answer(question: ViewQuery) -> Answer:
    """The file that is named; without one, what could be, and a small example."""
    name, mesh, on = (question.text(field) for field in ("file", "mesh", "on"))
    if not name:
        return _example(question)
    path, quoted = question.files.path(name), shlex.quote(name)
    match kind_of(path):
        case "verdict":
            command = f"rooflight verify PLAN --json > {quoted}"
            return replace(verdict_answer(_read(path)), command=command)
        case "plan":
            require_small(path)
            plan = from_json(path.read_text(encoding="utf-8"))
            subject = f"{plan.model.name}, {plan.layout} on {plan.slice}"
            expected = expected_answer(subject, expected_collectives(plan))
            return replace(expected, command=f"rooflight verify {quoted} --expect")
        case "dump":
            flags = f" --mesh {mesh}" * bool(mesh) + f" --on {on}" * bool(on)
            return _dump(path, mesh, on, f"rooflight hlo {quoted}{flags}")
        case _:
            raise UsageError(
                f"{name!r} is neither a verdict, nor a plan, nor a dump of XLA",
                hint="make one with `rooflight verify PLAN --json > verdict.json`",
            )


def _example(question: ViewQuery) -> Answer:
    found = list_files(question.files, "verdict", "plan", "dump")
    shown = _dump(EXAMPLE, _EXAMPLE_MESH, "", f"rooflight hlo --mesh {_EXAMPLE_MESH}")
    listed = (
        f"{len(found)} file{'s' * (len(found) != 1)} can be opened; below is a small example."
        if found
        else "Nothing to open lies here: below is a small example. `rooflight verify PLAN --json >"
        " verdict.json` makes a verdict, `rooflight explore --open FILE` opens one."
    )
    links = tuple(
        ViewLink(f"{one.kind}: {one.name}", "verdict", (("file", one.name),)) for one in found
    )
    return replace(shown, sentences=(listed, *shown.sentences[:1]), links=links)


def _dump(path: Path, mesh: str, on: str, command: str) -> Answer:
    """The largest module of a dump; with a slice, its time too."""
    dump = choose_dump(find_dumps(path), module=None, where=path)
    require_small(dump.path)
    step, time, limit_bytes = read_timed(dump, mesh=mesh, on=on)
    drawn = drawn_parts(step, time, limit_bytes).values()
    return replace(joined([step_answer(step, dump.stage, time), *drawn]), command=command)


def _read(path: Path) -> dict[str, object]:
    require_small(path)
    try:
        found: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path.name} must be JSON: {error}", hint="write it again") from None
    if isinstance(found, dict) and isinstance(cast(dict[str, object], found).get("findings"), list):
        return cast(dict[str, object], found)
    raise ParseError(
        f"{path.name} must be a verdict: it has no findings",
        hint="make one with `rooflight verify PLAN --json`",
    )


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
