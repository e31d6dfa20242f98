"""What we are given: chips, slices and meshes. Files in, frozen records out."""

from rooflight.specs.catalog import chip_names, load_chip, read_chip
from rooflight.specs.chip import Chip, MatrixUnit, Source, SwitchedSpec, TorusSpec
from rooflight.specs.mesh import Fan, Group, Mesh, Ring, Segment, parse_mesh, place
from rooflight.specs.slice import PhysicalDim, Slice, SwitchDim, TorusDim, parse_slice

__all__ = [
    "Chip",
    "Fan",
    "Group",
    "MatrixUnit",
    "Mesh",
    "PhysicalDim",
    "Ring",
    "Segment",
    "Slice",
    "Source",
    "SwitchDim",
    "SwitchedSpec",
    "TorusDim",
    "TorusSpec",
    "chip_names",
    "load_chip",
    "parse_mesh",
    "parse_slice",
    "place",
    "read_chip",
]
