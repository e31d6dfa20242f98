"""Reads HLO text into a `Module`: one pass over the lines, no recursion.

Text that is cut off or damaged raises a `ParseError` of one line that says where; what it never
does is hang, or return a module whose names lead nowhere.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from rooflight.compile.hlo.instruction import FRAME, Computation, Instruction, Module
from rooflight.errors import ParseError

# The tables at the head of a dump that say which line of which file made an instruction.

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_NAME = re.compile(r'(\d{1,9}) "(.*)"')
_ROW = re.compile(r"(\d{1,9}) \{(.*)\}")
_FIELD = re.compile(r"(\w+)=(\d{1,9})")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3\.\d+[/\\]|<frozen ")
_OUR_CALL = re.compile(r"rooflight[/\\](?:compile[/\\]aot|api)[/\\]\w+\.py")  # lowers programs


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python, an installed package or our own call of the compiler.

    >>> is_installed("/v/lib/python3.12/site-packages/flax/linear.py"), is_installed("/me/step.py")
    (True, False)
    """
    return bool(_INSTALLED.search(path) or _OUR_CALL.search(path))


@dataclass(slots=True)
class FrameTables:
    """The four tables as they are read; `frames` joins them."""

    table: str = ""
    files: dict[int, str] = field(default_factory=dict[int, str])
    locations: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    stack: dict[int, int] = field(default_factory=dict[int, int])
    parents: dict[int, int] = field(default_factory=dict[int, int])

    def read(self, line: str) -> None:
        """Takes one line from outside the computations; what it does not know it leaves."""
        if line in _TABLES:
            self.table = line
        elif self.table == "FileNames" and (match := _NAME.fullmatch(line)):
            self.files[int(match[1])] = match[2]
        elif self.table in ("FileLocations", "StackFrames") and (match := _ROW.fullmatch(line)):
            fields = {name: int(value) for name, value in _FIELD.findall(match[2])}
            if self.table == "FileLocations":
                self.locations[int(match[1])] = fields
            else:
                self.stack[int(match[1])] = fields.get("file_location_id", 0)
                # XLA counts parents from one more than the frames themselves; 0 is nobody.
                self.parents[int(match[1])] = fields.get("parent_frame_id", 1) - 1

    def frames(self) -> tuple[dict[int, str], dict[int, str]]:
        """Frame -> `file:line` of its innermost call outside installed packages, and of its caller.

        Where all are installed, as in a plan's own program, the innermost of all.
        """
        places = {frame: self._place(location) for frame, location in self.stack.items()}
        lines: dict[int, str] = {}
        callers: dict[int, str] = {}
        for frame in self.stack:
            calls: list[str] = []
            at = frame
            while at in places and len(calls) < len(places):
                calls.append(places[at])
                at = self.parents.get(at, 0)
            program = takewhile(lambda place: not _OUR_CALL.search(place), calls)
            own = [place for place in program if place and not is_installed(place)]
            lines[frame], callers[frame] = [*(own or calls), ""][:2]
        return lines, callers

    def _place(self, location: int) -> str:
        place = self.locations.get(location, {})
        name = self.files.get(place.get("file_name_id", 0), "")
        return f"{name}:{place['line']}" if name and "line" in place else name


_MODULE = re.compile(r"HloModule ([^\s,]+)")
_DONATED = re.compile(r"\((\d{1,9}), \{")  # in input_output_alias and buffer_donor
_PARTITIONS = re.compile(r"\bnum_partitions=(\d{1,9})")
_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{\s*")
_START = re.compile(r"\s+(ROOT )?%?([^\s=%]+) = ")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9-]*)\(")
_OPERAND = re.compile(r"%([^\s,(){}%]+)")
_TYPE_PARTS = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|/\*[^*/]*\*/|[()]")
_PARENTHESIS = re.compile(r"[()]")
_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)
_LITERALS = ("constant", "parameter", "iota")  # their parentheses hold no operands
_HINT = "give the text that `--xla_dump_to` or `compiled.as_text()` wrote, whole"


