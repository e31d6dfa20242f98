"""Weights of a Hugging Face checkpoint onto a mesh, each device's block read where it is needed.

In: a folder with config.json and safetensors files; the weights wanted, with their shardings. Out:
arrays on the devices. The host holds one block of one device at a time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rooflight.errors import UsageError
from rooflight.files import read_file
from rooflight.program.checkpoint.files import TensorEntry, open_checkpoint
from rooflight.program.checkpoint.forms import Array, Span
from rooflight.program.checkpoint.match import CheckpointWeight, Stores, match
from rooflight.program.model.params import Specs, Tree
from rooflight.program.pipeline.layers import PADDING, Staging

_HINT = "put the model's config.json, which has a model_type, beside its weights"

Block = tuple[Span, ...]


class LoadedWeights(NamedTuple):
    """Weights on their devices, and the tensors of the files that are not among them, with why."""

    params: Tree
    left_out: Mapping[str, str]


def import_huggingface(
    folder: str | Path, specs: Specs, target: Tree, staging: Staging | None = None
) -> LoadedWeights:
    """Reads a checkpoint into arrays like `target`, which `abstract_params` makes.

    Values are stored in the dtype of the target; where the file has the same, bit for bit.
    """
    stores, left_out, entries = match_huggingface(folder, specs, staging)

    def load(stored: CheckpointWeight, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return _load(stored, leaf, entries)

    return LoadedWeights(jax.tree.map(load, Tree(*stores), target), left_out)


def match_huggingface(
    folder: str | Path, specs: Specs, staging: Staging | None = None
) -> tuple[Stores, Mapping[str, str], dict[str, TensorEntry]]:
    """Where each weight of a model is stored, what is stored besides, and every tensor."""
    entries = open_checkpoint(folder)
    return *match(_family(Path(folder)), specs, entries, staging), entries


def _family(folder: Path) -> str:
    try:
        return str(json.loads(read_file(folder / "config.json", hint=_HINT))["model_type"])
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder} does not say which family its weights are of: {error!r}", hint=_HINT
        ) from None


def _load(
    stored: CheckpointWeight, leaf: jax.ShapeDtypeStruct, entries: Mapping[str, TensorEntry]
) -> jax.Array:
    """One weight: each different block is read once, for all devices that keep it."""
    assert leaf.sharding is not None
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    blocks = {device: _block(index or (), leaf.shape) for device, index in indices.items()}
    parts: list[jax.Array] = []
    for block in dict.fromkeys(blocks.values()):
        values = read_block(stored, block, leaf.dtype, entries)
        keepers = [device for device, theirs in blocks.items() if theirs == block]
        # Copied, because a step may give its weights' memory to their successors; and waited for,
        # because the host keeps a block until it is on the device.
        placed = [jax.device_put(values, device, may_alias=False) for device in keepers]
        parts += jax.block_until_ready(placed)
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def _block(index: tuple[slice, ...], shape: tuple[int, ...]) -> Block:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def read_block(
    stored: CheckpointWeight, block: Block, dtype: np.dtype, entries: Mapping[str, TensorEntry]
) -> Array:
    """A block of one of our weights, from as little of the files as holds it."""
    values: Array = np.empty([high - low for low, high in block], dtype)
    inside = block[1:] if stored.layers else block
    wanted = dict(zip(stored.dims, inside, strict=True))
    window = stored.form.window(stored.sizes, wanted)
    rows = range(*block[0]) if stored.layers else (None,)
    experts = range(*wanted["E"]) if "{E}" in stored.form.name else (None,)
    for i, row in enumerate(rows):
        if row is not None and stored.layers[row] == PADDING:
            values[i] = 0
            continue
        for j, expert in enumerate(experts):
            read = entries[stored.name(row, expert)].read(window.slices)
            at = (() if row is None else (i,)) + (() if expert is None else (j,))
            values[at] = window.view(read)
    return values
