"""`Finding`: something a compiled program does that it should not, its cost, its line, a fix.

Also what a collective costs on a mesh, and `Scale`, which says what is too small to mention.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.instruction import Module
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.hardware.mesh import Mesh

# Less than this share of a step's time or of a chip's memory is not worth a line.
_TIME_SHARE, _MEMORY_SHARE = 0.01, 0.005
_SOURCE = re.compile(r'source_file="([^"]*)"[^{}]*?source_line=(\d+)')
_FRAME = re.compile(r"stack_frame_id=(\d{1,9})")
_REMATERIALISED = "Involuntary full rematerialization"
FAILURES = ("out_of_memory", "refused", "crashed", "timed_out")  # before all that only costs
_ALWAYS = (*FAILURES, "host_callback")  # few bytes, and a wait of unknown length
# A leaf of an argument such as params['layers'][0]; bf16[64] is none.
_LEAF = re.compile(r"\b(?!(?:bf|f|s|u|pred)\d*\[)[^\W\d]\w*(?:\.\w+|\['[^']*'\]|\[\d+\])+")


EditKind = Literal["donate", "argument", "result", "constraint", "no constraint"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A fix as data: donate a parameter; give an argument, a result or the constraint of a line a
    spec; take the constraint of a line out. `target` is the name, the path or `file:line`."""

    kind: EditKind
    target: str
    spec: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`words` say what is wrong with what; the cost is seconds per step, or bytes on a device.

    A cost of None is unknown, and is never too small.
    """

    kind: str
    words: str
    seconds: float | None = field(default=None, kw_only=True)
    nbytes: int | None = field(default=None, kw_only=True)
    where: str = field(default="", kw_only=True)  # file:line, "" if no line made it
    fix: str
    count: int = 1  # as many alike, such as one of every layer
    caller: str = ""  # file:line that called the function of the line, "" if several did
    edits: tuple[Edit, ...] = ()  # the fix, where an edit of one place is all of it

    @property
    def place(self) -> str:
        """The file without its folders, and the line."""
        return self.where.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.words} ({self.place})" if self.where else self.words


def located(warning: str, module: Module) -> str:
    """A warning with the file and line in place of the compiler's number for them."""

    def line(match: re.Match[str]) -> str:
        file, _, number = module.lines.get(int(match[1]), "").rpartition(":")
        return f'source_file="{file}" source_line={number}' if file else match[0]

    return _FRAME.sub(line, warning)


def warning_finding(text: str) -> Finding:
    """A warning of the compiler, with the line that it names."""
    source = _SOURCE.search(text)
    is_moved = _REMATERIALISED in text
    return Finding(
        "rematerialised" if is_moved else "warning",
        text.partition(" for HLO operation")[0],
        "put a constraint between the two shardings that moves one axis at a time"
        if is_moved
        else "read the words of the compiler",
        where=f"{source[1]}:{source[2]}" if source else "",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """What costs are held against: the least time of the step, the memory of a device."""

    step_s: float
    hbm_bytes: int | None

    def is_worth(self, finding: Finding) -> bool:
        """Whether it costs enough time, or memory if it costs no time; unknown is enough."""
        if finding.kind in _ALWAYS or (finding.seconds is None and finding.nbytes is None):
            return True
        if finding.seconds is not None and finding.seconds >= _TIME_SHARE * self.step_s:
            return True
        if finding.seconds is not None or finding.nbytes is None or self.hbm_bytes is None:
            return False
        return finding.nbytes >= _MEMORY_SHARE * self.hbm_bytes


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all alike, costs added: same line and words but for the numbers in a name.

    What stops the compiler is first, then the dearest.
    """
    found: dict[tuple[str, str, str, str], Finding] = {}
    for one in findings:
        key = (one.kind, unnumbered(one.words), one.where, unnumbered(one.fix))
        same = found.get(key)
        found[key] = one if same is None else _joined(same, one)
    return sorted(
        found.values(),
        key=lambda f: (f.kind not in FAILURES, -(f.seconds or 0.0), -(f.nbytes or 0)),
    )


def unnumbered(text: str) -> str:
    return _LEAF.sub(lambda leaf: re.sub(r"\d+", "#", leaf[0]), text)


def called(findings: Iterable[Finding], module: Module) -> Iterator[Finding]:
    """Findings with the line that called the function of theirs, where it is one line."""
    callers: dict[str, set[str]] = {}
    for frame, line in module.lines.items():
        callers.setdefault(line, set()).add(module.callers[frame])
    for one in findings:
        known = callers.get(one.where, set())
        yield replace(one, caller=next(iter(known))) if len(known) == 1 else one


def _joined(one: Finding, other: Finding) -> Finding:
    seconds, nbytes = one.seconds, one.nbytes
    if seconds is not None and other.seconds is not None:
        seconds += other.seconds
    if nbytes is not None and other.nbytes is not None:
        nbytes += other.nbytes
    edits = tuple(dict.fromkeys((*one.edits, *other.edits)))
    return replace(one, seconds=seconds, nbytes=nbytes, count=one.count + other.count, edits=edits)


def network_seconds(
    kind: str, nbytes: float, axes: tuple[str, ...] | None, mesh: Mesh
) -> float | None:
    """Expected time of one collective over whole axes of a mesh; None if it has no price."""
    known: dict[str, CollectiveKind] = {k: k for k in KINDS}
    if kind not in known or not axes or not set(axes) <= set(mesh.segments):
        return None
    return collective_time(known[kind], nbytes, mesh.group(axes)).expected_s


def collective_seconds(found: Collective, mesh: Mesh) -> float | None:
    """All executions of a found collective in a step; a part of an axis is priced as all of it."""
    each = network_seconds(found.kind, found.nbytes, found.axes, mesh)
    return None if each is None or found.count is None else each * found.count
