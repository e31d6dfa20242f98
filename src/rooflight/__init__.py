"""Rooflight: plan, program, verify, run and measure large-model layouts.

    import rooflight as rf
    plan = rf.plan_training("llama3-70b", on="v5p:8x8x8", batch="4Mi", seq=8192)

Names are loaded when they are first used. The rooms below (`rooflight.hardware`, `rooflight.models`
and so on) have more, which may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.api import (
        build_train_step,
        collective,
        fit,
        forecast,
        load_model,
        load_plan,
        matmul,
        plan_training,
        read_hlo,
        read_trace,
        reconcile,
        roofline,
        verify,
        why_not,
    )
    from rooflight.errors import RooflightError, UsageError
    from rooflight.hardware.chip import Chip
    from rooflight.hardware.mesh import Mesh, parse_mesh
    from rooflight.hardware.slice import Slice, parse_slice
    from rooflight.models.spec import ModelSpec
    from rooflight.plan.file.record import Plan

__version__ = "0.1.0"

_ELSEWHERE = {
    "Chip": "hardware.chip",
    "Mesh": "hardware.mesh",
    "ModelSpec": "models.spec",
    "Plan": "plan.file.record",
    "RooflightError": "errors",
    "Slice": "hardware.slice",
    "UsageError": "errors",
    "parse_mesh": "hardware.mesh",
    "parse_slice": "hardware.slice",
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
    "plan_training",
    "read_hlo",
    "read_trace",
    "reconcile",
    "roofline",
    "verify",
    "why_not",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rooflight' has no attribute {name!r}")
    return getattr(import_module(f"rooflight.{_ELSEWHERE.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
