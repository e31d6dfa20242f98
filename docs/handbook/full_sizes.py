"""`{full-sizes}`: how each full size last ended, from the record that `./check --full` keeps."""

import json
from collections import Counter
from pathlib import Path
from typing import Any  # JSON

from docutils.nodes import Node
from sphinx.util.docutils import SphinxDirective

from handbook.tables import paragraph, table

RECORD = Path(__file__).parents[1] / "full-sizes.json"
_HEADER = ("test", "ended", "cases", "took", "on", "commit", "machine")


class FullSizes(SphinxDirective):
    """What failed or never ran first, then the rest by file."""

    def run(self) -> list[Node]:
        self.env.note_dependency(str(RECORD))
        tests: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())["tests"]
        passed = [name for name, entry in tests.items() if entry["outcome"] == "passed"]
        rows = [_row(name, tests[name]) for name in sorted(tests, key=lambda n: (n in passed, n))]
        return [paragraph(_summary(tests)), table(_HEADER, rows)]


def _summary(tests: dict[str, dict[str, Any]]) -> str:
    ended = Counter(str(entry["outcome"]) for entry in tests.values())
    words = ", ".join(f"{count} {how}" for how, count in ended.most_common())
    return f"{len(tests)} tests: {words}."


def _row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    if "date" not in entry:
        return f"`{name}`", str(entry["outcome"]), "", "", "", "", ""
    why = f": {entry['why']}" if entry["why"] else ""
    machine = (
        f"{entry['gflops']} GFLOP/s, {entry['gbytes_per_s']} GB/s" if "gflops" in entry else ""
    )
    return (
        f"`{name}`",
        f"{entry['outcome']}{why}",
        str(entry["cases"]),
        f"{entry['seconds']:.0f} s",
        str(entry["date"]),
        f"`{entry['commit']}`" if "commit" in entry else "",
        machine,
    )
