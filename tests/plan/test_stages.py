"""Which layers a pipeline stage holds and what waits in it: sums, and the simulator as oracle."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.models.layout.schedules import make_schedule
from rooflight.plan.training.time.pipeline import SlotTimes, simulate_pipeline
from rooflight.plan.training.time.stages import (
    chunk_by_flops,
    chunk_layers,
    in_flight,
    stage_chunks,
    stage_layers,
)

SIZES = st.integers(1, 6)
TABLES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
VIRTUAL = {"interleaved": 2, "zb-v": 2}
LAYERS = st.lists(st.sampled_from("ab"), min_size=24, max_size=60)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
def test_chunks_are_the_layers_in_order_and_as_equal_as_can_be(layers: list[int], n: int) -> None:
    chunks = chunk_layers(layers, n)
    assert [layer for chunk in chunks for layer in chunk] == layers and len(chunks) == n
    sizes = [len(chunk) for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1
    assert all(first >= second for first, second in pairwise(sizes))


@given(LAYERS, SIZES, st.sampled_from(("1f1b", "gpipe", "zb-h1", "zb-v")))
def test_every_layer_is_on_one_stage(layers: list[str], stages: int, schedule: str) -> None:
    held = stage_layers(layers, stages, VIRTUAL.get(schedule, 1), schedule=schedule)
    assert sum(held, Counter[str]()) == Counter(layers) and len(held) == stages


@pytest.mark.parametrize("schedule", TABLES)
@pytest.mark.parametrize("stages", (2, 4, 6))
def test_chunks_are_where_the_table_of_a_schedule_has_them(schedule: str, stages: int) -> None:
    table = make_schedule(schedule, stages=stages, microbatches=2)
    places = [tuple(sorted({slot.stage for slot in slots})) for slots in table.devices]
    assert list(stage_chunks(schedule, stages, table.virtual)) == places


@given(LAYERS, st.sampled_from((2, 4)))
def test_dualpipe_holds_every_layer_twice(layers: list[str], stages: int) -> None:
    held = stage_layers(layers, stages, schedule="dualpipe")
    assert sum(held, Counter[str]()) == Counter(layers * 2)


@given(LAYERS, st.integers(2, 6), st.integers(0, 5))
def test_a_head_that_costs_layers_takes_them_off_the_last_stage(
    layers: list[str], stages: int, head: int
) -> None:
    chunks = chunk_by_flops(layers, stages, head=head)
    assert [layer for chunk in chunks for layer in chunk] == layers and len(chunks) == stages
    assert len(chunks[-1]) <= len(chunks[0])


@pytest.mark.parametrize("schedule", TABLES)
@pytest.mark.parametrize(("stages", "microbatches"), ((2, 1), (2, 5), (4, 3), (4, 16), (6, 13)))
def test_what_waits_is_what_the_simulator_finds(
    schedule: str, stages: int, microbatches: int
) -> None:
    virtual = VIRTUAL.get(schedule, 1)
    table = make_schedule(schedule, stages=stages, microbatches=microbatches)
    peaks = simulate_pipeline(table, SlotTimes(1, 1, 1)).peak_activations
    found = in_flight(schedule, stages=stages, microbatches=microbatches, virtual=virtual)
    most = [max(map(sum, moments)) for moments in found]
    assert [Fraction(m, table.virtual) for m in most] == list(peaks)


@pytest.mark.parametrize("schedule", TABLES)
def test_more_microbatches_than_four_a_stage_wait_no_more(schedule: str) -> None:
    virtual, count = VIRTUAL.get(schedule, 1), 24 if schedule == "interleaved" else 23
    few, many = (
        in_flight(schedule, stages=4, microbatches=m, virtual=virtual) for m in (16, count)
    )
    assert (few == many) == (schedule != "gpipe")
    if schedule in ("gpipe", "1f1b"):
        return
    table = make_schedule(schedule, stages=4, microbatches=count)
    peaks = simulate_pipeline(table, SlotTimes(1, 1, 1)).peak_activations
    most = [Fraction(max(map(sum, moments)), table.virtual) for moments in many]
    assert most == list(peaks)


def test_accumulating_gradients_on_one_stage_holds_one_microbatch() -> None:
    assert in_flight("1f1b", stages=1, microbatches=64) == (((1,),),)
