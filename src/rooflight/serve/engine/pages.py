"""`Pages`: blocks of a cache out of the device and into it, a group of layers at a time.

The shapes are few, as those of steps are: as many blocks as a table is wide, or more.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rooflight.program.decode.cache import Layers
from rooflight.program.decode.pages import KvGroup, Values, page_groups, read_pages, write_pages
from rooflight.serve.engine.config import smallest

Compile = Callable[..., Any]  # a function, what it takes, donate=
Like = dict[str, jax.ShapeDtypeStruct]


class Pages:
    """The compiled functions; the cache is the caller's."""

    def __init__(
        self, mesh: Mesh, cache: Layers, widths: tuple[int, ...], compile: Compile
    ) -> None:
        self.groups = page_groups(cache)
        self._widths = widths
        self._compile = compile
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._cache: Layers = jax.tree.map(_shape_of, cache)
        self._readers: dict[tuple[int, int, int], Any] = {}
        self._writers: dict[tuple[int, int, int], Any] = {}

    def warm(self) -> None:
        """Compiles everything."""
        for group in self.groups:
            for width in self._widths:
                self._reader(group, width)
                self._writer(group, width)

    def read(self, cache: Layers, blocks: Sequence[int], group: KvGroup) -> Values:
        """What a group of layers has in some blocks; a copy, which later steps do not change."""
        ids = self._padded(blocks)
        return self._reader(group, len(ids))(cache, ids, np.int32(group.first))

    def write(self, cache: Layers, blocks: Sequence[int], group: KvGroup, values: Values) -> Layers:
        """Uses the cache up."""
        ids = self._padded(blocks)
        return self._writer(group, len(ids))(cache, values, ids, np.int32(group.first))

    def like(self, num_blocks: int, group: KvGroup) -> Like:
        """Shapes, dtypes and shardings of the values of so many blocks."""
        width, found = smallest(self._widths, num_blocks), Like()
        for name, x in self._cache[group.run][group.block].items():
            spec = PartitionSpec(None, None, *x.sharding.spec[2:])
            sharding = NamedSharding(x.sharding.mesh, spec)
            shape = (group.size, width, *x.shape[2:])
            found[name] = jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)
        return found

    def _padded(self, blocks: Sequence[int]) -> Any:
        num_blocks = jax.tree.leaves(self._cache)[0].shape[1]
        ids = np.full(smallest(self._widths, len(blocks)), num_blocks, np.int32)
        ids[: len(blocks)] = blocks
        return ids

    def _reader(self, group: KvGroup, width: int) -> Any:
        run, block, _, size = group
        key = (run, block, width)
        if key not in self._readers:
            read = partial(read_pages, run=run, block=block, count=size)
            self._readers[key] = self._compile(read, self._cache, *self._numbers(width))
        return self._readers[key]

    def _writer(self, group: KvGroup, width: int) -> Any:
        run, block, *_ = group
        key = (run, block, width)
        if key not in self._writers:
            write = partial(write_pages, run=run, block=block)
            taken = (self._cache, self.like(width, group), *self._numbers(width))
            self._writers[key] = self._compile(write, *taken, donate=(0,))
        return self._writers[key]

    def _numbers(self, width: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Of ids, and of the first layer."""
        ids = jax.ShapeDtypeStruct((width,), jnp.int32, sharding=self._everywhere)
        return ids, jax.ShapeDtypeStruct((), jnp.int32, sharding=self._everywhere)


def _shape_of(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
