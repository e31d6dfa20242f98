"""Serving: the time and memory of prefill and generate steps, and what is read off them."""

from rooflight.plan.serving.simulate.load import Load, generate_load, prefill_load
from rooflight.plan.serving.simulate.replay import (
    generate_time,
    prefill_time,
    replayed_model,
    slice_name,
)
from rooflight.plan.serving.step.cost import StepCost
from rooflight.plan.serving.step.curve import StepCurve, step_curve
from rooflight.plan.serving.step.derive_model import serving_model
from rooflight.plan.serving.step.kv_moves import KvMove, hand_over, load_from_host
from rooflight.plan.serving.step.layout import KV_SPLITS, ServingLayout, parse_serving_layout
from rooflight.plan.serving.step.memory import Held, ServingMemory
from rooflight.plan.serving.step.model import StepModel
from rooflight.plan.serving.step.precision import Precision, parse_precision
from rooflight.plan.serving.step.speculative import Speculation
from rooflight.plan.serving.step.time import StepTime
from rooflight.plan.serving.step.totals import (
    Totals,
    ended_per_step,
    generate_ways,
    requests_per_s,
    slices_ratio,
)

__all__ = [
    "KV_SPLITS",
    "Held",
    "KvMove",
    "Load",
    "Precision",
    "ServingLayout",
    "ServingMemory",
    "Speculation",
    "StepCost",
    "StepCurve",
    "StepModel",
    "StepTime",
    "Totals",
    "ended_per_step",
    "generate_load",
    "generate_time",
    "generate_ways",
    "hand_over",
    "load_from_host",
    "parse_precision",
    "parse_serving_layout",
    "prefill_load",
    "prefill_time",
    "replayed_model",
    "requests_per_s",
    "serving_model",
    "slice_name",
    "slices_ratio",
    "step_curve",
]
