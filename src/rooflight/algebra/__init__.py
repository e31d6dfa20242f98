"""The sharding algebra: notation, reshards, contractions and their reverse mode.

Shardings in, lists of steps out. It enumerates; `rooflight.costs` prices and chooses.
"""

from rooflight.algebra.autodiff import backward, gradient_of
from rooflight.algebra.blocks import block_moves, block_of, holders, positions
from rooflight.algebra.contract import Strategy, strategies
from rooflight.algebra.notation import (
    Axes,
    Contraction,
    Tensor,
    format_axes,
    parse_axes,
    parse_contraction,
    parse_tensor,
)
from rooflight.algebra.reshard import reshard
from rooflight.algebra.shapes import device_bytes, local_shape, total_bytes, ways
from rooflight.algebra.steps import Op, Step

__all__ = [
    "Axes",
    "Contraction",
    "Op",
    "Step",
    "Strategy",
    "Tensor",
    "backward",
    "block_moves",
    "block_of",
    "device_bytes",
    "format_axes",
    "gradient_of",
    "holders",
    "local_shape",
    "parse_axes",
    "parse_contraction",
    "parse_tensor",
    "positions",
    "reshard",
    "strategies",
    "total_bytes",
    "ways",
]
