"""Every example in a docstring runs and prints what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in SRC.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)
NEEDS = {
    "jax": ("program", "engine", "measure"),
    "optax": ("program",),
    "aiohttp": ("service",),
    "libtpu": ("api.compiled",),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_show(name: str) -> None:
    for package, rooms in NEEDS.items():
        if name.removeprefix("rooflight.").startswith(rooms):
            pytest.importorskip(package)
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0 and found.attempted > 0
