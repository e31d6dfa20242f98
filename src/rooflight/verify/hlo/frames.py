"""The tables at the head of a dump that say which line of which file made an instruction."""

import re
from dataclasses import dataclass, field

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_NAME = re.compile(r'(\d{1,9}) "(.*)"')
_ROW = re.compile(r"(\d{1,9}) \{(.*)\}")
_FIELD = re.compile(r"(\w+)=(\d{1,9})")


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

    def frames(self) -> dict[int, str]:
        """Frame -> `file:line` of its innermost call."""
        found: dict[int, str] = {}
        for frame, location in self.stack.items():
            place = self.locations.get(location)
            if place and (name := self.files.get(place.get("file_name_id", 0))):
                found[frame] = f"{name}:{place['line']}" if "line" in place else name
        return found
