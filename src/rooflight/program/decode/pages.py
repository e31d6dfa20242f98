"""Blocks out of the paged cache and back, some layers at a time: what leaves a device.

    pages[L,N_X,S,...], ids[W] -> values[G,W,S,...]     read, for layers first to first + G
    values[G,W,S,...], ids[W] -> pages[L,N_X,S,...]     write

Values are as the cache stores them, quantized beside scales if it does. They are whole along N:
every device of an axis that splits the blocks has all W of them; kv heads stay split as they are.
An id outside 0..N-1 reads zeros and writes nothing.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from rooflight.algebra.notation import Axes
from rooflight.program.decode.cache import Layers, axes_in, local_ids
from rooflight.program.shardings import map_blocks

Values = dict[str, jax.Array]
_AT_ONCE = 4  # groups that the layers of a run are read in


class KvGroup(NamedTuple):
    """Layers that are read and written at once: some of one block of one run's pattern."""

    run: int
    block: int
    first: int
    size: int


def page_groups(cache: Layers) -> tuple[KvGroup, ...]:
    """All layers of a cache; those of a run are of one size, and may overlap."""
    found: list[KvGroup] = []
    for run, blocks in enumerate(cache):
        for block, pages in enumerate(blocks):
            times: int = next(iter(pages.values())).shape[0]
            count = -(-times // _AT_ONCE)
            starts = {min(at, times - count) for at in range(0, times, count)}
            found += [KvGroup(run, block, first, count) for first in sorted(starts)]
    return tuple(found)


def read_pages(
    cache: Layers, ids: jax.Array, first: jax.Array, *, run: int, block: int, count: int
) -> Values:
    """What some layers have in blocks `ids`."""
    pages = cache[run][block]
    specs = _specs(pages)
    local = partial(_read, count=count, rows=_rows(specs))
    read = map_blocks(local, (specs, PartitionSpec(), PartitionSpec()), _whole(specs))
    return read(pages, ids, first)


def write_pages(
    cache: Layers, values: Values, ids: jax.Array, first: jax.Array, *, run: int, block: int
) -> Layers:
    """The cache with these values in blocks `ids` of some layers."""
    pages = cache[run][block]
    specs = _specs(pages)
    taken = (specs, _whole(specs), PartitionSpec(), PartitionSpec())
    written = map_blocks(partial(_write, rows=_rows(specs)), taken, specs)
    layers = [list(blocks) for blocks in cache]
    layers[run][block] = written(pages, values, ids, first)
    return tuple(map(tuple, layers))


def _specs(pages: Values) -> dict[str, PartitionSpec]:
    return {name: jax.typeof(x).sharding.spec for name, x in pages.items()}


def _whole(specs: dict[str, PartitionSpec]) -> dict[str, PartitionSpec]:
    return {name: PartitionSpec(None, None, *spec[2:]) for name, spec in specs.items()}


def _rows(specs: dict[str, PartitionSpec]) -> Axes:
    """The axes that split blocks, of rows and of positions."""
    return axes_in(next(iter(specs.values()))[1])


def _read(pages: Values, ids: jax.Array, first: jax.Array, *, count: int, rows: Axes) -> Values:
    found: Values = {}
    for name, x in pages.items():
        mine = local_ids(ids, x.shape[1], rows)
        some = lax.dynamic_slice_in_dim(x, first, count)
        got = some.at[:, mine].get(mode="fill", fill_value=0)
        # A block is on one device, the others have zeros; quantized ones are not summed everywhere.
        few = got.dtype.itemsize < 2
        summed = lax.psum(got.astype(jnp.float32) if few else got, rows) if rows else got
        found[name] = summed.astype(x.dtype)
    return found


def _write(
    pages: Values, values: Values, ids: jax.Array, first: jax.Array, *, rows: Axes
) -> Values:
    found: Values = {}
    for name, x in pages.items():
        mine = local_ids(ids, x.shape[1], rows)
        layers = first + jnp.arange(values[name].shape[0])
        found[name] = x.at[layers[:, None], mine].set(values[name], mode="drop")
    return found
