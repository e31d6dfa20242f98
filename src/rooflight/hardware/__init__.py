"""Chips, slices, meshes and calibrations: what the catalog says, with source and date."""
