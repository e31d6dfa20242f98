"""The arrays of a schedule, played tick by tick with names in place of numbers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from program_cases import MODELS

from rooflight.errors import UsageError
from rooflight.graph import Schedule, Slot, make_schedule
from rooflight.plan.stages import stage_layers
from rooflight.program.pipeline_layers import PADDING, from_stages, staging_of, to_stages
from rooflight.program.pipeline_table import NOTHING, Ticks, encode, stage_order
from rooflight.specs.model import ModelSpec, Repeat

NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
Value = tuple[str, int, int]  # x or g; microbatch; stage


def at(table: Ticks, column: str, tick: int, device: int) -> int:
    return int(getattr(table, column)[tick, device])


def play(schedule: Schedule) -> list[tuple[str, int, int]]:
    """Runs the table; every read must find the value that the slot is about. What ran, in order."""
    ticks, order, last = encode(schedule), stage_order(schedule), schedule.num_stages - 1
    buffers: list[dict[int, Value]] = [{} for _ in range(schedule.stages)]
    ran: list[tuple[str, int, int]] = []
    for tick in range(len(ticks.work)):
        sent: list[Value | None] = []
        for device, buffer in enumerate(buffers):
            work = ticks.works[at(ticks, "work", tick, device)]
            microbatch = at(ticks, "microbatch", tick, device)
            stage = order[device * schedule.virtual + at(ticks, "chunk", tick, device)]
            sent.append(None)
            if work.kind == "idle":
                continue
            assert (work.is_first, work.is_last) == (stage == 0, stage == last)
            if stage > 0:
                assert buffer[at(ticks, "read_x", tick, device)] == ("x", microbatch, stage)
            if work.kind != "F" and stage < last:
                assert buffer[at(ticks, "read_g", tick, device)] == ("g", microbatch, stage)
            ran.append((work.kind, microbatch, stage))
            if work.kind != "W":
                sent[-1] = (
                    ("x", microbatch, stage + 1)
                    if work.kind == "F"
                    else ("g", microbatch, stage - 1)
                )
        for device, buffer in enumerate(buffers):
            for column, source in (("from_before", -1), ("from_after", 1), ("from_here", 0)):
                entry = at(ticks, column, tick, device)
                if entry != NOTHING:
                    assert entry < ticks.entries
                    value = sent[(device + source) % schedule.stages]
                    assert value is not None
                    buffer[entry] = value
    return ran


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12))
def test_every_slot_finds_its_operands_where_the_table_says(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=microbatches)
    last = schedule.num_stages - 1
    wanted = sorted(
        (slot.kind, slot.microbatch, slot.stage)
        for slots in schedule.devices
        for slot in slots
        if not (slot.kind == "F" and slot.stage == last)
        and not (slot.kind == "B" and slot.stage == 0)
    )
    assert sorted(play(schedule)) == wanted


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12))
def test_a_device_runs_its_slots_in_the_order_of_its_table(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=microbatches)
    order = stage_order(schedule)
    ran = play(schedule)
    for device, slots in enumerate(schedule.devices):
        own = set(order[device * schedule.virtual : (device + 1) * schedule.virtual])
        listed = [(s.kind, s.microbatch, s.stage) for s in slots]
        mine = [entry for entry in ran if entry[2] in own]
        assert mine == [entry for entry in listed if entry in set(mine)]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_one_forward_one_backward_stores_as_many_values_as_there_are_stages(stages: int) -> None:
    """Device 1 has S - 1 inputs in flight, one more on its way in, and a gradient on its way."""
    few, many = (
        encode(make_schedule("1f1b", stages=stages, microbatches=m)).entries for m in (16, 64)
    )
    assert few == many <= stages + 1


@pytest.mark.parametrize("microbatches", [8, 32])
def test_gpipe_stores_every_microbatch_and_a_gradient(microbatches: int) -> None:
    assert encode(make_schedule("gpipe", stages=4, microbatches=microbatches)).entries == (
        microbatches + 1
    )


def test_no_tick_is_lost_where_all_slots_last_alike() -> None:
    """GPipe and 1F1B: M + S - 1 ticks each way."""
    for name in ("gpipe", "1f1b"):
        work = encode(make_schedule(name, stages=4, microbatches=8)).work
        assert len(work) == 2 * (8 + 4 - 1)


def test_a_schedule_with_two_copies_of_the_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="dualpipe holds every stage on 2 devices"):
        encode(make_schedule("dualpipe", stages=4, microbatches=8))


def test_stages_that_are_not_neighbours_are_refused() -> None:
    def slots(stage: int) -> tuple[Slot, ...]:
        return (Slot("F", 0, stage), Slot("BW", 0, stage))

    schedule = Schedule("far", 4, 1, 1, (slots(0), slots(2), slots(1), slots(3)))
    with pytest.raises(UsageError, match="device 0 would send to device 2"):
        encode(schedule)


BLOCKS = tuple(m.layers[0].blocks[0] for m in (MODELS["dense"], MODELS["moe"]))


def model_of(kinds: list[int]) -> ModelSpec:
    return replace(MODELS["dense"], layers=tuple(Repeat((BLOCKS[k],), 1) for k in kinds))


@given(st.sampled_from(NAMES), st.integers(1, 4), st.data())
def test_every_layer_has_one_place_of_its_kind_and_stages_are_those_of_the_planner(
    name: str, stages: int, data: st.DataObject
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=4)
    least = schedule.num_stages
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=least, max_size=least + 9))
    model = model_of(kinds)
    staging = staging_of(model, schedule)
    places = [(layer, place) for layer, place in staging.places() if layer != PADDING]
    assert sorted(layer for layer, _ in places) == list(range(len(kinds)))
    for layer, place in places:
        assert staging.runs[place.run].blocks[place.block] == model.layer_blocks[layer]
    size = schedule.virtual
    rows = [staging.layers[d * size : (d + 1) * size] for d in range(stages)]
    by_device = [
        Counter(model.layer_blocks[i] for row in mine for i in row if i != PADDING) for mine in rows
    ]
    found = stage_layers(model.layer_blocks, stages, schedule.virtual, schedule=name)
    assert by_device == list(found)
    assert all(
        [i for i in row if i != PADDING] == sorted(set(row) - {PADDING}) for row in staging.layers
    )


@given(st.sampled_from(NAMES), st.integers(0, 9), st.data())
def test_weights_that_go_to_their_stages_come_back(
    name: str, extra: int, data: st.DataObject
) -> None:
    schedule = make_schedule(name, stages=2, microbatches=4)
    least = schedule.num_stages + extra
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=least, max_size=least))
    model = model_of(kinds)
    staging = staging_of(model, schedule)
    layers = tuple(({"w": np.array([float(i + 1)])},) for i in range(len(kinds)))
    staged = to_stages(model, staging, layers, np.stack)
    for run, stored in zip(staged, staging.stored, strict=True):
        assert all(block["w"].shape == (stored.times,) for block in run)
    assert sum(block["w"].sum() for run in staged for block in run) == sum(range(len(kinds) + 1))
    assert from_stages(model, staging, staged, np.stack) == layers


@pytest.mark.parametrize(
    ("kinds", "runs"),
    [
        ([0] * 126, [(1, 8)]),  # of 126 layers two stages have one less
        ([0, 0, 0, *[1] * 61], [(1, 3), (1, 4)]),  # three dense layers, then experts
        ([0, 1] * 16, [(1, 1), (1, 1)]),
        ([0, 1] * 64, [(2, 4)]),
    ],
)
def test_a_stage_runs_as_few_layers_as_have_those_of_all(
    kinds: list[int], runs: list[tuple[int, int]]
) -> None:
    schedule = make_schedule("1f1b", stages=16, microbatches=16)
    staging = staging_of(model_of(kinds), schedule)
    assert [(len(run.blocks), run.times) for run in staging.runs] == runs


def test_fewer_layers_than_stages_are_refused() -> None:
    schedule = make_schedule("interleaved", stages=4, microbatches=4)
    with pytest.raises(UsageError, match="5 layers cannot fill 8 pipeline stages"):
        staging_of(model_of([0] * 5), schedule)
