# pyright: reportMissingTypeStubs=false
# grain and jax annotate their own functions only in part.
"""Batches: which records a step reads, and the rows of them that this process needs.

In: a `Run` and where its program has the rows of a batch. Out: an iterator of `Batch`es that
begins at any step. Row r of step s is record s * B + r of one endless shuffle, whatever the mesh
and however many hosts: so nothing is skipped or read twice after a restart.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import grain
import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding

from rooflight.program.train import Batch
from rooflight.train.run import Run
from rooflight.train.tokens import Records

Row = npt.NDArray[np.int32]
_AHEAD = 4  # steps that are read before they are needed


class Given(NamedTuple):
    """A batch, and a checksum of the rows that this process read for it."""

    batch: Batch
    checksum: int


class _StepRows:
    """Element s is what this process reads for step s; grain reads several ahead."""

    def __init__(self, run: Run, rows: npt.NDArray[np.int64]) -> None:
        records = grain.MapDataset.source(Records(Path(run.data), run.plan.seq))
        self._records = records.seed(run.seed).shuffle().repeat()
        self._run, self._rows = run, rows

    def __len__(self) -> int:
        return self._run.steps

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        first = index * self._run.plan.batch
        return np.stack([cast(Row, self._records[first + int(row)]) for row in self._rows])


def batches(run: Run, sharding: NamedSharding, start: int) -> Iterator[Given]:
    """The batches of steps from `start` on, laid out as `sharding` says."""
    shape = (run.plan.batch, run.plan.seq)
    mine = sorted({r for at in _local_rows(sharding, shape) for r in range(at.start, at.stop)})
    rows = np.array(mine, np.int64)
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    read = iter(grain.MapDataset.source(_StepRows(run, rows)).to_iter_dataset(ahead))
    read.set_state({"next_index": start})
    for found in read:
        yield Given(_laid_out(found, rows, sharding, shape), zlib.crc32(found.tobytes()))


def _local_rows(sharding: NamedSharding, shape: tuple[int, int]) -> Iterator[slice]:
    for at in sharding.addressable_devices_indices_map(shape).values():
        assert at is not None
        yield slice(*at[0].indices(shape[0]))


def _laid_out(
    found: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
    sharding: NamedSharding,
    shape: tuple[int, int],
) -> Batch:
    def array(values: npt.NDArray[Any]) -> jax.Array:
        def part(at: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert at is not None
            first, stop, _ = at[0].indices(shape[0])
            begin = int(np.searchsorted(rows, first))
            return values[begin : begin + stop - first]

        return jax.make_array_from_callback(shape, sharding, part)

    ones = np.ones((len(found), shape[1]), np.float32)
    return Batch(array(found[:, :-1]), array(found[:, 1:]), array(ones))
