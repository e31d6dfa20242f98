"""Weights on a mesh into a Hugging Face checkpoint, in files of bounded size.

In: arrays on devices, and the config of the model. Out: safetensors files, an index, config.json.
The host holds the tensors of one file, and a layer of a weight or two on their way there.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, cast

import jax
import numpy as np
from jax import lax
from safetensors.numpy import save_file

from rooflight.errors import UsageError
from rooflight.models.huggingface.read import model_from_hf
from rooflight.program.checkpoint.files import INDEX, SINGLE
from rooflight.program.checkpoint.forms import Array
from rooflight.program.checkpoint.match import CheckpointWeight, TensorPlace, published
from rooflight.program.model.params import JAX_DTYPES, Specs, Tree, every_spec, tensor_specs

# Writes tensors as safetensors files of bounded size with an index, one file in memory at a time.


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


MAX_FILE_BYTES = 5_000_000_000
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}

Config = Mapping[str, object]  # JSON
Fetch = Callable[[int, int | None], Array]  # number of a weight, row of its leading dim


class ExportedPart(NamedTuple):
    """The weight, by its number among the leaves, that goes to a place in a file."""

    leaf: int
    stored: CheckpointWeight
    place: TensorPlace


def export_huggingface(
    params: Tree,
    specs: Specs,
    folder: str | Path,
    *,
    config: Config,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> list[Path]:
    """Writes weights under the names that the `model_type` of the config has for them."""
    leaves = cast(list[jax.Array], jax.tree.leaves(params))
    if not all(leaf.is_fully_addressable for leaf in leaves):
        raise UsageError(
            "some weights are on devices of other processes; one process cannot write them",
            hint="save a checkpoint of the run: `rooflight ckpt export` needs no devices",
        )

    def fetch(leaf: int, row: int | None) -> Array:
        return _on_host(leaves[leaf], row)

    return write_huggingface(fetch, specs, folder, config=config, max_file_bytes=max_file_bytes)


def write_huggingface(
    fetch: Fetch,
    specs: Specs,
    folder: str | Path,
    *,
    config: Config,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> list[Path]:
    """The same for weights that are anywhere, fetched a layer of one at a time."""
    target, described = Path(folder), _text_config(config, specs)
    _check(specs, target, described)
    stores = Tree(*published(str(described["model_type"]), specs))
    parts: dict[str, list[ExportedPart]] = {}
    for leaf, stored in enumerate(cast(list[CheckpointWeight], jax.tree.leaves(stores))):
        for place in stored.places():
            parts.setdefault(place.name, []).append(ExportedPart(leaf, stored, place))

    # Three weights share a tensor of a file at most; all experts of a layer come one after another.
    fetch = lru_cache(maxsize=3)(fetch)
    ordered = sorted(parts.values(), key=_layer)
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    tensors = [_made(group, fetch) for group in ordered]
    return write_checkpoint(target, tensors, max_file_bytes=max_file_bytes)


def _text_config(config: Config, specs: Specs) -> dict[str, object]:
    """The config of the text model, with the dtype that the weights have now."""
    inner = config.get("text_config")
    text = cast(dict[str, object], inner) if isinstance(inner, dict) else config
    stale = ("quantization_config", "torch_dtype", "dtype")
    kept = {k: v for k, v in text.items() if k not in stale}
    return kept | {"dtype": _DTYPES[specs.frame["embedding.W_embed"].dtype.name]}


def _check(specs: Specs, folder: Path, config: Config) -> None:
    theirs = {(s.name, s.shape) for s in every_spec(tensor_specs(model_from_hf(config)))}
    ours = {(s.name, s.shape) for s in every_spec(specs)}
    if ours != theirs:
        name, shape = min(ours ^ theirs)
        raise UsageError(
            f"the config is of another model: {name}{list(shape)} is only in one of them",
            hint="give the config.json that the model was read from",
        )
    if any(folder.glob("*.safetensors*")):
        raise UsageError(
            f"{folder} already holds safetensors files", hint="give a folder that is new or empty"
        )


def _layer(group: list[ExportedPart]) -> float:
    """Where a tensor stands in the files: the embedding, the layers in order, the head."""
    stored, place = group[0].stored, group[0].place
    if place.row is not None:
        return stored.layers[place.row]
    return -1 if stored.spec.name.startswith("embedding") else math.inf


def _made(group: list[ExportedPart], fetch: Fetch) -> Made:
    stored = group[0].stored
    dtype = np.dtype(JAX_DTYPES[stored.spec.dtype.name])
    shape = stored.form.shape(stored.sizes)
    make = partial(_assemble, group, shape, dtype, fetch)
    return Made(group[0].place.name, math.prod(shape) * dtype.itemsize, make)


def _assemble(
    group: list[ExportedPart], shape: tuple[int, ...], dtype: np.dtype, fetch: Fetch
) -> Array:
    """A tensor of a file from the weights that are in it; together they fill it."""
    values: Array = np.empty(shape, dtype)
    for leaf, stored, place in group:
        whole = {d: (0, n) for d, n in stored.sizes.items()}
        window = stored.form.window(stored.sizes, whole)
        layer = fetch(leaf, place.row)
        window.view(values[window.slices])[...] = (
            layer if place.expert is None else layer[place.expert]
        )
    return values


@jax.jit
def _row(values: jax.Array, row: int) -> jax.Array:
    return lax.dynamic_index_in_dim(values, row, keepdims=False)


def _on_host(values: jax.Array, row: int | None) -> Array:
    """One layer of a weight, or a weight outside the layers, put together from its shards."""
    whole: Array = np.empty(values.shape if row is None else values.shape[1:], values.dtype)
    for shard in values.addressable_shards:
        if shard.replica_id:
            continue
        if row is None:
            whole[shard.index] = np.asarray(shard.data)
            continue
        low, high, _ = shard.index[0].indices(values.shape[0])
        if low <= row < high:
            whole[shard.index[1:]] = np.asarray(_row(shard.data, row - low))
    return whole
