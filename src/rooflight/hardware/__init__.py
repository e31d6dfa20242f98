"""Chips, slices, meshes and calibrations: what the catalog says, with source and date."""

from rooflight.hardware.catalog import chip_names, load_chip, read_chip
from rooflight.hardware.chip import Chip, MatrixUnit, Source, SwitchedSpec, TorusSpec
from rooflight.hardware.mesh import Fan, Group, Mesh, Ring, Segment, parse_mesh, place
from rooflight.hardware.slice import PhysicalDim, Slice, SwitchDim, TorusDim, parse_slice

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
