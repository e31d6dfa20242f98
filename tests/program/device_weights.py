"""Bytes of weights on one device, as their specs say."""

from rooflight.algebra.shapes import device_bytes, ways
from rooflight.models.layout.constraints import Constraints
from rooflight.program.model.params import TensorSpec


def device_nbytes(spec: TensorSpec, constraints: Constraints) -> int:
    """Bytes of a weight on one device of the mesh."""
    stored = constraints.layout.of_weight(spec.tensor)
    sizes = dict(zip(spec.tensor.dims, spec.shape[-len(spec.tensor.dims) :], strict=True))
    stages = ways(constraints.layout.stages, constraints.axes)
    layers = 1 if spec.times is None else spec.times // stages
    return layers * device_bytes(stored, sizes, constraints.axes, spec.dtype)
