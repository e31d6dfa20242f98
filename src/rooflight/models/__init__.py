"""Models by their sizes, as contractions over named dims, and the layouts that split them."""

from rooflight.models.huggingface.read import model_from_hf, read_hf_config
from rooflight.models.presets import load_model, model_names
from rooflight.models.scaling_laws import (
    FittedRange,
    Ratio,
    ScalingLaw,
    ScalingLaws,
    load_scaling_laws,
)
from rooflight.models.spec import Attention, Block, Latent, Mlp, ModelSpec, Moe, Norm, Repeat

__all__ = [
    "Attention",
    "Block",
    "FittedRange",
    "Latent",
    "Mlp",
    "ModelSpec",
    "Moe",
    "Norm",
    "Ratio",
    "Repeat",
    "ScalingLaw",
    "ScalingLaws",
    "load_model",
    "load_scaling_laws",
    "model_from_hf",
    "model_names",
    "read_hf_config",
]
