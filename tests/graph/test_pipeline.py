"""Schedules as tables: valid at every size, and what a broken one is told."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import ModelError, UnknownNameError, UsageError
from rooflight.models.layout.schedules import SCHEDULES, make_schedule
from rooflight.models.layout.slots import (
    Schedule,
    Slot,
    SlotKind,
    groups,
    run_order,
)

from .schedule_check import check_schedule

ONE_BACKWARD: tuple[SlotKind, ...] = ("F", "BW")
ONE_WAY = tuple(name for name in SCHEDULES if name != "dualpipe")


def read(schedule: Schedule, device: int) -> str:
    """A device's slots as text, joined ones with `&`."""
    words = [
        "&".join(f"{s.kind}{s.microbatch}" for s in group)
        for group in groups(schedule.devices[device])
    ]
    return " ".join(words)


@given(st.sampled_from(ONE_WAY), st.integers(1, 9), st.integers(1, 24))
def test_every_schedule_is_valid_at_every_size(name: str, stages: int, microbatches: int) -> None:
    check_schedule(make_schedule(name, stages=stages, microbatches=microbatches))


@given(st.integers(1, 5), st.integers(1, 30))
def test_dualpipe_is_valid_at_every_even_number_of_stages(pairs: int, microbatches: int) -> None:
    check_schedule(make_schedule("dualpipe", stages=2 * pairs, microbatches=microbatches))


@given(st.integers(1, 6), st.integers(1, 20), st.integers(2, 5))
def test_interleaved_is_valid_for_any_virtual_stages(
    stages: int, microbatches: int, virtual: int
) -> None:
    table = make_schedule("interleaved", stages=stages, microbatches=microbatches, virtual=virtual)
    check_schedule(table)
    for device, slots in enumerate(table.devices):
        assert {slot.stage % stages for slot in slots} == {device}


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    table = make_schedule("gpipe", stages=2, microbatches=3)
    assert read(table, 0) == read(table, 1) == "F0 F1 F2 BW0 BW1 BW2"


def test_1f1b_fills_the_pipe_and_then_alternates() -> None:
    table = make_schedule("1f1b", stages=3, microbatches=4)
    assert read(table, 0) == "F0 F1 F2 BW0 F3 BW1 BW2 BW3"
    assert read(table, 2) == "F0 BW0 F1 BW1 F2 BW2 F3 BW3"


