"""Streaming through VMEM: order is kept, HBM does one thing at a time, bounds hold and are met."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.streaming import ChunkTime, stream

SECONDS = st.floats(0, 10)
CHUNKS = st.lists(st.builds(ChunkTime, SECONDS, SECONDS, SECONDS), min_size=1, max_size=8)


def end(chunks: list[ChunkTime], buffers: int) -> float:
    return max(span.end_s for span in stream(chunks, buffers=buffers))


@given(chunks=CHUNKS, buffers=st.integers(1, 4))
def test_a_chunk_is_loaded_worked_on_and_stored_in_order(
    chunks: list[ChunkTime], buffers: int
) -> None:
    spans = {(s.work, s.chunk): s for s in stream(chunks, buffers=buffers)}
    assert len(spans) == 3 * len(chunks)
    for i in range(len(chunks)):
        assert spans["load", i].end_s <= spans["work", i].start_s
        assert spans["work", i].end_s <= spans["store", i].start_s
        if i >= buffers:
            assert spans["work", i - buffers].end_s <= spans["load", i].start_s
            assert spans["store", i - buffers].end_s <= spans["work", i].start_s


@given(chunks=CHUNKS, buffers=st.integers(1, 4))
def test_hbm_and_the_unit_do_one_thing_at_a_time(chunks: list[ChunkTime], buffers: int) -> None:
    spans = stream(chunks, buffers=buffers)
    for is_unit in (True, False):
        mine = sorted((s.start_s, s.end_s) for s in spans if (s.work == "work") is is_unit)
        assert all(first[1] <= second[0] for first, second in pairwise(mine))


@given(chunks=CHUNKS, buffers=st.integers(1, 4))
def test_the_time_lies_between_the_bounds_of_the_roofline(
    chunks: list[ChunkTime], buffers: int
) -> None:
    memory = sum(c.load_s + c.store_s for c in chunks)
    work = sum(c.work_s for c in chunks)
    assert max(memory, work) - 1e-9 <= end(chunks, buffers) <= memory + work + 1e-9


@given(chunks=CHUNKS)
def test_with_one_buffer_nothing_overlaps(chunks: list[ChunkTime]) -> None:
    total = sum(c.load_s + c.work_s + c.store_s for c in chunks)
    assert end(chunks, 1) == pytest.approx(total)


@given(chunk=st.builds(ChunkTime, SECONDS, SECONDS, SECONDS), count=st.integers(1, 20))
def test_two_buffers_come_within_a_chunk_of_the_roofline(chunk: ChunkTime, count: int) -> None:
    bound = count * max(chunk.load_s + chunk.store_s, chunk.work_s)
    once = chunk.load_s + chunk.work_s + chunk.store_s
    assert end([chunk] * count, 2) <= bound + once + 1e-9
