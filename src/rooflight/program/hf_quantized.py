"""Weights that a file stores in few bits, as numbers: four-bit blocks (gpt-oss), fp8 (DeepSeek-V3).

In: bytes and scales as they lie in the file. Out: fp32, a scale times a short float.
"""

import numpy as np

from rooflight.program.hf_forms import Array

MX_BLOCK = 32  # elements a scale, two to a byte, the first in the low bits (OCP MX v1.0)
FP8_BLOCK = 128  # rows and columns a scale
_MX_BIAS = 127  # a scale is a power of two, stored as its exponent plus this
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # one sign, two exponent, one mantissa
_FP4_VALUES = np.concatenate([_FP4, -_FP4])


def from_mxfp4(blocks: Array, scales: Array) -> Array:
    """blocks[..., b, 16] of bytes and scales[..., b] -> values[..., 32 b].

    >>> one = np.full((1, 16), 0x2A, np.uint8)
    >>> from_mxfp4(one, np.array([128], np.uint8))[:4].tolist()
    [-2.0, 2.0, -2.0, 2.0]
    """
    pairs = np.stack([blocks & 0xF, blocks >> 4], -1)
    values = _FP4_VALUES[pairs].reshape(*blocks.shape[:-1], MX_BLOCK)
    exponents = scales.astype(np.int32)[..., None] - _MX_BIAS
    return np.ldexp(values, exponents).reshape(*blocks.shape[:-2], -1)


def from_fp8(values: Array, scales: Array, start: tuple[int, ...]) -> Array:
    """Values of a block that begins at `start` of its tensor, times the scale of their tile."""
    tiles: list[Array] = [
        (first % FP8_BLOCK + np.arange(n)) // FP8_BLOCK
        for first, n in zip(start, values.shape, strict=True)
    ]
    return values.astype(np.float32) * scales[np.ix_(*tiles)].astype(np.float32)
