"""What we are given: chips, slices, meshes and models. Files in, frozen records out."""

from rooflight.specs.catalog import chip_names, load_chip, read_chip
from rooflight.specs.chip import Chip, MatrixUnit, Source, SwitchedSpec, TorusSpec
from rooflight.specs.huggingface import model_from_hf, read_hf_config
from rooflight.specs.mesh import Fan, Group, Mesh, Ring, Segment, parse_mesh, place
from rooflight.specs.model import (
    Attention,
    Block,
    Latent,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    Repeat,
)
from rooflight.specs.presets import load_model, model_names
from rooflight.specs.scaling_laws import (
    FittedRange,
    Ratio,
    ScalingLaw,
    ScalingLaws,
    load_scaling_laws,
)
from rooflight.specs.slice import PhysicalDim, Slice, SwitchDim, TorusDim, parse_slice

__all__ = [
    "Attention",
    "Block",
    "Chip",
    "Fan",
    "FittedRange",
    "Group",
    "Latent",
    "MatrixUnit",
    "Mesh",
    "Mlp",
    "ModelSpec",
    "Moe",
    "Norm",
    "PhysicalDim",
    "Ratio",
    "Repeat",
    "Ring",
    "ScalingLaw",
    "ScalingLaws",
    "Segment",
    "Slice",
    "Source",
    "SwitchDim",
    "SwitchedSpec",
    "TorusDim",
    "TorusSpec",
    "chip_names",
    "load_chip",
    "load_model",
    "load_scaling_laws",
    "model_from_hf",
    "model_names",
    "parse_mesh",
    "parse_slice",
    "place",
    "read_chip",
    "read_hf_config",
]