def parse_module(text: str) -> Module:
    """Reads one module; a damaged one raises a `ParseError` that names the line."""
    reader = _HloParser()
    for number, line in enumerate(text.splitlines(), start=1):
        reader.read(number, line)
    return reader.finish()


def _error(line: int, what: str) -> ParseError:
    return ParseError(f"HLO text, line {line}: {what}", hint=_HINT)


@dataclass(slots=True)
class _HloParser:
    """What has been read so far: a state machine fed with lines."""

    header: str = ""
    entry: str = ""
    current: str = ""
    line: int = 0
    pending: "_Pending | None" = None
    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])
    computations: dict[str, Computation] = field(default_factory=dict[str, Computation])
    tables: FrameTables = field(default_factory=FrameTables)

    def read(self, number: int, line: str) -> None:
        self.line = number
        if self.current:
            self._read_inside(line)
        elif line.startswith("HloModule "):
            if self.header:
                raise _error(self.line, "a second module begins")
            self.header = line
        elif line[:1] not in ("", " ", "}") and line.rstrip().endswith("{"):
            self._open_computation(line)
        else:
            self.tables.read(line)

    def _open_computation(self, line: str) -> None:
        match = _HEADER.fullmatch(line)
        if match is None or not self.header:
            raise _error(self.line, f"{_short(line)} opens no computation")
        if match[2] in self.computations:
            raise _error(self.line, f"computation {_short(match[2])} is defined twice")
        self.current = match[2]
        self.instructions = {}
        if match[1]:
            self.entry = match[2]

    def _read_inside(self, line: str) -> None:
        if _START.match(line):
            self._store()
            self.pending = _Pending(self.line, [line])
        elif self.pending and self.pending.is_open:
            self.pending.add(line)  # kernels carry attributes that go over several lines
        elif line == "}" or line.startswith("}, execution_thread="):
            self._close_computation()
        elif line.strip():
            raise _error(self.line, f"a line must be an instruction, got {_short(line)}")

    def _store(self) -> None:
        if self.pending is None:
            return
        found = _parse_instruction(self.pending)
        if found.name in self.instructions:
            raise _error(found.line, f"%{_short(found.name)} is defined twice")
        self.instructions[found.name] = found
        self.pending = None

    def _close_computation(self) -> None:
        self._store()
        if not self.instructions:
            raise _error(self.line, f"computation {_short(self.current)} is empty")
        ordered = tuple(self.instructions.values())
        for instruction in ordered:
            for operand in instruction.operands:
                if operand not in self.instructions:
                    what = f"%{_short(instruction.name)} uses %{_short(operand)}, not defined here"
                    raise _error(instruction.line, what)
        position = {i.name: at for at, i in enumerate(ordered)}
        self.computations[self.current] = Computation(self.current, ordered, position)
        self.current = ""

    def finish(self) -> Module:
        if not self.header:
            raise _error(1, "it does not begin with `HloModule`")
        if self.current:
            raise _error(self.line, f"the text ends inside computation {_short(self.current)}")
        if not self.entry:
            raise _error(self.line, "the text ends before the entry computation")
        self._check_calls()
        name = _MODULE.match(self.header)
        partitions = _PARTITIONS.search(self.header)
        lines, callers = self.tables.frames()
        outer = self._outer_lines(lines)
        aliases = self.header.partition("entry_computation_layout=")[0]
        return Module(
            name=name[1] if name else "",
            entry=self.entry,
            computations=self.computations,
            is_scheduled="is_scheduled=true" in self.header,
            num_partitions=int(partitions[1]) if partitions else 1,
            donated=frozenset(int(n) for n in _DONATED.findall(aliases)),
            lines=lines | outer,
            callers=callers | dict.fromkeys(outer, ""),
        )

    def _outer_lines(self, lines: Mapping[int, str]) -> dict[int, str]:
        """Frame -> the line that calls its computation, where the frame itself is all installed.

        What jax lowers as a function has frames of its own, such as a layer of a package in a scan;
        once it is inlined they end in those of the program that calls it.
        """
        outer: dict[str, set[str]] = {}
        found: dict[int, set[str]] = {}
        for name, computation in reversed(self.computations.items()):  # a caller comes after it
            above = outer.get(name, set())
            for instruction in computation.instructions:
                match = (
                    FRAME.search(instruction.attributes) if above or instruction.called else None
                )
                line = lines.get(int(match[1]), "") if match else ""
                is_own = line != "" and not is_installed(line)
                if match and not is_own and above:
                    found.setdefault(int(match[1]), set()).update(above)
                for callee in instruction.called:
                    outer.setdefault(callee, set()).update({line} if is_own else above)
        return {frame: line for frame, (line, *more) in found.items() if not more}

    def _check_calls(self) -> None:
        """Every called computation exists, and none calls itself, however indirectly."""
        calls = {name: list(self._callees(c)) for name, c in self.computations.items()}
        waiting = {name: len(set(callees)) for name, callees in calls.items()}
        callers: dict[str, list[str]] = {name: [] for name in calls}
        for name, callees in calls.items():
            for callee in set(callees):
                callers[callee].append(name)
        ready = [name for name, count in waiting.items() if count == 0]
        done = 0
        while ready:
            done += 1
            for caller in callers[ready.pop()]:
                waiting[caller] -= 1
                if waiting[caller] == 0:
                    ready.append(caller)
        if done < len(calls):
            loop = next(name for name, count in waiting.items() if count > 0)
            raise _error(self.line, f"computation {_short(loop)} calls itself")

    def _callees(self, computation: Computation) -> Iterator[str]:
        for instruction in computation.instructions:
            for name in instruction.called:
                if name not in self.computations:
                    what = f"%{_short(instruction.name)} calls %{_short(name)}, not in the text"
                    raise _error(instruction.line, what)
                yield name


