"""The serving engine: jobs of tokens in, deltas of tokens out."""

from rooflight.engine.config import EngineConfig
from rooflight.engine.engine import Engine
from rooflight.engine.request import (
    Allowed,
    Delta,
    Finish,
    Job,
    Mask,
    Sampling,
    TokenLogprobs,
)
from rooflight.engine.runner import Runner
from rooflight.engine.stats import EngineStats

__all__ = [
    "Allowed",
    "Delta",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "Finish",
    "Job",
    "Mask",
    "Runner",
    "Sampling",
    "TokenLogprobs",
]
