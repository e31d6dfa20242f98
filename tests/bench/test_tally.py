"""What is made of answers, against numpy on the same samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.measure.load.tally import LoadTally, Measured, Reply
from rooflight.plan.serving.simulate.arrivals import Arrival
from rooflight.plan.serving.simulate.tally import Quantiles, Slo

PERCENTS = np.arange(1, 100)
SLO = Slo(ttft_s=0.5, tpot_s=0.05)


def _tally(samples: list[tuple[float, float, list[float]]]) -> Measured:
    """Samples are: due, seconds to the first token, gaps."""
    tally = LoadTally(SLO)
    for due_s, ttft_s, gaps in samples:
        answer = Reply()
        answer.chunk(due_s + ttft_s)
        for gap in gaps:
            answer.chunk(answer.last_s + gap)
        answer.output_tokens = answer.chunks
        tally.sent(0.001)
        tally.ended(answer, due_s=due_s, begin_s=0.0, asked=Arrival(due_s, 7, 1))
    return tally.result(len(samples))


def _check(found: Quantiles | None, exact: list[float]) -> None:
    assert found is not None and found.count == len(exact)
    # A hundredth is no binary fraction: numpy may take the next sample where a rank is whole.
    low, high = (
        np.quantile(exact, PERCENTS / 100 + off, method="inverted_cdf") for off in (-1e-9, 1e-9)
    )
    assert np.all(low - 1e-9 <= found.curve) and np.all(found.curve <= high + 1e-9)
    assert found.mean == pytest.approx(np.mean(exact), abs=1e-9)
    assert found.largest == pytest.approx(max(exact), abs=1e-9)


_seconds = st.floats(0.0, 2.0)
_sample = st.tuples(_seconds, _seconds, st.lists(_seconds, max_size=6))


@settings(max_examples=150)
@given(st.lists(_sample, min_size=1, max_size=40))
def test_percentiles_and_goodput_are_numpys(
    samples: list[tuple[float, float, list[float]]],
) -> None:
    found = _tally(samples)
    tpot = [sum(gaps) / len(gaps) for _, _, gaps in samples if gaps]
    _check(found.ttft, [ttft_s for _, ttft_s, _ in samples])
    _check(found.e2e, [ttft_s + sum(gaps) for _, ttft_s, gaps in samples])
    if tpot:
        _check(found.tpot, tpot)
        _check(found.itl, [gap for _, _, gaps in samples for gap in gaps])
    sums = [(ttft_s, sum(gaps) / max(1, len(gaps))) for _, ttft_s, gaps in samples]
    surely = sum(t < SLO.ttft_s - 1e-9 and p < SLO.tpot_s - 1e-9 for t, p in sums)
    perhaps = sum(t <= SLO.ttft_s + 1e-9 and p <= SLO.tpot_s + 1e-9 for t, p in sums)
    assert surely <= found.num_good <= perhaps
    assert found.input_tokens == 7 * len(samples)


def test_a_hundred_thousand_gaps_take_bounded_memory_and_stay_within_half_a_percent() -> None:
    random = np.random.default_rng(0)
    gaps = random.lognormal(-3.5, 1.0, (1000, 100))
    found = _tally([(0.0, 0.1, row) for row in gaps.tolist()])
    assert found.itl is not None and found.itl.count == gaps.size
    exact = np.quantile(gaps, PERCENTS / 100, method="inverted_cdf")
    assert found.itl.curve == pytest.approx(exact, rel=0.006)


def test_what_disturbs_a_measurement_is_told() -> None:
    quiet = _tally([(0.0, 0.1, [0.1])])
    assert quiet.faults == replace(quiet, other_load=0.05).faults == []
    (told,) = replace(quiet, other_load=0.5).faults
    assert told == "other load had 50% of the cores: measure again"


def test_requests_that_failed_or_were_not_sent_are_offered_all_the_same() -> None:
    tally = LoadTally(SLO)
    failed = Reply()
    failed.fail("http 503", "full")
    tally.sent(0.0)
    tally.ended(failed, due_s=0.0, begin_s=0.0, asked=Arrival(0.0, 1, 1))
    found = tally.result(4)
    assert found.errors == {"http 503": 1, "not sent": 3} and found.said["http 503"] == "full"
    assert (found.good_share, found.goodput, found.ttft) == (0, 0, None)
