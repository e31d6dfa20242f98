"""The layer table of ARCHITECTURE.md, enforced: every import in src is one that its row allows."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rooflight"
_ROW = re.compile(r"^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
SHARED_NAMES = {"Frame", "Op"}  # each with a private twin; none is added
LINES_A_FILE = 400
LARGE_FOLDERS = {
    "book": 19,
    "train": 19,
    "ui/browser": 21,
    "ui/svg": 18,
}
LINES_IN_ALL = 92_375  # goes down, not up


def layer_table() -> dict[str, tuple[set[str], set[str]]]:
    """Layer -> (layers it may import, packages it may import)."""
    rows = _ROW.findall((ROOT / "ARCHITECTURE.md").read_text())
    return {name: (_words(layers), _words(packages)) for name, layers, packages in rows}


def _words(text: str) -> set[str]:
    return {w.strip() for w in text.split(",") if w.strip()}


def layer_of(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return part.removesuffix(".py")


def imports(tree: ast.AST) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import at line {node.lineno}"
            found.append((node.lineno, node.module or ""))
    return found


def offences(path: Path, source: str) -> list[str]:
    """Imports of one module that its layer may not have."""
    table = layer_table()
    layer = layer_of(path)
    if layer in ("__init__", "__main__"):
        return []
    if layer not in table:
        return [f"{path}: layer {layer} is not in the table of ARCHITECTURE.md"]
    layers, packages = table[layer]
    found: list[str] = []
    for line, name in imports(ast.parse(source)):
        top, _, rest = name.partition(".")
        if top == "rooflight":
            target = rest.split(".")[0]
            if target and target != layer and target not in layers:
                found.append(f"{path}:{line}: {layer} imports {name}")
        elif top not in sys.stdlib_module_names and top not in packages:
            found.append(f"{path}:{line}: {layer} imports the package {top}")
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_imports_go_down_the_layer_table_only() -> None:
    found = [o for path in modules() for o in offences(path, path.read_text())]
    assert not found, "\n".join(found)


def test_rooms_import_only_rooms_below_them() -> None:
    order = list(layer_table())
    for room, (below, _) in layer_table().items():
        assert below <= set(order[order.index(room) + 1 :]), room


def test_the_simulator_imports_nothing_of_what_it_judges() -> None:
    for path in (SOURCE / "costs" / "netsim").glob("*.py"):
        for _, name in imports(ast.parse(path.read_text())):
            assert not name.startswith("rooflight.costs") or name.startswith(
                "rooflight.costs.netsim"
            )


def test_folders_are_small_enough_to_read() -> None:
    """Those above sixteen files, by name; none may grow, and none be added."""
    files = {p.parent for p in modules()}
    sizes = {str(d.relative_to(SOURCE)): len(list(d.glob("*.py"))) for d in files}
    assert {name: n for name, n in sizes.items() if n > 16} == LARGE_FOLDERS


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Classes whose name another class has too, private ones and those inside others included."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(module)
    return {name: found for name, found in homes.items() if len(found) > 1}


def test_a_class_has_a_name_of_its_own() -> None:
    """So that a name in a traceback, a search or a review is one thing."""
    sources = {str(p.relative_to(SOURCE)): p.read_text() for p in modules()}
    assert set(shared_names(sources)) == SHARED_NAMES


def test_a_shared_class_name_is_told_with_its_modules() -> None:
    sources = {"a.py": "class Row: ...", "b.py": "class _Row: ...\ndef f():\n    class Op: ..."}
    assert shared_names(sources) == {"Row": ["a.py", "b.py"]}
    assert shared_names(sources | {"c.py": "class Op: ..."}).keys() == {"Row", "Op"}


def test_an_offending_import_is_named() -> None:
    path = SOURCE / "algebra" / "steps.py"
    assert offences(path, "from rooflight.costs import price") == [
        f"{path}:1: algebra imports rooflight.costs"
    ]
    assert offences(path, "def f():\n    import jax") == [
        f"{path}:2: algebra imports the package jax"
    ]


def test_the_table_has_every_folder() -> None:
    present = {layer_of(p) for p in modules()} - {"__init__", "__main__"}
    assert present == set(layer_table())


def test_files_stay_within_the_line_budget() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in modules()}
    assert {p.name: n for p, n in lengths.items() if n > LINES_A_FILE} == {}
    assert sum(lengths.values()) <= LINES_IN_ALL
