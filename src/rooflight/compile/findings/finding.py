"""`Finding`: something a compiled program does that it should not, its cost, its line, a fix.

Also what a collective costs on a mesh, and `Scale`, which says what is too small to mention.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rooflight.compile.hlo.collectives import Collective
from rooflight.compile.hlo.instruction import Module
from rooflight.costs.network import KINDS, CollectiveKind, collective_time
from rooflight.hardware.mesh import Mesh

# Less than this share of a step's time or of a chip's memory is not worth a line.
_TIME_SHARE, _MEMORY_SHARE = 0.01, 0.005
_SOURCE = re.compile(r'source_file="([^"]*)"[^{}]*?source_line=(\d+)')
_FRAME = re.compile(r"stack_frame_id=(\d{1,9})")
_REMATERIALISED = "Involuntary full rematerialization"


@dataclass(frozen=True, slots=True)
class Finding:
    """`words` say what is wrong with what; the cost is seconds per step, or bytes on a device.

    A cost of None is unknown, and is never too small.
    """

    kind: str
    words: str
    seconds: float | None
    nbytes: int | None
    where: str  # file:line, "" if no line made it
    fix: str

    @property
    def place(self) -> str:
        """The file without its folders, and the line."""
        return self.where.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.words} ({self.place})" if self.where else self.words


def located(warning: str, module: Module) -> str:
    """A warning with the file and line in place of the compiler's number for them."""

    def line(match: re.Match[str]) -> str:
        file, _, number = module.frames.get(int(match[1]), "").rpartition(":")
        return f'source_file="{file}" source_line={number}' if file else match[0]

    return _FRAME.sub(line, warning)


def warning_finding(text: str) -> Finding:
    """A warning of the compiler, with the line that it names."""
    source = _SOURCE.search(text)
    is_moved = _REMATERIALISED in text
    return Finding(
        "rematerialised" if is_moved else "warning",
        text.partition(" for HLO operation")[0],
        None,
        None,
        f"{source[1]}:{source[2]}" if source else "",
        "put a constraint between the two shardings that moves one axis at a time"
        if is_moved
        else "read the words of the compiler",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """What costs are held against: the least time of the step, the memory of a device."""

    step_s: float
    hbm_bytes: int | None

    def is_worth(self, finding: Finding) -> bool:
        """Whether it costs enough time, or memory if it costs no time; unknown is enough."""
        if finding.seconds is None and finding.nbytes is None:
            return True
        if finding.seconds is not None and finding.seconds >= _TIME_SHARE * self.step_s:
            return True
        if finding.seconds is not None or finding.nbytes is None or self.hbm_bytes is None:
            return False
        return finding.nbytes >= _MEMORY_SHARE * self.hbm_bytes


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all of the same words, line and fix, costs added; dearest first."""
    found: dict[tuple[str, str, str, str], Finding] = {}
    for one in findings:
        key = (one.kind, one.words, one.where, one.fix)
        same = found.get(key)
        found[key] = one if same is None else _joined(same, one)
    return sorted(found.values(), key=lambda f: (-(f.seconds or 0.0), -(f.nbytes or 0)))


def _joined(one: Finding, other: Finding) -> Finding:
    seconds, nbytes = one.seconds, one.nbytes
    if seconds is not None and other.seconds is not None:
        seconds += other.seconds
    if nbytes is not None and other.nbytes is not None:
        nbytes += other.nbytes
    return replace(one, seconds=seconds, nbytes=nbytes)


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
