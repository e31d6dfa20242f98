"""From a model, a layout and a mesh to what will run. Records in, records out."""

from rooflight.plan.training.derive.algorithm import Algorithm, PricedStep, derive_algorithm
from rooflight.plan.training.memory.count import Memory, memory, memory_by_stage, usable_hbm_bytes
from rooflight.plan.training.memory.framework import FRAMEWORKS, Framework, parse_framework
from rooflight.plan.training.memory.job import Job, Microbatching
from rooflight.plan.training.memory.recipe import RECIPES, Recipe, parse_recipe
from rooflight.plan.training.memory.remat import REMATS, Remat, SavedActivations, keep, parse_remat
from rooflight.plan.training.questions.budget import (
    Allocation,
    Budget,
    Terms,
    affordable_flops,
    allocations,
    optimal_params,
    petaflop_days,
    run_flops,
)
from rooflight.plan.training.questions.fixes import UNKNOWNS, Fix, fixes, sized, solve, together
from rooflight.plan.training.time.pipeline import (
    PipelineRun,
    SlotTimes,
    TimedGroup,
    simulate_pipeline,
)
from rooflight.plan.training.time.stages import in_flight, stage_chunks, stage_layers

__all__ = [
    "FRAMEWORKS",
    "RECIPES",
    "REMATS",
    "UNKNOWNS",
    "Algorithm",
    "Allocation",
    "Budget",
    "Fix",
    "Framework",
    "Job",
    "Memory",
    "Microbatching",
    "PipelineRun",
    "PricedStep",
    "Recipe",
    "Remat",
    "SavedActivations",
    "SlotTimes",
    "Terms",
    "TimedGroup",
    "affordable_flops",
    "allocations",
    "derive_algorithm",
    "fixes",
    "in_flight",
    "keep",
    "memory",
    "memory_by_stage",
    "optimal_params",
    "parse_framework",
    "parse_recipe",
    "parse_remat",
    "petaflop_days",
    "run_flops",
    "simulate_pipeline",
    "sized",
    "solve",
    "stage_chunks",
    "stage_layers",
    "together",
    "usable_hbm_bytes",
]
