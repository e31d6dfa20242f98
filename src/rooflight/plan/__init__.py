"""From a model, a layout and a mesh to what will run. Records in, records out."""

from rooflight.plan.algorithm import Algorithm, Line, derive_algorithm

__all__ = ["Algorithm", "Line", "derive_algorithm"]
