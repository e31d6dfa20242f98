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
from rooflight.plan.serving.simulate.replica import block_keys
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


def test_an_azure_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    rows = "2023-11-16 23:59:59.9799600,4808,10\n2023-11-17 00:00:01.2300000,110,27\n"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    first, second = RequestTrace(path).arrivals()
    assert (first.time_s, first.input_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.time_s == pytest.approx(1.25004, abs=1e-6) and second.session == -1
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.009930+00:00,9,1\n2024-05-12 01:00:00+01:00,9,1\n"
    )
    with pytest.raises(ParseError, match="line 3 comes before"):
        list(RequestTrace(path).arrivals())


def test_a_burstgpt_trace_leaves_failures_out_and_continues_sessions(tmp_path: Path) -> None:
    path = tmp_path / "BurstGPT.csv"
    old = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(f"{old}5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n")
    (only,) = RequestTrace(path).arrivals()
    assert (only.input_tokens, only.output_tokens, only.session) == (472, 18, -1)
    rows = [
        "10.0,u-1,43,GPT-4,900,446,1346,Conversation log",
        "20.0,u-2,2,ChatGPT,36,29,65,Conversation log",
        "30.0,,2,ChatGPT,36,29,65,API log",
        "90.0,u-1,9,GPT-4,1400,50,1450,Conversation log",
        "99.0,u-1,9,GPT-4,1449,50,1499,Conversation log",  # shorter than all that was said
        "99.0,u-1,9,GPT-4,1499,50,1549,Conversation log",
    ]
    new = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens"
    path.write_text("\n".join([f"{new},Log Type", *rows]))
    found = [(a.session, a.turn) for a in RequestTrace(path).arrivals()]
    assert found == [(0, 1), (1, 1), (-1, 1), (0, 2), (2, 1), (2, 2)]


def test_a_bailian_trace_has_sessions_and_blocks_that_name_all_before_them(tmp_path: Path) -> None:
    path = tmp_path / "qwen_traceA_blksz_16.jsonl"
    rows = [(7, -1, 40, 1, [4, 5, 6]), (8, -1, 40, 1, [9, 5, 6]), (9, 7, 70, 2, [4, 5, 6, 1, 2])]
    names = "chat_id", "parent_chat_id", "input_length", "turn", "hash_ids"
    same = {"timestamp": 61.5, "output_length": 30, "type": "text"}
    path.write_text(
        "\n".join(json.dumps(dict(zip(names, row, strict=True)) | same) for row in rows)
    )
    first, other, later = RequestTrace(path).arrivals()
    assert [(a.session, a.turn) for a in (first, other, later)] == [(0, 1), (1, 1), (0, 2)]
    assert [len(a.segments) for a in (first, other, later)] == [2, 2, 4]
    assert first.segments == later.segments[:2] and first.segment_tokens == 16
    assert not {*first.segments} & {*other.segments}  # their second blocks are alike, but not all
    assert block_keys(later, 32) == [*later.segments[1::2], (0, 2)]  # the last is of its answer
    assert block_keys(later, 8)[:4] == block_keys(first, 8)[:4]


def test_an_own_trace_may_name_sessions(tmp_path: Path) -> None:
    path = tmp_path / "agents.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,session,tenant\n"
        "0,100,20,x,a\n1,120,20,x,b\n2,150,20,x,a\n3,9,9,,\n"
    )
    found = [(a.session, a.turn) for a in RequestTrace(path).arrivals()]
    assert found == [(0, 1), (1, 1), (0, 2), (-1, 1)]


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
        ("a.jsonl", '{"chat_id": 3, "hash_ids": []}\n', "line 1 must .* 'input_length' is missing"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2 must .*noon"),
        ("a.csv", "TIMESTAMP,ContextTokens\n1,2\n", "'GeneratedTokens' is missing"),
        ("a.csv", "Timestamp,Request tokens,Response tokens\n1,x,2\n", "line 2 must .*'x'"),
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
