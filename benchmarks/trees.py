"""Two trees of the source give the same numbers: some 300 commands and API calls, value by value.

    python -m benchmarks.trees                  # the last tree before the rooms, and this one
    python -m benchmarks.trees --old COMMIT --write   # also what docs/before-after.md shows

Each tree answers in one process of its own, by old spellings, which both understand. Numbers must
agree to 1e-9 and texts must be equal, after `RENAMED`; sentences may be worded otherwise if they
have the same figures. What differs is counted by its cause in `CAUSES`: features that came since
the old commit. A difference without a cause ends the comparison with exit code 1.
"""

import argparse
import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any  # JSON

from benchmarks.page import between, markdown
from benchmarks.record import ROOT

BEFORE = "fe13f2a"  # the last commit before 24 packages became 15
MARK = "trees"
_MANY = 10
PAGE = ROOT / "docs" / "before-after.md"

# What may differ

RENAMED = {"products_s": "matmuls_s", "again_flops": "recompute_flops", "kept": "saved"}
CAUSES: tuple[tuple[str, str, str], ...] = (  # cause, of which questions, at which paths
    ("the schema: 2 of --json, 3 of plans", ".*", r"\.schema"),
    (
        "list prices are of a dated catalog of clouds (58b0ae5)",
        "chips|slice|budget",
        r".*\.dollars_per_hour|\.price_source\..*",
    ),
    (
        "vocabularies of GPT-3 and PaLM are padded for TP (b2729cd, a64b74c)",
        "model",
        r"\.models\[(gpt3-175b|palm-540b)\]\.(active_)?params",
    ),
    (
        "forecasts: constants fitted to 110 more runs (f65a9f6)",
        "plan train|forecast",
        r"\.(time\.)?(forecast|best)\.(\w*step_s|forecast_s|seconds|low_s|high_s|mfu|parts_s\..*)"
        r"|\.because",
    ),
    (
        "stages of a served pipeline are priced one by one (2bea56f)",
        "frontier",
        r"\.curves\[[^]]*pp=\d\]\..*|\.frontier\..*",
    ),
)
RENAMED_KEY, MORE = "a key of another name", "a field that is new"
WORDED = "a sentence in other words, with the same figures"


@dataclass(frozen=True, slots=True)
class Difference:
    at: str  # path in the document, without numbers of rows
    old: object
    new: object

    @property
    def is_more(self) -> bool:
        """A field that the old tree did not have."""
        return self.old is ABSENT

    @property
    def is_worded(self) -> bool:
        """Two sentences that say the same figures."""
        texts = (self.old, self.new)
        if not all(isinstance(text, str) for text in texts):
            return False
        old, new = (re.findall(r"\d[\d.,]*", str(text)) for text in texts)
        return old == new


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


def differences(old: Any, new: Any, at: str = "") -> Iterator[Difference]:
    """Where two documents are not the same, the old one's keys renamed."""
    if isinstance(old, dict) and isinstance(new, dict):
        before = {RENAMED.get(key, key) if key not in new else key: x for key, x in old.items()}
        for key in dict.fromkeys((*before, *new)):
            pair = before.get(key, ABSENT), new.get(key, ABSENT)
            yield from differences(*pair, f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            yield from differences(one, other, f"{at}[{_name(one)}]")
    elif isinstance(old, int | float) and isinstance(new, int | float):
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-15):
            yield Difference(at, old, new)
    elif old != new:
        yield Difference(at, old, new)


def _name(row: Any) -> str:
    """What a row of a table calls itself."""
    named = (row.get(key) for key in ("layout", "name")) if isinstance(row, dict) else ()
    return next((name for name in named if isinstance(name, str)), "")


def renamed(document: Any) -> Iterator[str]:
    """The old names of keys in a document, as often as they occur."""
    if isinstance(document, dict):
        yield from (key for key in document if key in RENAMED)
        document = [*document.values()]
    for part in document if isinstance(document, list) else ():
        yield from renamed(part)


def leaves(document: Any) -> int:
    """How many values there are."""
    if isinstance(document, dict):
        return sum(map(leaves, document.values()))
    return sum(map(leaves, document)) if isinstance(document, list) else 1


def cause_of(label: str, found: Difference) -> str:
    """Why a value differs; nothing if nobody says."""
    if found.is_more:
        return MORE
    if found.is_worded:
        return WORDED
    named = (
        why for why, asked, at in CAUSES if re.match(asked, label) and re.fullmatch(at, found.at)
    )
    return next(named, "")


# Both trees


def recorded(source: Path) -> dict[str, Any]:
    """The answers of one tree."""
    env = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    code = "import json,sys; from benchmarks.asked import answers; json.dump(answers(), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def unpack(commit: str, folder: Path, *paths: str) -> Path:
    """A commit's files, without a checkout."""
    packed = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def summary(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Counts by verb and by cause; what has no cause, in words."""
    verbs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    causes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    odd: list[str] = []
    for label, before in old.items():
        verb = re.split(r"[ (]", label)[0]
        verbs[verb] += Counter(asked=1, values=leaves(before))
        for key in renamed(before["document"]):
            causes[f"{RENAMED_KEY}, now `{RENAMED[key]}`"][verb] += 1
        for one in differences(before, new[label]):
            one = replace(one, at=one.at.removeprefix(".document"))
            why = cause_of(label, one)
            causes[why or "unexplained"][verb] += 1
            verbs[verb]["differ"] += why != MORE
            if not why:
                odd.append(f"{label}: {one.at}: {one.old!r} -> {one.new!r}")
    return {"verbs": verbs, "causes": causes, "odd": odd}


def text(found: Mapping[str, Any]) -> str:
    """As the page shows it."""
    total = sum(found["verbs"].values(), Counter[str]())
    rows = [
        [verb, f"{n['asked']:,}", f"{n['values']:,}", f"{n['values'] - n['differ']:,}"]
        for verb, n in (*found["verbs"].items(), ("all", total))
    ]
    whys = [
        [
            why,
            f"{sum(verbs.values()):,}",
            ", ".join(sorted(verbs)) if len(verbs) < _MANY else "most",
        ]
        for why, verbs in sorted(found["causes"].items(), key=lambda row: -sum(row[1].values()))
    ]
    asked = markdown([["asked", "times", "values", "the same"], *rows])
    return f"{asked}\n\n{markdown([['what differs, and why', 'values', 'of'], *whys])}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("--old", default=BEFORE, help=f"a commit (default: {BEFORE})")
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.name}")
    parser.add_argument("--keep", type=Path, help="a folder for both trees' documents")
    args = parser.parse_args(words)
    with TemporaryDirectory() as folder:
        sources = unpack(args.old, Path(folder), "src") / "src", ROOT / "src"
        documents = [recorded(source) for source in sources]
    if args.keep:
        for name, document in zip(("old", "new"), documents, strict=True):
            (args.keep / f"{name}.json").write_text(json.dumps(document))
    found = summary(*documents)
    print(text(found), *found["odd"], sep="\n")
    if args.write:
        page = between(PAGE.read_text(encoding="utf-8"), MARK, text(found))
        PAGE.write_text(page, encoding="utf-8")
    return int(bool(found["odd"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
