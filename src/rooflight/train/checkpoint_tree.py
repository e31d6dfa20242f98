# pyright: reportMissingTypeStubs=false
# tensorstore has no types of its own.
"""What an Orbax checkpoint holds, read on a laptop: no devices, no jax, no array is loaded.

In: the folder of a checkpoint of ours or of anybody's, or a folder with several. Out: every array
with its shape, dtype and how it was split over the mesh it was saved from.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from rooflight.errors import ParseError, UsageError

_MANIFEST = "manifest.ocdbt"
_ARRAY = "/.zarray"
_NAMES = {
    "<f4": "f32",
    "bfloat16": "bf16",
    "<f2": "f16",
    "<f8": "f64",
    "|b1": "bool",
    "<i4": "int32",
    "<u4": "uint32",
    "<i8": "int64",
    "|i1": "int8",
}


@dataclass(frozen=True, slots=True)
class SavedArray:
    """One array of a checkpoint; `split` has the mesh axes of each dim, None if not recorded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    split: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True, slots=True)
class SavedTree:
    """A checkpoint."""

    folder: Path
    arrays: tuple[SavedArray, ...]
    axes: Mapping[str, int]  # of the mesh it was saved from; empty if not recorded

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


def find_checkpoint(path: Path) -> Path:
    """The folder with the arrays: of this checkpoint, or of the newest one below a run's folder."""
    if (path / _MANIFEST).is_file():
        return path
    items = sorted(p.parent for p in path.glob(f"*/{_MANIFEST}"))
    if items:
        return next((p for p in items if p.name == "state"), items[0])
    steps = [p for parent in (path, path / "checkpoints") for p in _steps(parent)]
    if steps:
        return find_checkpoint(max(steps, key=lambda p: int(p.name)))
    raise UsageError(
        f"{path} holds no Orbax checkpoint ({_MANIFEST} is not there)",
        hint="give the folder of a run, or of one step of its checkpoints",
    )


def _steps(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [p for p in parent.iterdir() if p.name.isdigit() and any(p.glob(f"*/{_MANIFEST}"))]


def read_tree(path: Path) -> SavedTree:
    """Reads names, shapes, dtypes and shardings; never an array."""
    folder = find_checkpoint(path).resolve()
    splits, axes = _shardings(folder)
    arrays = [_array(name, about, splits.get(name)) for name, about in _zarrays(folder)]
    return SavedTree(folder, tuple(arrays), axes)


def _zarrays(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import tensorstore

    try:
        spec = {"driver": "ocdbt", "base": f"file://{folder}/"}
        store = tensorstore.KvStore.open(spec).result()
        keys = sorted(key.decode() for key in store.list().result())
        for key in keys:
            if key.endswith(_ARRAY):
                yield key.removesuffix(_ARRAY), json.loads(store.read(key).result().value)
    except ValueError as error:
        reason = str(error).splitlines()[0][:200]
        raise ParseError(
            f"{folder} cannot be read as a checkpoint: {reason}",
            hint="it is damaged or not Orbax's; take the one before it",
        ) from None


def _array(name: str, about: Mapping[str, Any], split: Any) -> SavedArray:
    dtype = _NAMES.get(about["dtype"], str(about["dtype"]))
    shape = tuple(int(size) for size in about["shape"])
    size = 2 if dtype == "bf16" else np.dtype(about["dtype"]).itemsize
    known = None if split is None else (*split, *((),) * (len(shape) - len(split)))
    return SavedArray(name, shape, dtype, size * math.prod(shape), known)


def _shardings(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """How each array was split, and the mesh; nothing where Orbax wrote none."""
    try:
        found = cast(dict[str, str], json.loads((folder / "_sharding").read_text()))
    except (OSError, ValueError):
        return {}, {}
    splits: dict[str, Any] = {}
    axes: dict[str, int] = {}
    for key, text in found.items():
        told = json.loads(text)
        if told.get("sharding_type") == "NamedSharding":
            axes = dict(zip(told["axis_names"], told["shape"], strict=False))
            splits[base64.b64decode(key).decode()] = tuple(map(_axes, told["partition_spec"]))
    return splits, axes


def _axes(entry: object) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(cast(list[str], entry))
