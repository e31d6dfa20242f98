"""Writes tensors as safetensors files of bounded size with an index, one file in memory at a time.

In: tensors that are made when their turn comes. Out: files that `transformers` reads, too.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import save_file

from rooflight.program.hf_forms import Array
from rooflight.program.safetensors_files import INDEX, SINGLE


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that is made when it is written."""

    name: str
    nbytes: int
    make: Callable[[], Array]


def write_checkpoint(folder: Path, tensors: Sequence[Made], *, max_file_bytes: int) -> list[Path]:
    """Fills files in order; one tensor that is larger than a file may be has its own."""
    groups = _groups(tensors, max_file_bytes)
    names = [SINGLE] if len(groups) == 1 else [_name(i, len(groups)) for i in range(len(groups))]
    for name, group in zip(names, groups, strict=True):
        save_file({t.name: t.make() for t in group}, folder / name, metadata={"format": "pt"})
    if len(groups) > 1:
        _write_index(folder / INDEX, dict(zip(names, groups, strict=True)))
    return [folder / name for name in names]


def _name(index: int, count: int) -> str:
    return f"model-{index + 1:05}-of-{count:05}.safetensors"


def _groups(tensors: Sequence[Made], most: int) -> list[list[Made]]:
    groups: list[list[Made]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.nbytes > most:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.nbytes
    return groups


def _write_index(file: Path, groups: dict[str, list[Made]]) -> None:
    total = sum(t.nbytes for group in groups.values() for t in group)
    places = {t.name: name for name, group in groups.items() for t in group}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    file.write_text(json.dumps(index, indent=2) + "\n")