def test_zero_bubble_h1_keeps_1f1b_and_puts_weight_gradients_off_by_the_device() -> None:
    table = make_schedule("zb-h1", stages=3, microbatches=4)
    assert read(table, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert read(table, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_interleaved_takes_as_many_microbatches_as_stages_through_each_virtual_stage() -> None:
    table = make_schedule("interleaved", stages=2, microbatches=4, virtual=2)
    forward = [(s.microbatch, s.stage) for s in table.devices[0] if s.kind == "F"]
    backward = [(s.microbatch, s.stage) for s in table.devices[0] if s.kind == "BW"]
    assert forward == [(0, 0), (1, 0), (0, 2), (1, 2), (2, 0), (3, 0), (2, 2), (3, 2)]
    assert backward == [(0, 2), (1, 2), (0, 0), (1, 0), (2, 2), (3, 2), (2, 0), (3, 0)]


def test_zero_bubble_v_turns_round_on_the_last_device() -> None:
    table = make_schedule("zb-v", stages=4, microbatches=8)
    assert [sorted({s.stage for s in slots}) for slots in table.devices] == [
        [0, 7],
        [1, 6],
        [2, 5],
        [3, 4],
    ]


def test_dualpipe_is_the_same_from_both_ends_and_joins_opposite_directions() -> None:
    table = make_schedule("dualpipe", stages=8, microbatches=20)
    for near, far in zip(table.devices, reversed(table.devices), strict=True):
        # even microbatches go down, odd ones up
        mirrored = [replace(s, microbatch=s.microbatch ^ 1) for s in near]
        assert mirrored == list(far)
    joined = [g for slots in table.devices for g in groups(slots) if len(g) > 1]
    assert all([s.kind for s in g] == ["F", "BW"] for g in joined)
    assert all(sum(s.microbatch for s in g) % 2 == 1 for g in joined)
    assert table.weight_copies == 2


def test_only_zero_bubble_schedules_and_dualpipe_split_the_backward_pass() -> None:
    tables = {n: make_schedule(n, stages=4, microbatches=8).devices for n in SCHEDULES}
    split = [n for n, table in tables.items() if any(s.kind == "W" for row in table for s in row)]
    assert split == ["zb-h1", "zb-v", "dualpipe"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_run_order_keeps_the_order_of_each_device(name: str) -> None:
    table = make_schedule(name, stages=4, microbatches=6)
    seen: list[list[Slot]] = [[] for _ in table.devices]
    for device, group in run_order(table):
        seen[device] += group
    assert tuple(map(tuple, seen)) == table.devices


def edited(edit: Callable[[list[Slot]], object]) -> Schedule:
    """ZB-H1 on 2 stages with 2 microbatches, the slots of device 0 changed."""
    table = make_schedule("zb-h1", stages=2, microbatches=2)
    slots = list(table.devices[0])
    edit(slots)
    return replace(table, devices=(tuple(slots), *table.devices[1:]))


BROKEN: list[tuple[Callable[[list[Slot]], object], str]] = [
    (lambda s: s.pop(0), "F of microbatch 0 on stage 0 runs 0 times"),
    (lambda s: s.append(s[0]), "F of microbatch 0 on stage 0 runs 2 times"),
    (lambda s: s.append(Slot("F", 2, 0)), "F of microbatch 2 on stage 0 is outside"),
    (lambda s: s.append(Slot("F", 0, 2)), "F of microbatch 0 on stage 2 is outside"),
    (lambda s: s.insert(0, s.pop()), "can never start W of microbatch 1 on stage 0: B of"),
    (lambda s: s.insert(0, s.pop(2)), "can never start B of microbatch 0 on stage 0: F of"),
    (lambda s: s.insert(2, replace(s.pop(3), joined=True)), "can never start W of microbatch"),
]


@pytest.mark.parametrize(("edit", "complaint"), BROKEN)
def test_a_broken_table_is_told_which_slot(
    edit: Callable[[list[Slot]], object], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as caught:
        check_schedule(edited(edit))
    assert caught.value.hint


def test_forwards_that_wait_for_each_other_across_devices_are_found() -> None:
    table = make_schedule("1f1b", stages=2, microbatches=2)
    one_by_one = tuple(Slot(kind, m, 0) for m in (0, 1) for kind in ONE_BACKWARD)
    turned = tuple(Slot(kind, m, 1) for m in (1, 0) for kind in ONE_BACKWARD)
    crossed = replace(table, devices=(one_by_one, turned))
    with pytest.raises(ModelError, match="device 0 can never start BW of microbatch 0 on stage 0"):
        check_schedule(crossed)


def test_backward_on_another_device_than_forward_is_refused() -> None:
    table = make_schedule("gpipe", stages=2, microbatches=1)
    (first, *_), (second, last) = table.devices
    moved = replace(table, devices=((first,), (second, last, Slot("BW", 0, 0))))
    with pytest.raises(ModelError, match="BW of microbatch 0 on stage 0 is on device 1"):
        check_schedule(moved)


@pytest.mark.parametrize(
    ("name", "sizes", "complaint"),
    [
        ("dualpipe", {"stages": 3, "microbatches": 8}, "even number of stages"),
        ("interleaved", {"stages": 2, "microbatches": 2, "virtual": 1}, "at least 2 virtual"),
        ("1f1b", {"stages": 2, "microbatches": 2, "virtual": 2}, "1 virtual stage per device"),
        ("zb-v", {"stages": 2, "microbatches": 2, "virtual": 3}, "2 virtual stages per device"),
        ("gpipe", {"stages": 0, "microbatches": 2}, "not a pipeline"),
    ],
)
def test_sizes_that_cannot_be_are_refused(name: str, sizes: dict[str, int], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        make_schedule(name, **sizes)


def test_an_unknown_schedule_gets_a_did_you_mean() -> None:
    with pytest.raises(UnknownNameError) as caught:
        make_schedule("1f1", stages=2, microbatches=2)
    assert "`1f1b`" in caught.value.hint
