"""docs/changes.md: the files of a request are there, in the room that ARCHITECTURE names."""

import re
from pathlib import Path

from .test_layers import ROOT, SOURCE, layer_table

_ROW = re.compile(r"^\| ([^|]+ \(\S+#\d+\)) \| `(\w+)` \| (.+) \|$", re.MULTILINE)


def requests() -> list[tuple[str, str, list[Path]]]:
    found = _ROW.findall((ROOT / "docs" / "changes.md").read_text(encoding="utf-8"))
    return [
        (asked, room, [Path(f.strip("` ")) for f in files.split(",")])
        for asked, room, files in found
    ]


def test_thirty_requests_lie_in_the_room_that_is_named_for_them() -> None:
    found = requests()
    assert len(found) == 30
    for asked, room, files in found:
        assert room in layer_table(), asked
        assert {path.parts[0] for path in files} == {room}, asked
        assert all((SOURCE / path).exists() for path in files), asked
    assert len({room for _, room, _ in found}) >= 12
