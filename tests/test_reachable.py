"""Every module of src is reached by a command, a public name or a child process."""

import ast
import re
import tomllib
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType

from rooflight.cli.verbs import verb_module, verb_names

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# What no command runs yet, and what will. Nothing is added without such a promise.
WAITING = {
    "program.collective_matmul.matmul": "tp=X with gathers and scatters inside the matmuls",
    "program.collective_matmul.ring": "the same",
    "program.model.fused_block": "the same, as a block of the model",
    "program.moe.ragged": "ep=X without capacity: dropless, by a ragged all-to-all",
}
_NAME = re.compile(r"rooflight(?:\.\w+)+")  # in strings: `-m` of child processes, `module:function`
_CHILD = re.compile(r"(\w+):\w+")  # functions of `measure.microbench`, which its child imports


@cache
def modules() -> Mapping[str, ast.Module]:
    found: dict[str, ast.Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return MappingProxyType(found)


@cache
def names_in(tree: ast.Module) -> Set[str]:
    """Dotted names that a module imports anywhere, or has in a string for others to import."""
    found: set[str] = set()
    nodes = [*ast.walk(tree)]
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in prose:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if child := _CHILD.fullmatch(node.value):
                found.add(f"rooflight.measure.microbench.{child[1]}")
            found |= set(_NAME.findall(node.value))
    return found


def holder(name: str, known: Set[str]) -> str | None:
    """The module that a dotted name is, or is defined in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def roots() -> set[str]:
    """Where users come in: the script, each verb, the package, the extension of notebooks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = {target.partition(":")[0] for target in project["scripts"].values()}
    verbs = {verb_module(name) for name in verb_names()}
    return {*scripts, *verbs, "rooflight", "rooflight.__main__", "rooflight.notebook"}


def reached(trees: Mapping[str, ast.Module], starts: Set[str]) -> set[str]:
    """Modules that are imported, with the packages that hold them, however late."""
    known, seen, ahead = set(trees), set[str](), list(starts)
    while ahead:
        module = ahead.pop()
        if module in seen:
            continue
        seen.add(module)
        ahead += filter(None, [holder(name, known) for name in names_in(trees[module])])
        ahead += filter(None, [module.rpartition(".")[0]])
    return seen


def test_every_module_is_reached_or_waits_for_what_will_reach_it() -> None:
    trees = modules()
    unreached = set(trees) - reached(trees, roots())
    named = {name for name in unreached if not is_package(name, trees)}
    assert {name.removeprefix("rooflight.") for name in named} == set(WAITING)


def is_package(name: str, trees: Mapping[str, ast.Module]) -> bool:
    return any(other.startswith(f"{name}.") for other in trees)


def test_a_module_that_nothing_imports_is_found() -> None:
    trees = {**modules()} | {"rooflight.costs.forgotten": ast.parse("import rooflight.errors")}
    trees["rooflight.errors"] = ast.parse("'of `rooflight.costs.forgotten`'")
    assert "rooflight.costs.forgotten" not in reached(trees, roots())
    for lazy in (
        "def f():\n    import rooflight.costs.forgotten",
        "x = 'rooflight.costs.forgotten'",
    ):
        trees["rooflight.errors"] = ast.parse(lazy)
        assert "rooflight.costs.forgotten" in reached(trees, roots())
