"""Simulated pipelines against the published closed forms, over ranges of sizes and times."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rooflight.errors import UsageError
from rooflight.models.layout.schedules import SCHEDULES, make_schedule
from rooflight.plan.training.time.pipeline import PipelineRun, SlotTimes, simulate_pipeline
from rooflight.plan.training.time.stages import BUBBLES, in_flight

few = st.integers(1, 8)
many = st.integers(1, 32)
lengths = st.integers(1, 9)  # whole times, so that sums are exact


def simulate(
    name: str,
    stages: int,
    microbatches: int,
    times: SlotTimes,
    virtual: int | None = None,
) -> PipelineRun:
    table = make_schedule(name, stages=stages, microbatches=microbatches, virtual=virtual)
    return simulate_pipeline(table, times)


@given(st.sampled_from(("gpipe", "1f1b")), few, many, lengths, lengths, lengths)
def test_gpipe_and_1f1b_idle_for_all_stages_but_one(
    name: str, s: int, m: int, f: int, b: int, w: int
) -> None:
    found = simulate(name, s, m, SlotTimes(f, b, w))
    assert found.makespan_s == (m + s - 1) * (f + b + w)
    assert found.bubble == pytest.approx((s - 1) / (m + s - 1))


@given(few, st.integers(1, 4), st.data(), st.integers(2, 4), lengths, lengths, lengths)
def test_interleaving_divides_the_bubble_by_the_virtual_stages(
    s: int, rounds: int, data: st.DataObject, v: int, f: int, b: int, w: int
) -> None:
    """In groups of as many microbatches as stages, or of up to twice as many."""
    m = rounds * data.draw(st.integers(s, s + (s - 1) // rounds))
    assert BUBBLES["interleaved"].allows(s, m)
    found = simulate("interleaved", s, m, SlotTimes(f, b, w), virtual=v)
    assert found.bubble == pytest.approx((s - 1) / (v * m + s - 1))


@given(few, many, lengths, lengths, lengths)
def test_zero_bubble_h1_idles_as_published_while_no_weight_gradient_is_the_longest(
    s: int, m: int, f: int, b: int, w: int
) -> None:
    """(S - 1)(f + b - w) if w <= f and w <= b; beyond, the fill or the drain is what remains."""
    assume(m >= s)
    found = simulate("zb-h1", s, m, SlotTimes(f, b, w))
    assert found.bubble_s == pytest.approx((s - 1) * max(f + b - w, f, b))


@given(few, st.integers(0, 30), lengths)
def test_zero_bubble_v_never_idles_between_its_first_and_last_slot(
    s: int, more: int, t: int
) -> None:
    found = simulate("zb-v", s, 2 * s - 1 + more, SlotTimes(t, t, t))
    assert found.span_bubble_s == pytest.approx(0, abs=1e-9)
    # Only the fill is left if all devices wait for the last: each starts half an F later.
    assert found.bubble_s == pytest.approx((s - 1) * t / 2)


def test_the_bubble_of_zero_bubble_v_vanishes_with_more_microbatches() -> None:
    bubbles = [simulate("zb-v", 4, m, SlotTimes(1, 1, 1)).bubble for m in (8, 32, 128)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[-1] < 0.005


@given(st.integers(1, 5), st.integers(0, 12), lengths, lengths, st.integers(0, 4))
def test_dualpipe_idles_as_published_on_its_middle_devices(
    pairs: int, more: int, f: int, w: int, saved_quarters: int
) -> None:
    """(S/2 - 1)(F&B + B - 3W), B both gradients: exact while f = b >= w, whatever a join saves."""
    assume(w <= f)
    s, b = 2 * pairs, f
    joined = f + b + w - f * saved_quarters / 4
    found = simulate("dualpipe", s, 2 * (s + more), SlotTimes(f, b, w, joined_s=joined))
    published = (s / 2 - 1) * (joined + (b + w) - 3 * w)
    assert found.makespan_s - found.busy_s[s // 2] == pytest.approx(published)
    assert found.bubble_s <= published + 1e-9


@given(st.integers(1, 4), st.integers(0, 8), lengths, lengths, lengths)
def test_dualpipe_strays_from_the_published_bubble_only_as_far_as_its_times_differ(
    pairs: int, more: int, f: int, b: int, w: int
) -> None:
    s = 2 * pairs
    found = simulate("dualpipe", s, 2 * (s + more), SlotTimes(f, b, w))
    published = (s / 2 - 1) * (f + 2 * b - w)
    spread = abs(f - b) + max(0, w - min(f, b))
    assert abs(found.bubble_s - published) <= (s / 2 - 1) * 2 * spread + 1e-9


@given(st.integers(1, 4), many)
def test_a_table_with_microbatches_left_out_idles_at_least_as_long(pairs: int, m: int) -> None:
    s, times = 2 * pairs, SlotTimes(1, 1, 1)
    assert simulate("interleaved", s, m, times).bubble_s >= (s - 1) * 3 / 2
    assert simulate("dualpipe", s, m, times).bubble_s >= (s / 2 - 1) * 2


@given(few, many)
def test_gpipe_holds_every_microbatch_and_1f1b_no_more_than_the_stages_left(s: int, m: int) -> None:
    times = SlotTimes(1, 1, 1)
    assert set(simulate("gpipe", s, m, times).peak_activations) == {m}
    left = tuple(min(m, s - device) for device in range(s))
    assert simulate("1f1b", s, m, times).peak_activations == left


@given(few, many)
def test_zero_bubble_h1_holds_the_stages_on_every_device(s: int, m: int) -> None:
    found = simulate("zb-h1", s, m, SlotTimes(1, 1, 1))
    assert set(found.peak_activations) == {min(m, s)}
    assert found.peak_in_flight == tuple(min(m, s - device) for device in range(s))


@given(few, st.integers(2, 4), st.integers(2, 4))
def test_interleaving_holds_more_than_1f1b_by_the_published_ratio(s: int, v: int, k: int) -> None:
    """1 + (S - 1) / (S v) of the S microbatches of 1F1B on the first device."""
    found = simulate("interleaved", s, k * s, SlotTimes(1, 1, 1), virtual=v)
    assert found.peak_activations[0] == s * (1 + Fraction(s - 1, s * v))


@given(st.integers(2, 5), st.integers(2, 4), st.integers(5, 9), st.data())
def test_a_larger_group_waits_in_every_chunk_but_the_last(
    s: int, v: int, rounds: int, data: st.DataObject
) -> None:
    """And the shortened table that the planner reads has the moments of the whole one."""
    group = data.draw(st.integers(s, s + (s - 1) // rounds))
    found = simulate("interleaved", s, rounds * group, SlotTimes(1, 1, 1), virtual=v)
    assert found.peak_activations[0] == Fraction((v - 1) * group + 2 * s - 1, v)
    moments = in_flight("interleaved", stages=s, microbatches=rounds * group, virtual=v)
    assert [max(map(sum, m)) for m in moments] == [v * n for n in found.peak_activations]


@given(st.integers(1, 5), st.integers(0, 8))
def test_zero_bubble_v_holds_the_stages_and_dualpipe_one_more(pairs: int, more: int) -> None:
    s = 2 * pairs
    times = SlotTimes(1, 1, 1)
    assert set(simulate("zb-v", s, 2 * s + more, times).peak_activations) == {s}
    assert max(simulate("dualpipe", s, 2 * (s + more), times).peak_activations) == s + 1


@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 3),
    st.integers(1, 12),
    st.tuples(lengths, lengths, lengths),
    st.integers(0, 5),
)
def test_no_slot_starts_before_its_device_is_free_or_its_input_has_arrived(
    name: str, pairs: int, m: int, lengths_of: tuple[int, int, int], transfer: int
) -> None:
    times = SlotTimes(*lengths_of, transfer)
    found = simulate(name, 2 * pairs, m, times)
    ended = {
        part: (group.end_s, device)
        for device, run in enumerate(found.devices)
        for group in run
        for slot in group.slots
        for part in slot.done
    }
    for device, run in enumerate(found.devices):
        for before, group in pairwise(run):
            assert group.start_s >= before.end_s
        for group in run:
            for slot in group.slots:
                for need in slot.needs(found.schedule.num_stages):
                    end, source = ended[need]
                    assert group.start_s >= end + (transfer if source != device else 0)


@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 3),
    st.integers(1, 12),
    st.floats(0, 3),
    st.floats(0, 3),
)
def test_work_does_not_depend_on_transfers_and_a_step_never_shrinks_with_them(
    name: str, pairs: int, m: int, one: float, other: float
) -> None:
    short, long = (
        simulate(name, 2 * pairs, m, SlotTimes(1, 2, 1, transfer))
        for transfer in sorted((one, other))
    )
    assert short.busy_s == pytest.approx([4 * m] * 2 * pairs)
    assert long.makespan_s >= short.makespan_s - 1e-9
    assert 0 <= short.bubble <= long.bubble + 1e-9 < 1


def test_a_transfer_is_paid_once_each_way_between_all_stages_of_gpipe() -> None:
    found = simulate("gpipe", 4, 8, SlotTimes(1, 1, 1, 0.5))
    assert found.makespan_s == (8 + 3) * 3 + 2 * 3 * 0.5


def test_the_slides_bubble_of_4_stages_and_8_microbatches() -> None:
    assert simulate("gpipe", 4, 8, SlotTimes(1, 1, 1)).bubble == pytest.approx(0.27272727, rel=1e-6)


def test_transfers_alone_take_as_long_as_the_gpu_chapter_says() -> None:
    """2BD / (W * M) * (M + S - 2) each way, when links are all that takes time."""
    batch, model, bandwidth, m, s = 1e6, 8192, 4e11, 16, 16
    hop = 2 * batch * model / (bandwidth * m)
    found = simulate("gpipe", s, m, SlotTimes(1e-12, 0, 0, hop))
    assert found.makespan_s / 2 == pytest.approx(0.0768, rel=1e-6)


@pytest.mark.parametrize("times", [(0, 0, 0), (-1, 1, 1), (1, 1, 1, -1), (1, 1, 1, 0, -1)])
def test_times_that_cannot_be_are_refused(times: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="times of a slot"):
        SlotTimes(*times)
