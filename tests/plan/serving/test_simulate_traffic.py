"""Arrivals drawn and recorded, and the sketch that their latencies go into."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import ParseError, UsageError
from rooflight.plan.serving.simulate.arrivals import RandomTraffic, parse_lengths
from rooflight.plan.serving.simulate.tally import EXACT_UP_TO, RELATIVE_ERROR, QuantileSketch
from rooflight.plan.serving.simulate.trace import RequestTrace, hourly_rates


@pytest.mark.parametrize(
    ("text", "mean", "spread"),
    [("100", 100, 0), ("1000~0.5", 1000, 500), ("100..300", 200, 57.7), ("exp:500", 500, 500)],
)
def test_lengths_have_the_mean_and_spread_that_was_asked_for(
    text: str, mean: float, spread: float
) -> None:
    lengths = parse_lengths(text, what="--isl")
    drawn = lengths.draw(np.random.default_rng(0), 200_000)
    assert str(lengths) == text
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.std() == pytest.approx(spread, rel=0.02, abs=0.1)
    assert drawn.min() >= 1


@pytest.mark.parametrize("text", ["", "0", "x", "5..2", "1e3", "-4", "99999999999", "10~x", "~1"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="--osl"):
        parse_lengths(text, what="--osl")


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 2.0])
def test_gaps_have_the_rate_and_burstiness_that_was_asked_for(burstiness: float) -> None:
    one = parse_lengths("1", what="")
    traffic = RandomTraffic(50.0, one, one, 100_000, burstiness=burstiness)
    times = [arrival.time_s for arrival in traffic.arrivals()]
    gaps = np.diff(times)
    assert len(times) == 100_000 and min(gaps) >= 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.03)


def test_the_same_seed_gives_the_same_traffic() -> None:
    lengths = parse_lengths("10~1", what="")
    one, same, other = (
        list(RandomTraffic(1.0, lengths, lengths, 50, seed=seed).arrivals()) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_a_csv_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,prefix,prefix_tokens,tenant\n"
        "10,100,5,,,\n10.5,200,0,system,64,a\n11,200,7,system,64,b\n12,200,7,system,64,a\n"
    )
    found = list(RequestTrace(path).arrivals())
    assert [(a.time_s, a.input_tokens, a.output_tokens) for a in found] == [
        (0.0, 100, 5),
        (0.5, 200, 1),
        (1.0, 200, 7),
        (2.0, 200, 7),
    ]
    none, first, other_tenant, same = (a.segments for a in found)
    assert none == () and first == same != other_tenant


def test_a_mooncake_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "conversation.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 8, "hash_ids": [4, 5, 6]},
        {"timestamp": 3000, "input_length": 1024, "output_length": 9, "hash_ids": [4, 5]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = RequestTrace(path).arrivals()
    assert first.segments == second.segments == (4, 5)
    assert first.segment_tokens == 512 and second.time_s == 3.0


def test_a_trace_is_counted_by_the_hour(tmp_path: Path) -> None:
    """An hour without a request counts one; an unfinished one ends with its last request."""
    path = tmp_path / "day.csv"
    times = [*range(0, 3600, 10), *range(7200, 9000, 5)]
    rows = "".join(f"{t},8,8\n" for t in times)
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    assert hourly_rates(RequestTrace(path)) == pytest.approx([0.1, 1 / 3600, 360 / 1795])
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}10801,8,8\n")
    assert hourly_rates(RequestTrace(path)) == pytest.approx([0.1, 1 / 3600, 0.1])
    path.write_text("arrival_s,input_tokens,output_tokens\n5,8,8\n")
    assert hourly_rates(RequestTrace(path)) == [1.0]
    path.write_text("arrival_s,input_tokens,output_tokens\n5,8,8\n1e10,8,8\n")
    with pytest.raises(UsageError, match="over a year"):
        hourly_rates(RequestTrace(path))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "arrival_s,input_tokens\n1,2\n", "'output_tokens' is missing"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n5,1,1\n4,1,1\n", "line 3 comes before"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\nx,1,1\n", "line 2 must be a request"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n1,nan,1\n", "not a number"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n1,1e12,1\n", "tokens in one sequence"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n", "holds no request"),
        ("a.csv", "\xff", "cannot read|holds no request"),
        ("a.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("a.jsonl", "{\n", "line 1 is not a JSON object"),
        ("a.jsonl", '{"hash_ids": 3}\n', "not a list"),
        (
            "a.csv",
            "arrival_s,input_tokens,output_tokens,prefix,prefix_tokens\n1,5,1,p,9\n",
            "in a prompt of 5",
        ),
    ],
)
def test_a_wrong_trace_names_its_line(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=problem):
        list(RequestTrace(path).arrivals())


def test_a_missing_trace_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(RequestTrace(Path("no/such/file.csv")).arrivals())


_values = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 1e8, allow_nan=False)), min_size=1, max_size=300
)


@settings(max_examples=100)
@given(_values)
def test_few_numbers_have_exact_quantiles(values: list[float]) -> None:
    sketch = QuantileSketch()
    for value in values:
        sketch.add(np.array([value]))
    found = sketch.summary()
    assert found
    ranked = sorted(values)
    for percent in (1, 50, 95, 99):
        assert found.curve[percent - 1] == ranked[-(-percent * len(values) // 100) - 1]
    assert found.largest == ranked[-1]


@pytest.mark.parametrize("seed", range(5))
def test_many_numbers_have_quantiles_within_the_stated_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.lognormal(-3, 2, 4 * EXACT_UP_TO) * (random.random(4 * EXACT_UP_TO) > 0.1)
    sketch = QuantileSketch()
    for block in np.split(values, 8):
        sketch.add(block)
    found = sketch.summary()
    assert found and found.count == values.size
    true = np.sort(values)[-(-np.arange(1, 100) * values.size // 100) - 1]
    np.testing.assert_allclose(found.curve, true, rtol=RELATIVE_ERROR * 1.01)
    assert all(a <= b for a, b in pairwise(found.curve))
    assert found.mean == pytest.approx(values.mean())


def test_nothing_has_no_quantiles() -> None:
    sketch = QuantileSketch()
    sketch.add(np.array([], dtype=np.float64))
    assert sketch.summary() is None
