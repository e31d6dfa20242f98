"""Where collectives stand in a module: plain, in a fusion, in a call, started here and done there.

In: a `Module`. Out: the `CommSite` of the collective that an instruction is or holds, the
instruction that ends it, and which instructions are work that can hide it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflight.compile.hlo.instruction import Computation, Instruction, Module

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "ragged_all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}
_HOLDERS = ("fusion", "call", "async-start")
RENDEZVOUS = re.compile(r'_rendezvous="([^"]*)"')
START, DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_HIDING = "async_collective_fusion"  # the matmul that hides a collective repeats it
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier", "send", "recv", "add-dependency"),
)
_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "Sharding")
_FARTHEST = 64  # instructions between a start and its done that only hand it on


@dataclass(frozen=True, slots=True)
class CommSite:
    """A collective as it stands: the instruction itself, or one inside what that calls."""

    home: Computation
    inner: Instruction

    @property
    def kind(self) -> str:
        return KINDS[self.inner.opcode.removesuffix("-start")]

    @property
    def channel(self) -> int | None:
        text = self.inner.attribute("channel_id")
        return int(text) if text and text.isdecimal() else None


@dataclass(slots=True)
class Sites:
    """Finds collectives, and remembers what the called computations hold."""

    module: Module
    inside: dict[str, CommSite | None] = field(default_factory=dict[str, "CommSite | None"])
    marks: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, computation: Computation, instruction: Instruction) -> CommSite | None:
        """The collective an instruction is or holds; the end of an asynchronous one is none."""
        if instruction.opcode.removesuffix("-start") in KINDS:
            return CommSite(computation, instruction)
        if instruction.opcode not in ("fusion", "async-start"):
            return None
        callee = instruction.calls("calls") or ""
        return None if self.mark(callee) == DONE else self.collective_in(callee)

    def is_repeat(self, instruction: Instruction, site: CommSite, dones: "Dones") -> bool:
        """The matmul that hides an asynchronous collective holds it once more."""
        callee = instruction.calls("calls") or ""
        if instruction.opcode != "fusion" or self.mark(callee) == START:
            return False
        return callee.startswith(_HIDING) or site.channel in dones.by_channel

    def mark(self, name: str) -> str:
        """Whether a computation starts or ends an asynchronous fusion."""
        if name not in self.marks:
            computation = self.module.computations.get(name)
            targets = [
                i.attribute("custom_call_target")
                for i in (computation.instructions if computation else ())
                if i.opcode == "custom-call"
            ]
            self.marks[name] = next((t for t in targets if t in (START, DONE)), "")
        return self.marks[name]

    def collective_in(self, name: str) -> CommSite | None:
        """The first collective inside a computation or what that calls; the calls are no cycle."""
        stack = [name]
        while stack:
            here = stack[-1]
            if here in self.inside:
                stack.pop()
                continue
            computation = self.module.computations.get(here)
            instructions = computation.instructions if computation else ()
            called = [c for i in instructions if i.opcode in _HOLDERS for c in i.called]
            waiting = [c for c in called if c not in self.inside]
            if waiting:
                stack.extend(waiting)
                continue
            own = [i for i in instructions if i.opcode.removesuffix("-start") in KINDS]
            deeper = (self.inside[c] for c in called)
            first = CommSite(computation, own[0]) if computation and own else None
            self.inside[here] = first or next((s for s in deeper if s), None)
        return self.inside[name]


def is_work(instruction: Instruction) -> bool:
    """Whether an instruction keeps the device busy: neither bookkeeping nor a start or done."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(("-start", "-done", "-update")):
        return False
    if opcode == "custom-call":
        return instruction.attribute("custom_call_target") not in _FREE_CALLS
    is_handle = "async-collective-" in instruction.name
    return not is_handle and any(s.dims for s in instruction.shapes)


@dataclass(frozen=True, slots=True)
class Dones:
    """The instructions of a computation that end something, by what they end."""

    by_start: Mapping[str, Instruction]
    by_channel: Mapping[int, Instruction]
    by_rendezvous: Mapping[str, Instruction]

    @classmethod
    def of(cls, computation: Computation, sites: Sites) -> "Dones":
        starts: dict[str, Instruction] = {}
        channels: dict[int, Instruction] = {}
        meetings: dict[str, Instruction] = {}
        for instruction in computation.instructions:
            if instruction.opcode == "recv-done" and instruction.operands:
                place = RENDEZVOUS.search(computation.inputs(instruction)[0].attributes)
                meetings[place[1] if place else ""] = instruction
            elif instruction.opcode.endswith("-done") and instruction.operands:
                starts[_origin(computation, instruction)] = instruction
            elif instruction.opcode == "fusion":
                callee = instruction.calls("calls") or ""
                site = sites.collective_in(callee) if sites.mark(callee) == DONE else None
                if site and site.channel is not None:
                    channels[site.channel] = instruction
        return cls(starts, channels, meetings)

    def of_start(self, instruction: Instruction, site: CommSite) -> Instruction | None:
        if instruction.opcode.endswith("-start"):
            return self.by_start.get(instruction.name)
        if instruction.opcode == "fusion" and site.channel is not None:
            return self.by_channel.get(site.channel)
        return None


def _origin(computation: Computation, done: Instruction) -> str:
    """The start that a done belongs to, through what only hands it on."""
    value = computation.inputs(done)[0]
    for _ in range(_FARTHEST):
        if value.opcode.endswith("-start") or not value.operands:
            break
        value = computation.inputs(value)[0]
    return value.name
