"""How large the package is, and was in its first release: the table of docs/before-after.md.

    python -m benchmarks.sizes            # of this tree, beside the first release
    python -m benchmarks.sizes --write    # into the page, too

Counts are of the source alone, by its syntax. A name is public if the face of a package has it in
`__all__`; two classes share a name if only underscores before it differ.
"""

import argparse
import ast
import statistics
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.page import between, markdown
from benchmarks.record import ROOT
from benchmarks.trees import PAGE, unpack

FIRST = "8d30369"  # the first release: 0.1.0, 2026-11-16
SIZES, ROOMS, COMMITS = "sizes", "rooms", "commits"
ROOMS_AT = "a898707"  # where the move to rooms ended
PACKAGE = "src/rooflight"
START_UP, WHEEL = "start-up of --help, times a bare interpreter", "wheel, kB"
MEASURED = (START_UP, WHEEL)  # the rest is counted
_ENTRY = "from rooflight.cli.main import entry; entry()"
_VERBS = "from rooflight.cli.verbs import VERBS; print(len(VERBS))"
_ROUNDS = 15


def counts(source: Path) -> dict[str, float]:
    """Of the package in a folder `src`."""
    package = source / "rooflight"
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = Counter(n.name.lstrip("_") for n in nodes if isinstance(n, ast.ClassDef))
    functions = sorted(
        (n.end_lineno or n.lineno) - n.lineno + 1
        for n in nodes
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    folders = Counter(path.parent for path in texts)
    return {
        "packages": len({p.relative_to(package).parts[0] for p in folders if p != package}),
        "files": len(texts),
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "files in the largest folder": max(folders.values()),
        "class names that two classes share": sum(n > 1 for n in classes.values()),
        "public names": sum(len(_public(tree)) for p, tree in trees.items() if _is_face(p)),
        "commands": int(_output(["-c", _VERBS], source)),
        "lines of a function, median": statistics.median_low(functions),
        "lines of a function, p90": functions[len(functions) * 9 // 10],
    }


def _is_face(path: Path) -> bool:
    return path.name == "__init__.py"


def _public(tree: ast.Module) -> list[str]:
    """What `__all__` of a module lists."""
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return [name for value in found for name in ast.literal_eval(value)]


def _output(words: Sequence[str], source: Path) -> str:
    env = environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def start_up(sources: Sequence[Path]) -> list[float]:
    """CPU seconds of `--help` over those of a bare interpreter, in turn: medians of ratios."""
    from benchmarks.start_up import cpu_s

    turns: list[list[float]] = []
    for _ in range(_ROUNDS + 1):  # the first writes the bytecode
        bare = cpu_s(["-c", "pass"])
        turns.append([cpu_s(["-c", _ENTRY, "--help"], source) / bare for source in sources])
    return [round(statistics.median(ratios), 1) for ratios in zip(*turns[1:], strict=True)]


def wheel_kb(tree: Path) -> int:
    with TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, cwd=tree, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        assert zipfile.is_zipfile(wheel)
        return round(wheel.stat().st_size / 1000)


def both() -> tuple[dict[str, float], dict[str, float]]:
    """The first release, and this tree."""
    with TemporaryDirectory() as folder:
        trees = unpack(FIRST, Path(folder)), ROOT
        old, new = (counts(tree / "src") for tree in trees)
        ratios = start_up([tree / "src" for tree in trees])
        for found, ratio, tree in zip((old, new), ratios, trees, strict=True):
            found |= {START_UP: ratio, WHEEL: wheel_kb(tree)}
    return old, new


def rooms(source: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of each room, the largest first; the ground floor together."""
    found: dict[str, tuple[int, int]] = {}
    for path in (source / "rooflight").rglob("*.py"):
        room, *rest = path.relative_to(source / "rooflight").parts
        files, lines = found.get(name := room if rest else "the ground", (0, 0))
        found[name] = files + 1, lines + len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def shares(log: str, known: Collection[str]) -> list[float]:
    """Of each commit that names a room before its colon: the part of its lines that lies there.

    `log` is that of `git log --numstat --format=@%s`.
    """
    found: list[float] = []
    for commit in log.split("@")[1:]:
        subject, *changed = commit.splitlines()
        area, lines = subject.partition(":")[0], Counter[str]()
        for added, removed, path in (row.split("\t") for row in changed if row):
            lines[path.split("/")[2]] += int(added) + int(removed) if added != "-" else 0
        if area in known and lines.total():
            found.append(lines[area] / lines.total())
    return found


def commits() -> str:
    """How far a change stays in one room, in words."""
    command = ["git", "log", "--no-merges", "--format=@%s", "--numstat", f"{ROOMS_AT}..HEAD"]
    done = subprocess.run([*command, "--", PACKAGE], cwd=ROOT, check=True, capture_output=True)
    found = shares(done.stdout.decode(), rooms(ROOT / "src"))
    most = sum(share > 1 / 2 for share in found)
    return (
        f"Of {len(found)} commits since {ROOMS_AT} that name one room before their colon, more than"
        f" half of the lines lie there\nin {most}; the median is {statistics.median(found):.0%}."
    )


def table(old: Mapping[str, float], new: Mapping[str, float]) -> str:
    rows = [[name, f"{old[name]:,}", f"{new[name]:,}"] for name in old]
    return markdown([["", f"0.1.0 ({FIRST})", "now"], *rows])


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"also into {PAGE.name}")
    args = parser.parse_args(words)
    by_room = [[room, str(n), f"{lines:,}"] for room, (n, lines) in rooms(ROOT / "src").items()]
    found = {SIZES: table(*both()), ROOMS: markdown([["room", "files", "lines"], *by_room])}
    found[COMMITS] = commits()
    print("\n\n".join(found.values()))
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        for mark, text in found.items():
            page = between(page, mark, text)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
