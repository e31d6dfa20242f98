"""The tensors of a folder of safetensors files, read block by block.

In: a folder with one file, or with several and an index. Out: blocks of tensors as numpy arrays,
what is stored quantized decoded. A file is mapped only while a block is read from it, so no more
of a checkpoint is ever in memory than the block asked for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.program.checkpoint.forms import Array

# Weights that a file stores quantized, as numbers: four-bit blocks (gpt-oss), fp8 (DeepSeek-V3).

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


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_EIGHT_BITS = {"F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2}  # not numpy's own
_BLOCKS, _SCALES, _TILES = "_blocks", "_scales", "_scale_inv"  # how names of packed tensors end


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a file; with `scales`, a quantized one, and the shape it has decoded."""

    file: Path
    name: str
    dtype: str  # as the file spells it
    shape: tuple[int, ...]
    scales: "TensorEntry | None" = None

    def read(self, slices: tuple[slice, ...]) -> Array:
        """A block, decoded to fp32 if packed; every slice has both ends."""
        if self.scales is None:
            return _read(self, slices)
        if self.name.endswith(_BLOCKS):
            return _read_mxfp4(self, self.scales, slices)
        tiles = tuple(slice(s.start // FP8_BLOCK, -(-s.stop // FP8_BLOCK)) for s in slices)
        start = tuple(s.start for s in slices)
        return from_fp8(_read(self, slices), _read(self.scales, tiles), start)


def open_checkpoint(folder: str | Path) -> dict[str, TensorEntry]:
    """All tensors of a folder by name; the scales of a packed tensor belong to it."""
    found = {e.name: e for file in _files(Path(folder)) for e in _entries(file)}
    joined: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        scales = found.get(_scales_name(name))
        joined[name] = entry if scales is None else _with_scales(entry, scales)
    used = {e.scales.name for e in joined.values() if e.scales}
    return {name: e for name, e in joined.items() if name not in used}


def _scales_name(name: str) -> str:
    if name.endswith(_BLOCKS):
        return name.removesuffix(_BLOCKS) + _SCALES
    return name + _TILES


def _with_scales(entry: TensorEntry, scales: TensorEntry) -> TensorEntry:
    if entry.name.endswith(_BLOCKS):
        shape = (*scales.shape[:-1], scales.shape[-1] * MX_BLOCK)
        fits = entry.dtype == "U8" and entry.shape == (*scales.shape, MX_BLOCK // 2)
    else:
        shape = entry.shape
        fits = scales.shape == tuple(-(-n // FP8_BLOCK) for n in shape)
    if not fits:
        raise UsageError(
            f"{entry.name} is {entry.dtype} {list(entry.shape)} and its scales are "
            f"{list(scales.shape)}; only blocks of {MX_BLOCK} four-bit and tiles of {FP8_BLOCK} by "
            f"{FP8_BLOCK} eight-bit weights can be read",
            hint="save the model in bfloat16 first",
        )
    return replace(entry, shape=shape, scales=scales)


def _files(folder: Path) -> list[Path]:
    """The files that the index names, or the only one."""
    index = folder / INDEX
    if not index.exists():
        return [folder / SINGLE]
    hint = "download it again, or delete it if there is a single model.safetensors"
    try:
        places = cast(Mapping[str, str], json.loads(read_file(index, hint=hint))["weight_map"])
        names = sorted(set(places.values()))
        if outside := [name for name in names if Path(name).name != name or not name.strip(".")]:
            raise ValueError(f"{outside[0]!r} is not in its folder")
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{index} must be an index of safetensors files: {error!r}", hint=hint
        ) from None
    return [folder / name for name in names]


def _entries(file: Path) -> Iterator[TensorEntry]:
    try:
        if file.exists() and not file.is_file():  # to open a pipe is to wait for who writes
            raise OSError("it must be a regular file")
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                part = opened.get_slice(name)
                yield TensorEntry(file, name, part.get_dtype(), tuple(part.get_shape()))
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"cannot read the weights {file}: {error}",
            hint=f"give a folder with {SINGLE}, or with {INDEX} and all files that it names",
        ) from None


def _read(entry: TensorEntry, slices: tuple[slice, ...]) -> Array:
    if entry.dtype in _EIGHT_BITS:
        return _read_eight_bits(entry, slices)
    with safe_open(entry.file, framework="numpy") as opened:
        return opened.get_slice(entry.name)[slices]


def _read_eight_bits(entry: TensorEntry, slices: tuple[slice, ...]) -> Array:
    """The library has no numpy dtype for short floats, so the bytes are read where they lie."""
    with entry.file.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    offset = 8 + length + header[entry.name]["data_offsets"][0]
    stored = np.memmap(entry.file, np.uint8, mode="r", offset=offset, shape=entry.shape)
    return np.array(stored[slices]).view(_EIGHT_BITS[entry.dtype])


def _read_mxfp4(entry: TensorEntry, scales: TensorEntry, slices: tuple[slice, ...]) -> Array:
    """Whole blocks around the part of the last dim that is asked for."""
    *rows, last = slices
    blocks = slice(last.start // MX_BLOCK, -(-last.stop // MX_BLOCK))
    packed = _read(entry, (*rows, blocks, slice(0, MX_BLOCK // 2)))
    values = from_mxfp4(packed, _read(scales, (*rows, blocks)))
    start = blocks.start * MX_BLOCK
    return values[..., last.start - start : last.stop - start]