@dataclass(slots=True)
class _Pending:
    """The lines of one instruction, and whether a quote or brace is still open."""

    line: int
    lines: list[str]
    depth: int | None = None
    in_quotes: bool = False

    @property
    def is_open(self) -> bool:
        if self.depth is None:
            self.depth = 0
            self._count(self.lines[0])
        return self.in_quotes or self.depth > 0

    def add(self, line: str) -> None:
        self._count(line)
        self.lines.append(line)

    def _count(self, line: str) -> None:
        depth = self.depth or 0
        for mark in _MARKS.findall(line):
            if mark == '"':
                self.in_quotes = not self.in_quotes
            elif not self.in_quotes and mark in "{}":
                depth += 1 if mark == "{" else -1
        self.depth = depth


def _parse_instruction(pending: _Pending) -> Instruction:
    text = " ".join(pending.lines)
    start = _START.match(text)
    assert start is not None  # it is what opened the pending lines
    rest = text[start.end() :]
    end = _closing(rest, 0, pending.line) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, max(end, 0))
    if end <= 0 or opcode is None:
        raise _error(pending.line, f"%{_short(start[2])} has no type and opcode")
    close = _closing(rest, opcode.end() - 1, pending.line)
    body = rest[opcode.end() : close]
    return Instruction(
        name=start[2],
        opcode=opcode[1],
        type_text=rest[:end],
        body=body,
        operands=() if opcode[1] in _LITERALS else _operands(body),
        attributes=rest[close + 1 :],
        is_root=bool(start[1]),
        line=pending.line,
    )


def _operands(body: str) -> tuple[str, ...]:
    """Names after `%`, or the last word between commas in the short form without it."""
    if "%" in body or not body.strip():
        return tuple(_OPERAND.findall(body))
    bare = _TYPE_PARTS.sub("", body)
    return tuple(words[-1] for part in bare.split(",") if (words := part.split()))


def _closing(text: str, start: int, line: int) -> int:
    """Where the parenthesis that opens at `start` closes."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise _error(line, "a parenthesis stays open")


def _short(text: str) -> str:
    """A name or line that fits into a message."""
    clean = text.strip().encode("ascii", "replace").decode()
    return clean if len(clean) <= 60 else clean[:57] + "..."
