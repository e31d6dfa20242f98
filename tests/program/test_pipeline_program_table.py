"""The arrays of a schedule, played tick by tick with names in place of numbers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from program_cases import MODELS
from stage_weights import from_stages, to_stages

from rooflight.errors import UsageError
from rooflight.models.layout.in_step import in_step
from rooflight.models.layout.schedules import make_schedule
from rooflight.models.layout.slots import Schedule, Slot
from rooflight.models.spec import ModelSpec, Repeat
from rooflight.plan.training.memory.framework import FRAMEWORKS
from rooflight.plan.training.memory.job import Microbatching
from rooflight.plan.training.search.options import schedules_of
from rooflight.plan.training.time.stage_time import HEAD, share_in_step
from rooflight.plan.training.time.stages import idle_seconds, schedule_table, stage_layers
from rooflight.program.pipeline.layers import PADDING, staging_of
from rooflight.program.pipeline.table import NOTHING, encode, stage_order

NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
Value = tuple[str, int, int]  # x or g; microbatch; stage
Slots = list[tuple[str, int, int]]  # lane; microbatch; stage
BLOCKS = tuple(m.layers[0].blocks[0] for m in (MODELS["dense"], MODELS["moe"]))


def model_of(kinds: list[int]) -> ModelSpec:
    return replace(MODELS["dense"], layers=tuple(Repeat((BLOCKS[k],), 1) for k in kinds))


def play(schedule: Schedule) -> list[Slots]:
    """Runs the table; every read must find the value that the slot is about. What ran by tick."""
    ticks, order, last = encode(schedule), stage_order(schedule), schedule.num_stages - 1
    buffers: list[dict[tuple[str, int], Value]] = [{} for _ in range(schedule.stages)]
    ran: list[Slots] = []
    for tick in range(len(ticks.lanes["forward"]["does"])):
        ran.append([])
        sent: dict[tuple[str, int], Value] = {}
        for name, lane in ticks.lanes.items():
            for device, buffer in enumerate(buffers):
                now = {column: int(table[tick, device]) for column, table in lane.items()}
                if not now["does"]:
                    continue
                microbatch = now["microbatch"]
                stage = order[device * schedule.virtual + now["chunk"]]
                assert (now["is_first"], now["is_last"]) == (stage == 0, stage == last)
                if stage > 0:
                    assert buffer["forward", now["read_x"]] == ("x", microbatch, stage)
                if name == "backward" and stage < last:
                    assert buffer["backward", now["read_g"]] == ("g", microbatch, stage)
                ran[-1].append((name, microbatch, stage))
                step = ("x", 1) if name == "forward" else ("g", -1)
                sent[name, device] = (step[0], microbatch, stage + step[1])
        for name, lane in ticks.lanes.items():
            for device, buffer in enumerate(buffers):
                for column, source in (("from_before", -1), ("from_after", 1), ("from_here", 0)):
                    entry = int(lane[column][tick, device]) if column in lane else NOTHING
                    if entry != NOTHING:
                        assert entry < ticks.entries[name]
                        buffer[name, entry] = sent[name, (device + source) % schedule.stages]
    return ran


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12))
def test_every_slot_finds_its_operands_where_the_table_says(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=microbatches)
    last = schedule.num_stages - 1
    wanted = sorted(
        ("forward" if slot.kind == "F" else "backward", slot.microbatch, slot.stage)
        for slots in schedule.devices
        for slot in slots
        if slot.kind != "W" and not (slot.kind == "F" and slot.stage == last)
    )
    assert sorted(slot for now in play(schedule) for slot in now) == wanted


@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(1, 12))
def test_each_lane_of_a_device_keeps_the_order_of_its_schedule(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=microbatches)
    order = stage_order(schedule)
    ran = [slot for now in play(schedule) for slot in now]
    for device, slots in enumerate(schedule.devices):
        own = set(order[device * schedule.virtual : (device + 1) * schedule.virtual])
        for lane, letter in (("forward", "F"), ("backward", "B")):
            listed = [(lane, s.microbatch, s.stage) for s in slots if letter in s.kind]
            mine = [entry for entry in ran if entry[0] == lane and entry[2] in own]
            assert mine == [entry for entry in listed if entry in set(mine)]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_one_forward_one_backward_stores_twice_as_many_inputs_as_there_are_stages(
    stages: int,
) -> None:
    """Device 1 has an input for 2 (S - 2) + 1 ticks, and a gradient on its way, however many."""
    for microbatches in (16, 64):
        table = encode(make_schedule("1f1b", stages=stages, microbatches=microbatches))
        assert table.entries == {"forward": 2 * stages - 3, "backward": 1}


@pytest.mark.parametrize("microbatches", [8, 32])
def test_gpipe_stores_every_microbatch_and_a_gradient(microbatches: int) -> None:
    table = encode(make_schedule("gpipe", stages=4, microbatches=microbatches))
    assert table.entries == {"forward": microbatches, "backward": 1}


@given(st.sampled_from(("gpipe", "1f1b", "interleaved", "zb-h1")), st.integers(2, 6), st.data())
def test_no_tick_is_lost_to_lock_step(name: str, stages: int, data: st.DataObject) -> None:
    """M v + S - 1 ticks with backwards, and one less with forwards: those of the last stage."""
    times = data.draw(st.integers(1, 4))
    schedule = make_schedule(name, stages=stages, microbatches=times * stages)
    work = schedule.microbatches * schedule.virtual
    assert in_step(schedule).rounds == (work + stages - 2, work + stages - 1)


@given(st.sampled_from(NAMES), st.integers(2, 6), st.integers(1, 12))
def test_a_step_is_at_most_three_scans_that_have_all_ticks(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = make_schedule(name, stages=stages, microbatches=microbatches)
    phases, rounds = encode(schedule).phases, in_step(schedule).rounds
    assert len(phases) <= 3
    for lane, count in zip(("forward", "backward"), rounds, strict=True):
        assert sum(p.stop - p.start for p in phases if lane in p.lanes) == count


@given(
    st.sampled_from(
        [*schedules_of(FRAMEWORKS["rooflight"]), ("gpipe", 1), ("zb-h1", 1), ("zb-v", 2)]
    ),
    *(st.integers(2, 6), st.integers(1, 12)),
)
def test_a_plan_is_priced_with_as_many_rounds_as_the_program_runs(
    schedule: tuple[str, int], stages: int, microbatches: int
) -> None:
    micro = Microbatching(microbatches, *schedule)
    sizes = {"stages": stages, "microbatches": microbatches, "virtual": micro.virtual}
    phases = encode(schedule_table(micro.schedule, **sizes)).phases
    forward, backward = (
        sum(p.stop - p.start for p in phases if lane in p.lanes) for lane in ("forward", "backward")
    )
    for slots in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        priced = microbatches + idle_seconds(micro, stages, *slots)
        assert priced * micro.virtual == pytest.approx(forward if slots[0] else backward)


@given(st.sampled_from(schedules_of(FRAMEWORKS["rooflight"])), st.integers(2, 4), st.data())
def test_a_plan_is_priced_with_the_layers_that_a_stage_runs(
    schedule: tuple[str, int], stages: int, data: st.DataObject
) -> None:
    name, virtual = schedule
    least = stages * virtual
    kinds = data.draw(st.lists(st.integers(0, 1), min_size=least, max_size=least + 9))
    model, micro = model_of(kinds), Microbatching(4, name, virtual)
    table = schedule_table(name, stages=stages, microbatches=4, virtual=virtual)
    found = Counter[int]()
    for run in staging_of(model, table).runs:
        for block in run.blocks:
            found[model.blocks.index(block)] += virtual * run.times
    order = [model.blocks.index(block) for block in model.layer_blocks]
    assert share_in_step(order, stages, micro) == found | {HEAD: virtual}


def test_a_schedule_with_two_copies_of_the_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="dualpipe holds every stage on 2 devices"):
        encode(make_schedule("dualpipe", stages=4, microbatches=8))


def test_stages_that_are_not_neighbours_are_refused() -> None:
    def slots(stage: int) -> tuple[Slot, ...]:
        return (Slot("F", 0, stage), Slot("BW", 0, stage))

    schedule = Schedule("far", 4, 1, 1, (slots(0), slots(2), slots(1), slots(3)))
    with pytest.raises(UsageError, match="device 0 would send to device 2"):
        encode(schedule)


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
