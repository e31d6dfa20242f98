"""The face of every package: what `__all__` lists is what is there."""

import importlib
import types

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "hardware",
        "models",
        "models.graph",
        "algebra",
        "costs",
        "costs.netsim",
        "batching",
        "plan",
        "plan.file",
        "plan.serving",
        "interop",
        "book",
        "compile",
        "compile.hlo",
        "measure.trace",
    ],
)
def test_all_lists_exactly_the_re_exported_names(name: str) -> None:
    module = importlib.import_module(f"rooflight.{name}")
    present = {
        n
        for n, value in vars(module).items()
        if not n.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert present == set(module.__all__)
    assert list(module.__all__) == sorted(module.__all__, key=lambda n: (n.upper() != n, n))
