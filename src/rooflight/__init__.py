"""Rooflight: plan, program, verify, run and measure large-model layouts.

    import rooflight as rf
    plan = rf.plan_training("llama3-70b", on="v5p:8x8x8", batch="4Mi", seq=8192)

Names are loaded when they are first used. The rooms below (`rooflight.hardware`, `rooflight.models`
and so on) have more, which may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.api.compiled import build_train_step, read_hlo, verify, verify_function
    from rooflight.api.costs import collective, matmul, roofline
    from rooflight.api.measured import read_trace, reconcile
    from rooflight.api.memory import fit
    from rooflight.api.serving import plan_serving, simulate
    from rooflight.api.training import forecast, load_plan, plan_training, why_not
    from rooflight.api.workloads import plan_workloads
    from rooflight.errors import RooflightError, UsageError
    from rooflight.hardware.chip import Chip
    from rooflight.hardware.mesh import Mesh, parse_mesh
    from rooflight.hardware.slice import Slice, parse_slice
    from rooflight.models.presets import load_model
    from rooflight.models.spec import ModelSpec
    from rooflight.plan.file.record import Plan

__version__ = "0.1.0"

_HOMES = {
    "api.compiled": ("build_train_step", "read_hlo", "verify", "verify_function"),
    "api.costs": ("collective", "matmul", "roofline"),
    "api.measured": ("read_trace", "reconcile"),
    "api.memory": ("fit",),
    "api.serving": ("plan_serving", "simulate"),
    "api.workloads": ("plan_workloads",),
    "api.training": ("forecast", "load_plan", "plan_training", "why_not"),
    "errors": ("RooflightError", "UsageError"),
    "hardware.chip": ("Chip",),
    "hardware.mesh": ("Mesh", "parse_mesh"),
    "hardware.slice": ("Slice", "parse_slice"),
    "models.presets": ("load_model",),
    "models.spec": ("ModelSpec",),
    "plan.file.record": ("Plan",),
}

__all__ = [
    "Chip",
    "Mesh",
    "ModelSpec",
    "Plan",
    "RooflightError",
    "Slice",
    "UsageError",
    "build_train_step",
    "collective",
    "fit",
    "forecast",
    "load_model",
    "load_plan",
    "matmul",
    "parse_mesh",
    "parse_slice",
    "plan_serving",
    "plan_training",
    "plan_workloads",
    "read_hlo",
    "read_trace",
    "reconcile",
    "roofline",
    "simulate",
    "verify",
    "verify_function",
    "why_not",
]


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'rooflight' has no attribute {name!r}")
    return getattr(import_module(f"rooflight.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
